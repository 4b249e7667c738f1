"""The Transformer optimized for CPUs: the same weights and, up to rounding, the same results.

- Layers work on rows, a matrix (R, D) for a batch (B, L, D). In bf16 it is padded with zeros to a
  multiple of `ROWS`, because oneDNN generates code for every shape that it multiplies.
- Attention and dropout have gradients written by hand.
- Decoding packs its matrices once, in the layout that oneDNN multiplies fastest.

`mtrain.model.building` chooses between this class and `Transformer`, which share one interface.

Shapes: `B` batch, `T` queries, `S` keys, `L` either, `D` d_model, `H` heads, `K` head width, `R`
rows for queries, `M` rows for keys.
"""

import ctypes
import mmap
import platform
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from itertools import chain
from threading import get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.transformer import Attention, Parts, Transformer, fixed_product
from mtrain.runtime.device import has_fast_bf16

ROWS = 128
WORTH_PACKING = 100_000  # smallest number of values of a large fp32 matrix: see `packed_product`
# If MKL is slow: smallest number of multiplications in a product with a smaller matrix that is
# worth packing.
WORTH_ONEDNN = 700_000
# Option numbers of glibc's mallopt, from malloc.h, and the largest mmap threshold that it accepts
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MAX_MMAP_THRESHOLD = 32 << 20
HEAP_BYTES = 64 << 20  # largest heap of a thread, glibc's HEAP_MAX_SIZE on 64-bit machines
HUGE_BYTES = 256 << 20  # of the heap, in huge pages; a translation touches about as much


