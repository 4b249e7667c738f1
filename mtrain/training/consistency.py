"""The consistency loss of SimCut (Gao et al. 2022, arXiv 2206.02368, equation 5), as sums over
target tokens.

View 1 is a micro-batch as it is, view 2 the same with some token embeddings set to zero; each has
its own dropout. The loss is the label-smoothed cross entropy of view 1 plus alpha times
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
        view1: Tensor,
        view2: Tensor,
        weight: Tensor,
        targets: Tensor,
        real: Tensor,
        smoothing: float,
        alpha: float,
    ) -> tuple[Tensor, ...]:
        rows = chunk_rows(2 * len(view1), len(weight), weight.device.type)
        matrix = weight.to(view1.dtype)
        sum_dtype = torch.promote_types(view1.dtype, torch.float32)
        sums = torch.zeros(3, dtype=sum_dtype, device=view1.device)
        differentiate = any(ctx.needs_input_grad)
        grads = [torch.empty_like(view1), torch.empty_like(view2)] if differentiate else []
        weight_grad = torch.zeros_like(weight, dtype=sum_dtype) if differentiate else None
        for start in range(0, len(view1), rows):
            count = min(rows, len(view1) - start)
            part = slice(start, start + count)
            states = [_padded(view[part], rows) for view in (view1, view2)]
            target = _padded(targets[part], rows)
            mask = _padded(real[part], rows).to(sum_dtype)
            chunk_sums, logit_grads = _chunk(states, matrix, target, mask, smoothing, alpha)
            sums += chunk_sums
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
    """Append rows of zeros to (n, ...) up to `rows` rows."""
    missing = rows - len(values)
    return F.pad(values, (0, 0) * (values.dim() - 1) + (0, missing)) if missing else values


def _chunk(
    states: list[Tensor],
    matrix: Tensor,
    targets: Tensor,
    mask: Tensor,
    smoothing: float,
    alpha: float,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the three sums of a chunk, shape (3,), and the gradients of the loss with respect to
    the logits of both views, (n, V) each; targets whose `mask` is 0 do not count.
    """
    target = torch.arange(len(targets), device=targets.device), targets
    log_p1, log_p2 = (_log_probs(F.linear(state, matrix), mask.dtype) for state in states)
    nll, uniform = -log_p1[target], -log_p1.mean(-1)  # `uniform`: mean NLL of all V entries
    grad1, grad2 = log_p1.exp(), log_p2.exp()  # probabilities, turned into gradients in place
    log_ratio = log_p1.sub_(log_p2)
    divergence = (grad1 * log_ratio).sum(-1)
    grad2.sub_(grad1).mul_(alpha * mask[:, None])
    scale = log_ratio.sub_(divergence[:, None]).mul_(alpha).add_(1)
    grad1.mul_(scale).sub_(smoothing / len(matrix))
    grad1[target] -= 1 - smoothing
    grad1.mul_(mask[:, None])
    loss = (1 - smoothing) * nll + smoothing * uniform + alpha * divergence
    return torch.stack((loss, nll, divergence)) @ mask, (grad1, grad2)


def _log_probs(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute `log_softmax` in `dtype`; torch's own is several times slower on CPUs."""
    logits = logits.to(dtype)
    logits = logits - logits.amax(-1, keepdim=True)
    return logits.sub_(logits.exp().sum(-1, keepdim=True).log_())
