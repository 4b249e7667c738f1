"""Dropout and scaled dot-product attention (sections 5.4 and 3.2.1), and how a CPU computes both.

Shapes: `B` batch, `T` queries, `S` keys, `D` d_model, `H` heads, `K` head width, `R` rows of a
flattened batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Set a fraction `p` of `x` to zero and scale the rest (section 5.4)."""
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    dropped: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return dropped


class _Dropout(torch.autograd.Function):
    """Dropout by a mask of bits, several times faster on the CPU than torch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p = p
        mask = dropout_mask(x, p)
        ctx.save_for_backward(mask)
        return masked(x, mask, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return masked(grads[0], ctx.saved_tensors[0], ctx.p), None


def dropout_mask(x: Tensor, p: float) -> Tensor:
    """Return integers as wide as the values of `x`, with all bits set where a value is kept. 64-bit
    random integers are read as 16-bit ones, so `p` is exact to 2**-16.
    """
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape)
    kept.ge_(min(round(p * 65536) - 32768, 32767))
    return kept.neg_().to({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def masked(x: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """The kept values of `x`, scaled by 1 / (1 - p); all of them as they are without a mask."""
    if mask is None:
        return x
    out = x * (1 / (1 - p))
    out.view(mask.dtype).bitwise_and_(mask)
    return out


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, p: float) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1) over (B, H, ?, K); `mask` is True where attention is
    allowed. A mask of two dimensions is the causal one, which other devices apply without reading
    it.
    """
    if query.device.type != "cpu":
        causal = mask.dim() == 2
        return F.scaled_dot_product_attention(
            query, key, value, None if causal else mask, p, is_causal=causal
        )
    return dropout(attention_weights(query, key, mask), p, p > 0) @ value


def attention_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(K)): the weight of each key position for each query position, (B, H, ?,
    ?).
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    weights: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights


def attend_step(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Equation 1 for decoding, with heads and sentences as one batch of `G`: (G, W, K) and two of
    (G, S, K) -> (G, W, K); `bias` (G, 1 or W, S) is added before the softmax.
    """
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, bias)
    scale = query.shape[-1] ** -0.5
    if bias is None:
        scores = query.bmm(key.mT).mul_(scale)
    else:
        scores = torch.baddbmm(bias, query, key.mT, alpha=scale)
    return scores.softmax(-1).bmm(value)


def attend_rows(
    query: Tensor,
    source: Tensor | None,
    sizes: tuple[int, int, int, int],
    allowed: Tensor,
    p: float,
) -> Tensor:
    """Equation 1 for a CPU, over flat rows of projected tokens, (R, D) out. `query` (R, 3 * D) also
    holds keys and values, unless `source` (M, 2 * D) does. `sizes` are B, T, S and H; `allowed`,
    (B, 1, 1, S) or (T, S), is True where attention is allowed.
    """
    out: Tensor = _Attend.apply(query, source, sizes, allowed, p)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    """Equation 1 and its gradient over flat rows, for the CPU.

    Heads are split and joined by one copy each, which also converts them to fp32: MKL multiplies
    these small matrices well, while oneDNN would generate code for every new shape. The softmax is
    written out, since torch's takes several times as long on rows as short as sentences.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        source: Tensor | None,
        sizes: tuple[int, int, int, int],
        allowed: Tensor,
        p: float,
    ) -> Tensor:
        B, T, S, H = sizes
        q, *rest = _cut_heads(query, B, T, H, 3 if source is None else 1)
        k, v = rest if source is None else _cut_heads(source, B, S, H, 2)
        scale = q.shape[-1] ** -0.5
        scores = q.bmm(k.transpose(1, 2)).mul_(scale)
        bias = torch.zeros(allowed.shape, dtype=q.dtype).masked_fill_(~allowed, float("-inf"))
        scores.view(B, H, T, S).add_(bias)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        weights /= weights.sum(-1, keepdim=True)
        mask = dropout_mask(weights, p) if p > 0 else None
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.sizes, ctx.scale, ctx.p = sizes, scale, p
        ctx.source_rows = None if source is None else len(source)
        out = query.new_empty(len(query), H * q.shape[-1])
        _join_heads(out, (masked(weights, mask, p).bmm(v),), B, T, H)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        B, T, S, H = ctx.sizes
        rows, D = grads[0].shape
        (grad,) = _cut_heads(grads[0], B, T, H, 1)
        value_grad = masked(weights, mask, ctx.p).transpose(1, 2).bmm(grad)
        scores_grad = masked(grad.bmm(v.transpose(1, 2)), mask, ctx.p).mul_(weights)
        scores_grad -= weights * scores_grad.sum(-1, keepdim=True)
        scores_grad *= ctx.scale
        query_grad, key_grad = scores_grad.bmm(k), scores_grad.transpose(1, 2).bmm(q)
        if ctx.source_rows is None:
            own = grads[0].new_empty(rows, 3 * D)
            _join_heads(own, (query_grad, key_grad, value_grad), B, T, H)
            return own, None, None, None, None
        own = grads[0].new_empty(rows, D)
        _join_heads(own, (query_grad,), B, T, H)
        other = grads[0].new_empty(ctx.source_rows, 2 * D)
        _join_heads(other, (key_grad, value_grad), B, S, H)
        return own, other, None, None, None


def _cut_heads(rows: Tensor, B: int, L: int, H: int, parts: int) -> tuple[Tensor, ...]:
    """(R, parts * D) -> parts x (B * H, L, K), at least in fp32."""
    heads = rows[: B * L].view(B, L, parts, H, -1).permute(2, 0, 3, 1, 4)
    # in one pass: `to` would keep the old order, and a second pass takes far longer
    wide = rows.new_empty(heads.shape, dtype=torch.promote_types(rows.dtype, torch.float32))
    return wide.copy_(heads).flatten(1, 2).unbind(0)


def _join_heads(out: Tensor, parts: tuple[Tensor, ...], B: int, L: int, H: int) -> None:
    """The reverse, into `out` (R, parts * D); rows after the last token become 0."""
    places = out[: B * L].view(B, L, len(parts), H, -1).permute(2, 0, 3, 1, 4)
    for place, part in zip(places, parts, strict=True):
        place.copy_(part.view(place.shape))
    out[B * L :].zero_()
