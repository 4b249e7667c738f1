"""A CUDA device on a machine without a GPU, to run whole commands on it.

The tensors of this device are in the host's memory, but their storage is marked. Every call of
torch's kernels is checked: tensors of both devices in one operation are refused as a GPU refuses
them, and what makes the host wait for the GPU is noted. `recording` replays CUDA graphs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import recording
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mtrain.model import recorded
from mtrain.training import graphs, learner, optimizer

DEVICE = torch.device("cuda", 0)
INDEXED = {"index", "index_put", "index_put_"}  # indices may be on the CPU


def is_on_gpu(tensor: Tensor) -> bool:
    return getattr(tensor.untyped_storage(), "on_gpu", False)


def is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor.untyped_storage(), "pinned", False)


def mark(result: Any, on_gpu: bool) -> Any:
    """Mark the storages of all tensors in a result."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor):
            leaf.untyped_storage().on_gpu = on_gpu
    return result


class Kernels(TorchDispatchMode):
    """Marks what kernels return; raises `AssertionError` if their tensors are on two devices."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(
        self, kernel: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = kernel._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_gpu = any(map(is_on_gpu, tensors))
        if name == "copy_":
            target, source = tensors
            if is_on_gpu(target) != is_on_gpu(source) and not is_pinned(source):
                self.waits.append(name)
            return kernel(*args, **kwargs or {})
        if on_gpu and name != "fill_":
            if f"aten::{name}" in recording.REFUSED:
                self.waits.append(name)
            used = tensors[:1] if name in INDEXED else tensors
            on_cpu = [tensor.shape for tensor in used if tensor.dim() and not is_on_gpu(tensor)]
            assert not on_cpu, f"{name}: some tensors are on the GPU, but not those of {on_cpu}"
        return mark(kernel(*args, **kwargs or {}), on_gpu)


class Functions(TorchFunctionMode):
    """Does what torch's functions do on marked tensors, and would do on those of a GPU."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__ and is_on_gpu(args[0]):
            return DEVICE
        if function in (Tensor.numpy, Tensor.__array__):
            assert not is_on_gpu(args[0]), "numpy cannot read the memory of a GPU"
        if function is Tensor.tolist and is_on_gpu(args[0]):
            self.waits.append("tolist")
        if function is Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.untyped_storage().pinned = True
            return pinned
        if function is Tensor.cpu:
            return self._moved(args[0], False)
        if function is Tensor.to:
            return self._to(*args, **kwargs)
        if function is Tensor.new_tensor:
            return self._moved(torch.tensor(*args[1:]), is_on_gpu(args[0]))
        if function is F.scaled_dot_product_attention:
            with self:
                return attention(*args, **kwargs)
        if "device" in kwargs and kwargs["device"] is not None:
            on_gpu = torch.device(kwargs["device"]).type == "cuda"
            return mark(function(*args, **kwargs | {"device": "cpu"}), on_gpu)
        return function(*args, **kwargs)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = (*args, kwargs.get("dtype"), kwargs.get("device"))
        for dtype in (arg for arg in given if isinstance(arg, torch.dtype)):
            tensor = tensor.to(dtype)
        for target in (arg for arg in given if isinstance(arg, torch.device | str)):
            tensor = self._moved(tensor, torch.device(target).type == "cuda")
        return tensor

    def _moved(self, tensor: Tensor, on_gpu: bool) -> Tensor:
        if is_on_gpu(tensor) == on_gpu:
            return tensor
        if not is_pinned(tensor):
            self.waits.append("to")
        return mark(tensor.clone(), on_gpu)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool
) -> Tensor:
    """`F.scaled_dot_product_attention`, which makes a mask of its own on the CPU."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=DEVICE).tril()
    assert mask is not None
    return F.dropout(scores.masked_fill(~mask, float("-inf")).softmax(-1), p) @ value


def unchecked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that returns nothing, with tensors that do not seem to be on a GPU."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        function(*args, **kwargs)


def record(work: Callable[[], object], device: torch.device, pool: Any) -> Callable[[], None]:
    """Check and record what `work` does. Recording draws no random numbers; a replay does, and is
    not checked again.
    """
    with torch.random.fork_rng(devices=[]):
        replay = recording.record(work, device, pool)
    return partial(unchecked, replay)


class Stream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...


@contextlib.contextmanager
def fake_cuda() -> Iterator[list[str]]:
    """Offer one CUDA device, in all threads; yields a growing list of what waited for it."""
    waits: list[str] = []
    run = threading.Thread.run

    def run_on_both(thread: threading.Thread) -> None:
        with Functions(waits), Kernels(waits):
            run(thread)

    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "is_bf16_supported": True,
        "get_device_capability": (9, 0),
        "max_memory_reserved": 0,
        "set_device": None,
        "graph_pool_handle": None,
        "current_stream": Stream(),
        "stream": contextlib.nullcontext(),
        "synchronize": None,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "default_generators", [torch.default_generator])
        for module in (graphs, recorded):
            patch.setattr(module, "record_graph", record)
        patch.setattr(optimizer, "adam", partial(unchecked, optimizer.adam))
        patch.setattr(learner, "set_up_cuda", lambda _: None)
        patch.setattr(threading.Thread, "run", run_on_both)
        with Functions(waits), Kernels(waits):
            yield waits
