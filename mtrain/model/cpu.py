"""The Transformer as a CPU computes it fastest: the same weights and results, up to rounding.

- Layers work on rows, a matrix (R, D) for a batch (B, L, D). In bf16 it is padded with zeros to a
  multiple of `ROWS`, because oneDNN generates code for every shape that it multiplies.
- Attention and dropout have gradients written by hand.
- Decoding multiplies by matrices that are packed once.

`mtrain.model.building` chooses this model; everything else knows `Transformer` alone.

Shapes: `B` batch, `T` queries, `S` keys, `L` either, `D` d_model, `H` heads, `K` head width, `R`
rows for queries, `M` rows for keys.
"""

import ctypes
import platform
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.transformer import Attention, Parts, Transformer, fixed_product
from mtrain.runtime.device import has_fast_bf16

ROWS = 128
# Values of a matrix in fp32 from which packing pays; see `packed_product`.
WORTH_PACKING = 100_000
# glibc's numbers in malloc.h, and the largest threshold for single mappings that it accepts
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD = -1, -3, 32 << 20


class BitDropout(nn.Dropout):
    """Dropout by a mask of bits, several times faster on a CPU than torch's own."""

    generator: torch.Generator | None = None  # torch's default one

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

    They are cut from 64-bit random integers read as 16-bit ones, so `p` is met to 2**-16.
    """
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape)
    kept.ge_(min(round(p * 65536) - 32768, 32767))
    return kept.neg_().to({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _masked(x: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Return the kept values of x, scaled by 1 / (1 - p); x itself without a mask."""
    if mask is None:
        return x
    out = x * (1 / (1 - p))
    out.view(mask.dtype).bitwise_and_(mask)
    return out


