"""Label-smoothed cross entropy (section 5.4 of the paper) as sums over target tokens.

Smoothing is torch's: the true token keeps 1 - eps, and eps is divided by all V entries of the
vocabulary (by V - 1 in fairseq).
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits computed at a time, which bounds memory: a CPU is fastest within its cache, a GPU needs
# work for all its cores.
CHUNK_VALUES = {"cpu": 1 << 20, "cuda": 1 << 28}
CHUNK_ROWS = 512  # rows of logits computed at a time, at least
ROW_MULTIPLE = 32  # of a chunk's rows: oneDNN generates code for each number of rows


class Loss(NamedTuple):
    """Sums over tokens, in nats: the smoothed loss and the negative log-likelihood."""

    loss_sum: Tensor
    nll_sum: Tensor


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, real: Tensor | None = None
) -> Loss:
    """Return the sums over (N,) targets, from (N, D) hidden states and the (V, D) output matrix;
    a mask `real` (N,) leaves the other targets out.

    Projection, loss and gradients are computed in one pass, chunk by chunk: the (N, V) logits never
    exist as a whole.
    """
    if real is not None:
        real = real.to(hidden.dtype)
    sums = _Projected.apply(hidden, weight, targets, smoothing, real)  # type: ignore[no-untyped-call]
    return Loss(*sums)


class FusedLoss(torch.autograd.Function):
    """A loss whose `forward` saves its gradients: of hidden states, then of the output matrix."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return these gradients of the first arguments, scaled."""
        *states, weight = ctx.saved_tensors
        found = [state * grads[0].to(state.dtype) for state in states]
        others = len(ctx.needs_input_grad) - len(found) - 1
        return *found, (weight * grads[0]).to(ctx.weight_dtype), *[None] * others


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
        wide = torch.promote_types(hidden.dtype, torch.float32)
        mean_row = matrix.mean(0, dtype=wide)  # times a state: the mean of its logits
        nll_sum, even_sum = torch.zeros(2, dtype=wide, device=hidden.device)
        least = torch.finfo(wide).tiny
        differentiate = any(ctx.needs_input_grad)
        hidden_grad = torch.empty_like(hidden) if differentiate else None
        weight_grad = torch.zeros_like(weight, dtype=wide) if differentiate else None
        for start in range(0, len(hidden), rows):
            count = min(rows, len(hidden) - start)
            target = torch.arange(count, device=targets.device), targets[start : start + count]
            part = hidden[start : start + count]
            if count < rows:
                part = F.pad(part, (0, 0, 0, rows - count))
            logits = F.linear(part, matrix)
            probs = logits.softmax(-1)
            # ten times faster on CPUs than log_softmax; a probability of 0 counts as 87 nats, with
            # the right gradient
            prob = probs[target].to(wide)
            nll = -prob.clamp(min=least).log()
            even = nll + logits[target] - part[:count].to(wide) @ mean_row
            if real is not None:
                nll, even = (values * real[start : start + count] for values in (nll, even))
            nll_sum += nll.sum()
            even_sum += even.sum()
            if hidden_grad is not None and weight_grad is not None:
                # subtract 1 - eps at the target; eps / V of all entries is subtracted at the end
                probs[target] = (prob - (1 - smoothing)).to(probs.dtype)
                hidden_grad[start : start + count] = (probs @ matrix)[:count] - smoothing * mean_row
                weight_grad += probs.t() @ part  # rows of padding are 0
        if hidden_grad is not None and real is not None:
            hidden_grad *= real[:, None]
        loss_sum = (1 - smoothing) * nll_sum + smoothing * even_sum
        if weight_grad is not None:
            weight_grad -= smoothing / len(weight) * hidden.sum(0, dtype=wide)
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(nll_sum)
        return loss_sum, nll_sum


def chunk_rows(count: int, vocab_size: int, device: str) -> int:
    """Return the rows of a chunk of `count` rows of logits: chunks of one size, the last padded."""
    most = max(CHUNK_ROWS, CHUNK_VALUES.get(device, CHUNK_VALUES["cpu"]) // vocab_size)
    chunks = max(1, math.ceil(count / most))
    return ROW_MULTIPLE * max(1, math.ceil(count / chunks / ROW_MULTIPLE))
