"""The consistency loss of SimCut (Gao et al. 2022, arXiv 2206.02368, equation 5), as sums over
target tokens.

View 1 is a micro-batch as it is, view 2 the same with some token embeddings set to zero; each has
dropout of its own. The loss is the label-smoothed cross entropy of view 1 plus alpha times
KL(p1 || p2), the divergence of the distributions of the next token; gradients reach both views.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.training.loss import FusedLoss, chunk_rows


class ConsistencyLoss(NamedTuple):
    """Sums over tokens, in nats: the whole loss, the NLL of view 1, and KL(p1 || p2)."""

    loss_sum: Tensor
    nll_sum: Tensor
    divergence_sum: Tensor


def consistency_loss(
    views: tuple[Tensor, Tensor],
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    alpha: float,
    real: Tensor | None = None,
) -> ConsistencyLoss:
    """Return the sums over (N,) targets, from the hidden states of the two views, (N, D) each, and
    the (V, D) output matrix; a mask `real` (N,) leaves the other targets out.

    As in `projected_cross_entropy`, the (N, V) logits never exist as a whole.
    """
    if real is None:
        real = torch.ones_like(targets, dtype=torch.bool)
    sums = _Consistency.apply(*views, weight, targets, real, smoothing, alpha)  # type: ignore[no-untyped-call]
    return ConsistencyLoss(*sums)


class _Consistency(FusedLoss):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        targets: Tensor,
        real: Tensor,
        smoothing: float,
        alpha: float,
    ) -> tuple[Tensor, ...]:
        rows = chunk_rows(2 * len(first), len(weight), weight.device.type)
        matrix = weight.to(first.dtype)
        wide = torch.promote_types(first.dtype, torch.float32)
        sums = torch.zeros(3, dtype=wide, device=first.device)
        differentiate = any(ctx.needs_input_grad)
        grads = [torch.empty_like(first), torch.empty_like(second)] if differentiate else []
        weight_grad = torch.zeros_like(weight, dtype=wide) if differentiate else None
        for start in range(0, len(first), rows):
            count = min(rows, len(first) - start)
            part = slice(start, start + count)
            states = [_padded(view[part], rows) for view in (first, second)]
            target = _padded(targets[part], rows)
            kept = _padded(real[part], rows).to(wide)
            chunk, logit_grads = _chunk(states, matrix, target, kept, smoothing, alpha)
            sums += chunk
            if weight_grad is not None:
                for grad, state, logit_grad in zip(grads, states, logit_grads, strict=True):
                    logit_grad = logit_grad.to(matrix.dtype)
                    grad[part] = (logit_grad @ matrix)[:count]
                    weight_grad += logit_grad.t() @ state
        ctx.save_for_backward(*grads, weight_grad)
        ctx.weight_dtype = weight.dtype
        loss, nll, divergence = sums.unbind()
        ctx.mark_non_differentiable(nll, divergence)
        return loss, nll, divergence


def _padded(values: Tensor, rows: int) -> Tensor:
    """Append zeros to (n, ...) such that it has `rows` rows."""
    missing = rows - len(values)
    return F.pad(values, (0, 0) * (values.dim() - 1) + (0, missing)) if missing else values


def _chunk(
    states: list[Tensor],
    matrix: Tensor,
    targets: Tensor,
    kept: Tensor,
    smoothing: float,
    alpha: float,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the three sums of a chunk, shape (3,), and the gradients of the loss with respect to
    the logits of both views, (n, V) each; targets whose `kept` is 0 do not count.
    """
    target = torch.arange(len(targets), device=targets.device), targets
    first, second = (_log_probs(F.linear(state, matrix), kept.dtype) for state in states)
    nll, even = -first[target], -first.mean(-1)
    grad, other = first.exp(), second.exp()
    apart = first.sub_(second)
    divergence = (grad * apart).sum(-1)
    other.sub_(grad).mul_(alpha * kept[:, None])
    grad.mul_(apart.sub_(divergence[:, None]).mul_(alpha).add_(1)).sub_(smoothing / len(matrix))
    grad[target] -= 1 - smoothing
    grad.mul_(kept[:, None])
    loss = (1 - smoothing) * nll + smoothing * even + alpha * divergence
    return torch.stack((loss, nll, divergence)) @ kept, (grad, other)


def _log_probs(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """`log_softmax` in `dtype`; spelled out, since torch's takes several times as long on CPUs."""
    logits = logits.to(dtype)
    logits = logits - logits.amax(-1, keepdim=True)
    return logits.sub_(logits.exp().sum(-1, keepdim=True).log_())
