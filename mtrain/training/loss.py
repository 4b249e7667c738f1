"""Label-smoothed cross entropy (section 5.4 of the paper) as sums over target tokens.

Smoothing is torch's: the true token keeps 1 - eps, and eps is divided by all V entries of the
vocabulary (by V - 1 in fairseq).
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits per chunk, which bounds memory: a CPU is fastest within its cache, a GPU needs work for
# all its cores.
CHUNK_VALUES = {"cpu": 1 << 20, "cuda": 1 << 28}
CHUNK_ROWS = 512  # rows of logits that a chunk may always have
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
    """A loss whose `forward` saves the gradients of its hidden states and of the output matrix."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the saved gradients; the remaining arguments of `forward` have none."""
        scale = grads[0]
        *saved, weight_grad = ctx.saved_tensors
        state_grads = [grad * scale.to(grad.dtype) for grad in saved]
        without_grad = len(ctx.needs_input_grad) - len(state_grads) - 1
        return *state_grads, (weight_grad * scale).to(ctx.weight_dtype), *[None] * without_grad


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
        differentiate = any(ctx.needs_input_grad)
        hidden_grad = torch.empty_like(hidden) if differentiate else None
        weight_grad = torch.zeros_like(weight, dtype=sum_dtype) if differentiate else None
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
            prob = probs[target].to(sum_dtype)
            nll = -prob.clamp(min=smallest).log()
            uniform = nll + logits[target] - part[:count].to(sum_dtype) @ mean_row
            if real is not None:
                mask = real[start : start + count]
                nll, uniform = nll * mask, uniform * mask
            nll_sum += nll.sum()
            uniform_sum += uniform.sum()
            if hidden_grad is not None and weight_grad is not None:
                # subtract 1 - eps at the target; eps / V of all entries is subtracted at the end
                probs[target] = (prob - (1 - smoothing)).to(probs.dtype)
                hidden_grad[start : start + count] = (probs @ matrix)[:count] - smoothing * mean_row
                weight_grad += probs.t() @ part  # rows of padding are 0
        if hidden_grad is not None and real is not None:
            hidden_grad *= real[:, None]
        loss_sum = (1 - smoothing) * nll_sum + smoothing * uniform_sum
        if weight_grad is not None:
            weight_grad -= smoothing / len(weight) * hidden.sum(0, dtype=sum_dtype)
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(nll_sum)
        return loss_sum, nll_sum


def chunk_rows(count: int, vocab_size: int, device: str) -> int:
    """Return the rows of each chunk of `count` rows of logits; the last chunk is padded."""
    max_rows = max(CHUNK_ROWS, CHUNK_VALUES.get(device, CHUNK_VALUES["cpu"]) // vocab_size)
    chunks = max(1, math.ceil(count / max_rows))
    return ROW_MULTIPLE * max(1, math.ceil(count / chunks / ROW_MULTIPLE))