class BitDropout(nn.Dropout):
    """Dropout by a mask of bits, several times faster on a CPU than torch's own."""

    generator: torch.Generator | None = None  # None: torch's default generator

    def forward(self, x: Tensor) -> Tensor:
        """Set a fraction `p` of x to zero and scale the rest, while training."""
        if not self.training or self.p == 0.0:
            return x
        return drop(x, self.p, self.generator)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
        ctx.p = p
        mask = _dropout_mask(x, p, generator)
        ctx.save_for_backward(mask)
        return _masked(x, mask, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _masked(grads[0], ctx.saved_tensors[0], ctx.p), None, None


drop: Callable[[Tensor, float, torch.Generator | None], Tensor] = _Dropout.apply


def _dropout_mask(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Return integers as wide as the values of x, with all bits set where a value is kept.

    A 64-bit random integer serves four values, 16 bits each, so `p` is exact to 2**-16.
    """
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape)
    kept.ge_(min(round(p * 65536) - 32768, 32767))  # 1 where a value is kept, else 0
    # -1 has all bits set
    return kept.neg_().to({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _masked(x: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Return the kept values of x, scaled by 1 / (1 - p); x itself without a mask."""
    if mask is None:
        return x
    out = x * (1 / (1 - p))
    out.view(mask.dtype).bitwise_and_(mask)
    return out


class RowAttention(Attention):
    """Multi-head attention on rows. The mask is a bias (B, 1, T, S) of 0 and minus infinity; B, T
    and S are read from its shape.
    """

    generator: torch.Generator | None = None  # None: torch's default generator

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        """Attend from x to `memory`, or to x itself if that is None: (R, D), (M, D) -> (R, D)."""
        if self.recorded and get_ident() in self.recorded:  # only the plain attention records
            B, _, T, S = bias.shape
            keys = None if memory is None else _as_batch(memory, B, S)
            return _as_rows(super().forward(_as_batch(x, B, T), keys, bias == 0))
        query = self.project(x, 0, 3 if memory is None else 1)
        source = None if memory is None else self.project(memory, 1, 3)
        p = self.rate if self.training else 0.0
        heads = attend_rows(query, source, bias, self.num_heads, p, self.generator)
        out: Tensor = self.project_out(heads)
        return out


class _Attend(torch.autograd.Function):
    """Equation 1 on projected rows, with its gradient: -> (R, D). `source` (M, 2 * D) holds keys
    and values; without it, `query` (R, 3 * D) holds them, too. `bias` (B, 1, T, S) is added to the
    scores.

    Splitting and joining heads takes one copy each, which also converts to fp32: MKL multiplies
    small matrices well, while oneDNN would generate code for every new shape. The softmax is
    written out, because torch's takes several times as long on rows as short as sentences.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        source: Tensor | None,
        bias: Tensor,
        H: int,
        p: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        B, _, T, S = bias.shape
        q, *rest = _split_heads(query, B, T, H, 3 if source is None else 1)
        k, v = rest if source is None else _split_heads(source, B, S, H, 2)
        scale = q.shape[-1] ** -0.5
        scores = q.bmm(k.transpose(1, 2)).mul_(scale)
        scores.view(B, H, T, S).add_(bias)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        weights /= weights.sum(-1, keepdim=True)
        mask = _dropout_mask(weights, p, generator) if p > 0 else None
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.sizes, ctx.scale, ctx.p = (B, T, S, H), scale, p
        ctx.query_rows = len(query)
        ctx.source_rows = None if source is None else len(source)
        return _join_heads(query, len(query), B, T, H, _masked(weights, mask, p).bmm(v))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        (B, T, S, H), out_grad = ctx.sizes, grads[0]
        (grad,) = _split_heads(out_grad, B, T, H, 1)
        value_grad = _masked(weights, mask, ctx.p).transpose(1, 2).bmm(grad)
        # through the softmax: weights * (their gradient - sum(weights * their gradient))
        scores_grad = _masked(grad.bmm(v.transpose(1, 2)), mask, ctx.p).mul_(weights)
        scores_grad -= weights * scores_grad.sum(-1, keepdim=True)
        scores_grad *= ctx.scale
        query_grad, key_grad = scores_grad.bmm(k), scores_grad.transpose(1, 2).bmm(q)
        if ctx.source_rows is None:
            parts = query_grad, key_grad, value_grad
            return _join_heads(out_grad, ctx.query_rows, B, T, H, *parts), *[None] * 5
        for_query = _join_heads(out_grad, ctx.query_rows, B, T, H, query_grad)
        for_source = _join_heads(out_grad, ctx.source_rows, B, S, H, key_grad, value_grad)
        return for_query, for_source, *[None] * 4


attend_rows: Callable[..., Tensor] = _Attend.apply


def _split_heads(rows: Tensor, B: int, L: int, H: int, parts: int) -> tuple[Tensor, ...]:
    """(R, parts * D) -> parts x (B * H, L, K), at least in fp32."""
    heads = rows[: B * L].view(B, L, parts, H, -1).permute(2, 0, 3, 1, 4)
    # convert and reorder in one copy: `to` would keep the strides, and need a slower second copy
    split = rows.new_empty(heads.shape, dtype=torch.promote_types(rows.dtype, torch.float32))
    return split.copy_(heads).flatten(1, 2).unbind(0)


def _join_heads(like: Tensor, rows: int, B: int, L: int, H: int, *parts: Tensor) -> Tensor:
    """Reverse `_split_heads`: parts x (B * H, L, K) -> (rows, parts * D) of the type of `like`;
    padding rows are 0.
    """
    out = like.new_empty(rows, len(parts) * H * parts[0].shape[-1])
    views = out[: B * L].view(B, L, len(parts), H, -1).permute(2, 0, 3, 1, 4)
    for view, part in zip(views, parts, strict=True):
        view.copy_(part.view(view.shape))
    out[B * L :].zero_()
    return out


def packed_product(weight: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """Return `fixed_product`, with the matrix in the layout that is multiplied fastest.

    - bf16: packed, because torch would rearrange the matrix for every product.
    - Large fp32: packed for two rows or more. MKL takes three times as long for 5 hypotheses (a
      vocabulary of 8,000, one core) and a fifth longer for 270.
    - Small fp32: not packed. MKL takes half the time for few rows, and as long for many. Only on
      AMD's processors with AVX512 (Zen 5) it takes twice as long for many rows: packed for these.
    - Any fp32 on Intel's processors: not packed. MKL is as fast there, or up to a tenth faster.
    """
    weight = weight.detach()
    is_fp32 = weight.dtype == torch.float32
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    has_bf16 = weight.dtype == torch.bfloat16 and has_fast_bf16(weight.device)
    if not (is_x86 and (is_fp32 or has_bf16)):
        return fixed_product(weight, bias)
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_small = is_fp32 and weight.numel() < WORTH_PACKING
    has_fast_mkl = is_fp32 and (is_intel() or (is_small and not has_slow_mkl()))
    if not has_onednn or has_fast_mkl:
        return _transposed_product(weight, bias)
    few = 0  # the largest number of rows that the packed matrix is not used for
    if is_fp32:
        few = WORTH_ONEDNN // weight.numel() if is_small else 1
    product_of_few = cache(partial(_transposed_product, weight, bias))  # made when first needed
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    multiply = torch.ops.mkldnn._linear_pointwise

    def product(rows: Tensor, out: Tensor | None = None) -> Tensor:
        if rows.shape[0] <= few:
            return product_of_few()(rows, out=out)
        result: Tensor = multiply(rows, packed, bias, "none", [], "")
        return result if out is None else out.copy_(result)

    return product


def is_intel() -> bool:
    """Whether Intel made this CPU, for whose processors MKL is optimized."""
    return "Intel" in cpu_capabilities().get("cpu_name", "")


def has_slow_mkl() -> bool:
    """Whether MKL leaves half of this CPU's vectors unused: it has no AVX512 for AMD."""
    found = cpu_capabilities()
    return bool(found.get("avx512_f")) and "AMD" in found.get("cpu_name", "")


@cache
def cpu_capabilities() -> dict[str, Any]:
    """Return the name and the instruction sets of this CPU; empty if torch does not know them."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def padded_row_count(count: int) -> int:
    """Return the number of rows to compute when `count` are decoded: at most an eighth more. Only
    eight numbers per power of two occur, because oneDNN needs 0.3 ms to generate code for each
    number of rows and each matrix.
    """
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step


def _transposed_product(weight: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """Return `fixed_product`; a matrix with out >= in is copied to be contiguous as (in, out). MKL
    reads that in longer stretches: one row takes half the time, a third if the CPU's cache is cold.
    """
    if weight.shape[0] >= weight.shape[1]:
        weight = weight.t().contiguous().t()
    return fixed_product(weight, bias)


class RowTransformer(Transformer):
    """The Transformer whose layers work on rows."""

    parts = Parts(RowAttention, BitDropout, packed_product, padded_row_count)

    @property
    def attention_dtype(self) -> torch.dtype:
        """At least fp32: see `_Attend`."""
        return torch.promote_types(self.dtype, torch.float32)

    def run_encoder(self, x: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S, D), (B, 1, 1 or S, S) -> (B, S, D)."""
        B, S, _ = x.shape
        bias = self._bias(src_mask).expand(B, 1, S, S)
        return _as_batch(super().run_encoder(_as_rows(x), bias), B, S)

    def run_decoder(self, x: Tensor, causal: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(B, T, D), (T, T) or (B, 1, T, T), (B, S, D), (B, 1, 1 or T, S) -> (B, T, D)."""
        (B, T, _), S = x.shape, memory.shape[1]
        biases = self._bias(causal).expand(B, 1, T, T), self._bias(src_mask).expand(B, 1, T, S)
        rows = super().run_decoder(_as_rows(x), biases[0], _as_rows(memory), biases[1])
        return _as_batch(rows, B, T)

    def drawing_from(self, generator: torch.Generator) -> "RowTransformer":
        """Return a model that shares these weights but draws dropout from `generator`, for another
        thread.
        """
        shared = {id(tensor): tensor for tensor in chain(self.parameters(), self.buffers())}
        model = deepcopy(self, shared)  # tensors in the memo `shared` are not copied
        for module in model.modules():
            if isinstance(module, BitDropout | RowAttention):
                module.generator = generator
        return model

    def _bias(self, mask: Tensor) -> Tensor:
        bias = torch.zeros(mask.shape, dtype=self.attention_dtype, device=mask.device)
        return bias.masked_fill_(~mask, float("-inf"))


def _as_rows(x: Tensor) -> Tensor:
    """(B, L, D) -> (R, D), in bf16 followed by rows of zeros."""
    rows = x.flatten(0, 1)
    return F.pad(rows, (0, 0, 0, -len(rows) % ROWS)) if x.dtype == torch.bfloat16 else rows


def _as_batch(rows: Tensor, B: int, L: int) -> Tensor:
    """(R, D) -> (B, L, D)."""
    return rows[: B * L].view(B, L, -1)


@cache
def keep_freed_memory() -> None:
    """Make glibc keep the memory that a step frees, and use huge pages where Linux provides them on
    request. This saves tens of thousands of page faults, which take microseconds each in a virtual
    machine. Does nothing with other C libraries.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        _request_huge_pages(libc)
        libc.mallopt(M_TOP_PAD, HEAP_BYTES)  # or the heaps of threads would be unmapped once empty


def _request_huge_pages(libc: Any) -> None:
    """Reserve addresses that the heap will grow into, without using memory, and request huge pages
    for them.
    """
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.mallopt(M_TOP_PAD, HUGE_BYTES)
    block = ctypes.c_void_p(libc.malloc(MAX_MMAP_THRESHOLD // 2))  # so that the heap must grow
    start = (block.value or 0) // mmap.PAGESIZE * mmap.PAGESIZE
    end = libc.sbrk(0) or 0
    if 0 < start < end:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)
    libc.free(block)
