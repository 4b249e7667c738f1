"""CUDA graphs on a machine without a GPU: `record` in place of `runtime.device.record_graph`.

What a GPU replays are kernels on the memory that they had when they were recorded, not the Python
code that launched them. So each call of torch's kernels is kept with its tensors, and a replay
calls the kernels again and writes the results to the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# these wait for the GPU, or copy from pageable memory, which a recording refuses
REFUSED = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",
        "_unique2",
        "equal",
        "is_nonzero",
        "lift_fresh",
        "masked_select",
        "nonzero",
        "unique_dim",
    )
}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}


class Recording(TorchDispatchMode):
    """Keeps the calls of kernels; raises `AssertionError` for one that cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self, kernel: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named, name = kwargs or {}, kernel._schema.name
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            kernel.name(), "CompositeImplicitAutograd"
        ):  # in inference mode torch hands over operations that consist of others
            with self:
                return kernel.decompose(*args, **named)
        assert name not in REFUSED, f"{name} cannot be recorded"
        if name in INDEXED:
            masks = [index for index in tree_leaves(args[1]) if index.dtype == torch.bool]
            assert not masks, f"{name} by a mask cannot be recorded"
        result = kernel(*args, **named)
        self.calls.append((kernel, args, named, list(_new_tensors(kernel, result))))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Call the kernels again."""
        for kernel, args, named, results in self.calls:
            again = _new_tensors(kernel, kernel(*args, **named))
            for result, value in zip(results, again, strict=True):
                result.copy_(value)


def _new_tensors(kernel: Any, result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result that are neither views of arguments nor arguments."""
    if all(returned.alias_info is None for returned in kernel._schema.returns):
        yield from (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))


def record(work: Callable[[], object], device: torch.device, pool: Any) -> Callable[[], None]:
    """Record what `work` does, which must bear to be done twice: a GPU would not do it yet."""
    recording = Recording()
    with recording:
        work()
    return recording.replay
