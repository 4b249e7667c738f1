"""Scaled dot-product attention and multi-head attention (sections 3.2.1 and 3.2.2).

Shapes: `B` batch, `T` queries, `S` keys, `D` d_model, `H` heads, `K` head width.
"""

import torch.nn.functional as F
from torch import Tensor, nn


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, p: float) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1): (B, H, T, K) and two of (B, H, S, K) -> (B, H, T,
    K). `mask` is True where attention is allowed; a mask of two dimensions is the causal one.
    """
    if query.device.type == "cpu":  # torch's fused kernel is for longer sequences than sentences
        return F.dropout(attention_weights(query, key, mask), p) @ value
    causal = mask.dim() == 2
    return F.scaled_dot_product_attention(
        query, key, value, None if causal else mask, p, is_causal=causal
    )


def attention_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(K)): the weight of each key for each query, (B, H, T, S)."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    weights: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights


class Attention(nn.Module):
    """Multi-head attention; where `watch` is a list, the weights are appended to it."""

    def __init__(self, d_model: int, num_heads: int, rate: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.rate = rate
        # W^Q, W^K and W^V of all heads, one below the other: one product for self-attention
        self.project_in = nn.Linear(d_model, 3 * d_model)
        self.project_out = nn.Linear(d_model, d_model)
        self.watch: list[Tensor] | None = None

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        """Attend from x to `memory`, or to x itself if that is None: (B, T, D), (B, S, D) -> (B, T,
        D). `mask`, (B, 1, 1, S) or (T, S), is True where attention is allowed.
        """
        if memory is None:
            q, k, v = self.heads(self.project(x, 0, 3))
        else:
            (q,), (k, v) = self.heads(self.project(x, 0, 1)), self.heads(self.project(memory, 1, 3))
        if self.watch is not None:
            self.watch.append(attention_weights(q, k, mask))
        heads = attend(q, k, v, mask, self.rate if self.training else 0.0)
        out: Tensor = self.project_out(heads.transpose(1, 2).flatten(2))
        return out

    def project(self, x: Tensor, first: int, last: int) -> Tensor:
        """Project to query (0), key (1) and value (2), those from `first` to `last` - 1: (..., D)
        -> (..., (last - first) * D).
        """
        if (first, last) == (0, 3):  # the gradient of a slice would be a whole matrix of zeros
            whole: Tensor = self.project_in(x)
            return whole
        rows = slice(first * x.shape[-1], last * x.shape[-1])
        return F.linear(x, self.project_in.weight[rows], self.project_in.bias[rows])

    def heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """Split into heads: (B, L, parts * D) -> parts x (B, H, L, K)."""
        B, L, _ = projected.shape
        width = self.project_out.in_features // self.num_heads
        parts = projected.view(B, L, -1, self.num_heads, width)
        return tuple(part.transpose(1, 2) for part in parts.unbind(2))
