"""The losses, as sums over target tokens, fused with the projection onto the vocabulary.

1. `projected_cross_entropy`  label-smoothed cross entropy (section 5.4 of the paper)
2. `consistency_loss`         the same plus the divergence of two views, from SimCut (Gao et al.
                              2022, arXiv 2206.02368, equation 5)

Projection, loss and gradients are computed in one pass, chunk by chunk: the (N, V) logits never
exist as a whole. Smoothing is torch's: the true token keeps 1 - eps, and eps is divided by all V
entries of the vocabulary (by V - 1 in fairseq).
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.runtime.device import as_output

# Logits per chunk, which bounds memory: a CPU is fastest within its cache, a GPU needs work for
# all its cores.
CHUNK_VALUES = {"cpu": 1 << 20, "cuda": 1 << 28}
CHUNK_ROWS = 512  # rows of logits that a chunk may always have
ROW_MULTIPLE = 32  # of a chunk's rows; see `_padded`


class Loss(NamedTuple):
    """Sums over tokens, in nats: the smoothed loss and the negative log-likelihood."""

    loss_sum: Tensor
    nll_sum: Tensor


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, real: Tensor | None = None
) -> Loss:
    """Return the sums over (N,) targets, from (N, D) hidden states and the (V, D) output matrix;
    a mask `real` (N,) leaves the other targets out.
    """
    sums = _Projected.apply(hidden, weight, targets, smoothing, real)  # type: ignore[no-untyped-call]
    return Loss(*sums)


class FusedLoss(torch.autograd.Function):
    """A loss whose `forward` saves the gradients of its hidden states and of the output matrix."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the saved gradients, in place; the remaining arguments of `forward` have none."""
        scale = grads[0]
        *state_grads, weight_grad = ctx.saved_tensors
        for grad in state_grads:
            grad *= scale.to(grad.dtype)
        weight_grad *= scale
        without_grad = len(ctx.needs_input_grad) - len(state_grads) - 1
        return *state_grads, weight_grad.to(ctx.weight_dtype), *[None] * without_grad


class _Projected(FusedLoss):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        real: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if real is not None:
            hidden = hidden * real[:, None]  # adds 0 to the matrix's gradient
        rows = chunk_rows(len(hidden), len(weight), weight.device.type)
        matrix = weight.to(hidden.dtype)
        sum_dtype = torch.promote_types(hidden.dtype, torch.float32)
        mean_row = matrix.mean(0, dtype=sum_dtype)  # a state times this: the mean of its logits
        # `uniform_sum`: smoothing's part of the loss, the mean NLL of all V entries of each target
        nll_sum, uniform_sum = torch.zeros(2, dtype=sum_dtype, device=hidden.device)
        smallest = torch.finfo(sum_dtype).tiny
        hidden_grad = torch.empty_like(hidden)
        # smoothing subtracts the same from the gradients of all V rows
        of_each_row = hidden.sum(0, dtype=sum_dtype) * (-smoothing / len(weight))
        weight_grad = of_each_row.repeat(len(weight), 1)
        for start in range(0, len(hidden), rows):
            count = min(rows, len(hidden) - start)
            target = torch.arange(count, device=targets.device), targets[start : start + count]
            part = _padded(hidden[start : start + count], rows, hidden.dtype)
            logits = F.linear(part, matrix)
            logit = logits[target]
            # ten times as fast on CPUs as log_softmax; a probability of 0 counts as 87 nats, with
            # the right gradient
            probs = torch.softmax(logits, -1, out=as_output(logits))  # saves memory and time
            prob = probs[target].to(sum_dtype)
            nll = -prob.clamp(min=smallest).log()
            uniform = nll + logit - part[:count].to(sum_dtype) @ mean_row
            if real is not None:
                mask = real[start : start + count]
                nll, uniform = nll * mask, uniform * mask
            nll_sum += nll.sum()
            uniform_sum += uniform.sum()
            # subtract 1 - eps at the target; `of_each_row` and `mean_row` subtract eps / V
            probs[target] = (prob - (1 - smoothing)).to(probs.dtype)
            hidden_grad[start : start + count] = (probs @ matrix)[:count] - smoothing * mean_row
            _add_product(weight_grad, probs.t(), part)  # rows of padding are 0
        if real is not None:
            hidden_grad *= real[:, None]
        loss_sum = (1 - smoothing) * nll_sum + smoothing * uniform_sum
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(nll_sum)
        return loss_sum, nll_sum


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of two matrices to `total`, which may have a wider type."""
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


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

    View 1 is a micro-batch as it is, view 2 the same with some token embeddings set to zero; each
    has its own dropout. The loss is the cross entropy of view 1 plus alpha times KL(p1 || p2), the
    divergence of the distributions of the next token; gradients reach both views.
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
        # the width of a chunk is 2V, as it holds the logits of both views
        rows = chunk_rows(len(view1), 2 * len(weight), weight.device.type)
        matrix = weight.to(view1.dtype)
        sum_dtype = torch.promote_types(view1.dtype, torch.float32)
        sums = torch.zeros(3, dtype=sum_dtype, device=view1.device)
        grads = torch.empty_like(view1), torch.empty_like(view2)
        weight_grad = torch.zeros_like(weight, dtype=sum_dtype)
        for start in range(0, len(view1), rows):
            count = min(rows, len(view1) - start)
            part = slice(start, start + count)
            padded = [_padded(x[part], rows, view1.dtype) for x in (view1, view2, targets, real)]
            *states, target, mask = padded
            mask = mask.to(sum_dtype)
            chunk_sums, logit_grads = _chunk(states, matrix, target, mask, smoothing, alpha)
            sums += chunk_sums
            for grad, state, logit_grad in zip(grads, states, logit_grads, strict=True):
                logit_grad = logit_grad.to(matrix.dtype)
                grad[part] = (logit_grad @ matrix)[:count]
                _add_product(weight_grad, logit_grad.t(), state)
        ctx.save_for_backward(*grads, weight_grad)
        ctx.weight_dtype = weight.dtype
        loss, nll, divergence = sums.unbind()
        ctx.mark_non_differentiable(nll, divergence)
        return loss, nll, divergence


def _padded(values: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Append rows of zeros to (n, ...), up to `rows` rows, if products are computed in bf16: oneDNN
    generates code for each number of rows.
    """
    missing = rows - len(values) if dtype == torch.bfloat16 else 0
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
    nll = -log_p1[target]
    uniform = -log_p1.mean(-1)  # mean NLL of all V entries
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


def chunk_rows(count: int, width: int, device: str) -> int:
    """Return the number of rows per chunk for `count` rows of `width` logits; the last chunk may
    have fewer.
    """
    max_rows = max(CHUNK_ROWS, CHUNK_VALUES.get(device, CHUNK_VALUES["cpu"]) // width)
    chunks = math.ceil(count / max_rows)
    return ROW_MULTIPLE * math.ceil(count / chunks / ROW_MULTIPLE)