class RowAttention(Attention):
    """Multi-head attention between rows; the mask is a bias (B, 1, T, S) of 0 and minus infinity,
    which also gives the sizes.
    """

    generator: torch.Generator | None = None  # torch's default one

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        """Attend from x to `memory`, or to x itself if that is None: (R, D), (M, D) -> (R, D)."""
        if self.watch is not None:  # as other devices compute, where weights are a tensor
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
    """Equation 1 between projected rows, and its gradient: -> (R, D). Without a `source` (M, 2 * D)
    of keys and values, `query` (R, 3 * D) holds them too; `bias` (B, 1, T, S) is added to scores.

    Heads are cut out and joined by one copy each, which also converts to fp32: MKL multiplies
    small matrices well, while oneDNN would generate code for every new shape. The softmax is
    spelled out, because torch's takes several times as long on rows as short as sentences.
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
        q, *rest = _cut_heads(query, B, T, H, 3 if source is None else 1)
        k, v = rest if source is None else _cut_heads(source, B, S, H, 2)
        scale = q.shape[-1] ** -0.5
        scores = q.bmm(k.transpose(1, 2)).mul_(scale)
        scores.view(B, H, T, S).add_(bias)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        weights /= weights.sum(-1, keepdim=True)
        mask = _dropout_mask(weights, p, generator) if p > 0 else None
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.sizes, ctx.scale, ctx.p = (B, T, S, H), scale, p
        ctx.rows = len(query), None if source is None else len(source)
        return _join_heads(query, len(query), B, T, H, _masked(weights, mask, p).bmm(v))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        (B, T, S, H), (rows, source_rows), out_grad = ctx.sizes, ctx.rows, grads[0]
        (grad,) = _cut_heads(out_grad, B, T, H, 1)
        value_grad = _masked(weights, mask, ctx.p).transpose(1, 2).bmm(grad)
        scores_grad = _masked(grad.bmm(v.transpose(1, 2)), mask, ctx.p).mul_(weights)
        scores_grad -= weights * scores_grad.sum(-1, keepdim=True)
        scores_grad *= ctx.scale
        query_grad, key_grad = scores_grad.bmm(k), scores_grad.transpose(1, 2).bmm(q)
        if source_rows is None:
            own = _join_heads(out_grad, rows, B, T, H, query_grad, key_grad, value_grad)
            return own, None, None, None, None, None
        own = _join_heads(out_grad, rows, B, T, H, query_grad)
        other = _join_heads(out_grad, source_rows, B, S, H, key_grad, value_grad)
        return own, other, None, None, None, None


attend_rows: Callable[..., Tensor] = _Attend.apply


def _cut_heads(rows: Tensor, B: int, L: int, H: int, parts: int) -> tuple[Tensor, ...]:
    """(R, parts * D) -> parts x (B * H, L, K), at least in fp32."""
    heads = rows[: B * L].view(B, L, parts, H, -1).permute(2, 0, 3, 1, 4)
    # in one pass: `to` would keep the old order, and a second one to change it takes far longer
    wide = rows.new_empty(heads.shape, dtype=torch.promote_types(rows.dtype, torch.float32))
    return wide.copy_(heads).flatten(1, 2).unbind(0)


def _join_heads(like: Tensor, rows: int, B: int, L: int, H: int, *parts: Tensor) -> Tensor:
    """Reverse `_cut_heads`: parts x (B * H, L, K) -> (rows, parts * D) of the type of `like`, where
    padding rows are 0.
    """
    out = like.new_empty(rows, len(parts) * H * parts[0].shape[-1])
    views = out[: B * L].view(B, L, len(parts), H, -1).permute(2, 0, 3, 1, 4)
    for view, part in zip(views, parts, strict=True):
        view.copy_(part.view(view.shape))
    out[B * L :].zero_()
    return out


def attend_step(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """`transformer.attend_step`, faster for few queries."""
    scores = torch.baddbmm(bias, query, key, alpha=query.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), value, out=out)


def packed_product(weight: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """Return `fixed_product`, with the matrix laid out as it is multiplied fastest.

    torch lays it out anew for every product in bf16, and leaves fp32 to MKL: with a vocabulary of
    8,000 on one core that takes three times as long for 5 hypotheses, a fifth longer for 270. Small
    matrices in fp32 MKL multiplies as fast, and for few rows in half the time.
    """
    weight = weight.detach()
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_fp32, is_x86 = weight.dtype == torch.float32, platform.machine() in ("x86_64", "AMD64")
    has_bf16 = weight.dtype == torch.bfloat16 and has_fast_bf16(weight.device)
    if not (is_x86 and (is_fp32 or has_bf16)):
        return fixed_product(weight, bias)
    if not has_onednn or (is_fp32 and weight.numel() < WORTH_PACKING):
        return _turned_product(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    multiply = torch.ops.mkldnn._linear_pointwise
    of_one_row = cache(partial(_turned_product, weight, bias))  # made if it is needed

    def product(rows: Tensor, out: Tensor | None = None) -> Tensor:
        if is_fp32 and len(rows) == 1:
            return of_one_row()(rows, out=out)
        result: Tensor = multiply(rows, packed, bias, "none", [], "")
        return result if out is None else out.copy_(result)

    return product


def _turned_product(weight: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """Return `fixed_product`, of a wide matrix by a copy that is contiguous as (in, out): MKL reads
    it in longer stretches. One row takes half the time, and a third if the matrix is not cached.
    """
    is_wide = weight.shape[0] >= weight.shape[1]
    return fixed_product(weight.t().contiguous().t() if is_wide else weight, bias)


class RowTransformer(Transformer):
    """The Transformer whose layers work on rows."""

    parts = Parts(RowAttention, BitDropout, packed_product, attend_step)

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
        """Return a model of the same weights with dropout from `generator`, for another thread."""
        shared = {id(tensor): tensor for tensor in chain(self.parameters(), self.buffers())}
        other = deepcopy(self, shared)
        for module in other.modules():
            if isinstance(module, BitDropout | RowAttention):
                module.generator = generator
        return other

    def _bias(self, mask: Tensor) -> Tensor:
        bias = torch.zeros(mask.shape, dtype=self.attention_dtype)
        return bias.masked_fill_(~mask, float("-inf"))


def _as_rows(x: Tensor) -> Tensor:
    """(B, L, D) -> (R, D), with zeros behind the tokens in bf16."""
    rows = x.flatten(0, 1)
    return F.pad(rows, (0, 0, 0, -len(rows) % ROWS)) if x.dtype == torch.bfloat16 else rows


def _as_batch(rows: Tensor, B: int, L: int) -> Tensor:
    """(R, D) -> (B, L, D)."""
    return rows[: B * L].view(B, L, -1)


def keep_freed_memory() -> None:
    """Make glibc keep the memory that a step frees for the next one, which would otherwise cost
    tens of thousands of page faults; other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
