"""Adam and Muon over fp32 master weights, and the moving average of these weights.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) makes momentum orthogonal
before it updates the weights. torch's own Muon supports neither stacked Q/K/V nor `found_inf`.

Shapes: `G` matrices of one shape, `R` rows, `C` columns.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim.adam import adam  # the class Adam would load torch's compiler, a second

from mtrain.training.gradients import Sums

MOMENTUM = 0.95
# Five iterations of this quintic move singular values in (0, 1] to about 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# Root mean square of an update at a rate of 1: about Adam's, so that one rate fits both (Liu et al.
# 2025, "Muon is Scalable for LLM Training", section 2.2).
RMS = 0.2

# Maximum number of values that a CPU thread updates at a time; a larger weight is its own group.
GROUP_VALUES = 1 << 17

Weights = dict[str, Tensor]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Adam:
    """Adam (section 5.3 of the paper) over fp32 weights; `moments` maps names to its state."""

    def __init__(
        self, weights: Weights, grads: list[Tensor], betas: Sequence[float], eps: float
    ) -> None:
        self.weights = list(weights.values())
        self.grads = grads
        self.betas = betas
        self.eps = eps
        self.exp_avgs = [torch.zeros_like(weight) for weight in self.weights]
        self.exp_avg_sqs = [torch.zeros_like(weight) for weight in self.weights]
        self.steps = [torch.zeros((), device=weight.device) for weight in self.weights]
        kinds = {"exp_avg": self.exp_avgs, "exp_avg_sq": self.exp_avg_sqs, "step": self.steps}
        self.moments = {
            f"{name}.{kind}": moment
            for kind, moments in kinds.items()
            for name, moment in zip(weights, moments, strict=True)
        }

    @torch.no_grad()
    def step(self, rate: float, scale: Tensor, found_inf: Tensor) -> None:
        """Scale the gradients and take a step; change no weight if `found_inf` is 1."""
        torch._foreach_mul_(self.grads, scale)
        adam(
            self.weights,
            self.grads,
            self.exp_avgs,
            self.exp_avg_sqs,
            [],
            self.steps,
            fused=True,
            found_inf=found_inf,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=rate,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )


def orthogonalize(matrices: Tensor) -> Tensor:
    """Move the singular values of (G, R, C) matrices to about 1, by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        poly = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return x.mT if is_tall else x


class Muon:
    """Muon over the layers' matrices, batched by shape; `moments` maps names to its state."""

    def __init__(
        self, weights: Weights, grads: Weights, stacked: dict[str, int], dtype: torch.dtype
    ) -> None:
        """`stacked` maps each name to the number of matrices that its weight stacks along the rows;
        the Newton-Schulz iterations compute in `dtype`.
        """
        self.dtype = dtype
        momenta = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.moments = {f"{name}.momentum": momentum for name, momentum in momenta.items()}
        # by shape of a matrix: views of weights, gradients and momenta
        self.groups: dict[torch.Size, tuple[list[Tensor], list[Tensor], list[Tensor]]] = {}
        for name in weights:
            chunks = [x[name].chunk(stacked[name]) for x in (weights, grads, momenta)]
            group = self.groups.setdefault(chunks[0][0].shape, ([], [], []))
            for views, matrices in zip(group, chunks, strict=True):
                views.extend(matrices)

    @torch.no_grad()
    def step(self, rate: float, scale: Tensor, found_inf: Tensor) -> None:
        """Scale the gradients and take a step; change no weight if `found_inf` is 1."""
        is_finite = found_inf == 0
        for (rows, columns), (weights, grads, momenta) in self.groups.items():
            grad = torch.stack(grads) * scale
            before = torch.stack(momenta)
            after = before * MOMENTUM + grad
            torch._foreach_copy_(momenta, torch.where(is_finite, after, before).unbind())
            update = orthogonalize((grad + after * MOMENTUM).to(self.dtype)).float()
            update *= -rate * RMS * max(rows, columns) ** 0.5
            torch._foreach_add_(weights, torch.where(is_finite, update, 0.0).unbind())


class MovingAverage:
    """The exponential moving average of the weights over the steps."""

    def __init__(self, weights: Weights, decay: float) -> None:
        self.latest = list(weights.values())
        self.decay = decay
        self.values = {name: weight.clone() for name, weight in weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of a step; early steps use a smaller decay, so that the random
        initialization is forgotten.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.values.values()), self.latest, 1 - decay)


def grouped(weights: Weights, max_values: float) -> list[Weights]:
    """Divide weights into groups of up to `max_values` values; a larger weight is its own group."""
    groups: list[Weights] = []
    size = 0
    for name, weight in weights.items():
        if not groups or size + weight.numel() > max_values:
            groups.append({})
            size = 0
        groups[-1][name] = weight
        size += weight.numel()
    return groups


def norm_of(tensors: list[Tensor]) -> Tensor:
    """Return the norm of the values of all tensors together."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm


class Optimizer:
    """Adam with fp32 master weights and gradients for a model that may compute in bf16; Muon for
    the matrices that `muon` names.

    `sums` holds the fp32 gradients and losses of a step (loss, NLL and, with two views,
    divergence). `update` divides the gradients by the tokens of the whole step, clips their norm
    and updates the masters, then the model's parameters. The masters of an fp32 model are its
    parameters. On a CPU, the threads of `pool` update groups of weights, which do not depend on
    the number of threads.
    """

    def __init__(
        self,
        model: nn.Module,
        betas: Sequence[float],
        eps: float,
        muon: dict[str, int],
        num_losses: int,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        """`muon` maps the weights that Muon updates to the number of matrices stacked in each."""
        self.pool = pool
        named = dict(model.named_parameters())
        self.parameters = list(named.values())
        self.weights: Weights = {  # the masters
            name: p.detach() if p.dtype != torch.bfloat16 else p.detach().float()
            for name, p in named.items()
        }
        self.sums = Sums(list(self.weights.values()), num_losses)
        self.losses, self.grads = self.sums.losses, self.sums.grads
        max_values = GROUP_VALUES if self.losses.device.type == "cpu" else math.inf
        copied = {name: w for name, w in self.weights.items() if w.dtype != named[name].dtype}
        self._copies = [  # the parameters of a group, and their masters
            ([named[name].detach() for name in group], list(group.values()))
            for group in grouped(copied, max_values)
        ]
        grads = dict(zip(self.weights, self.grads, strict=True))
        rest = {name: weight for name, weight in self.weights.items() if name not in muon}
        self.rules: list[Adam | Muon] = [
            Adam(group, [grads[name] for name in group], betas, eps)
            for group in grouped(rest, max_values)
        ]
        # sorted by shape: Muon updates matrices of the same shape in a group together
        shapes = {name: self.weights[name].shape for name in muon}
        by_shape = sorted(muon, key=lambda name: (shapes[name][0] // muon[name], *shapes[name]))
        for group in grouped({name: self.weights[name] for name in by_shape}, max_values):
            self.rules.append(Muon(group, grads, muon, named[by_shape[0]].dtype))

    def update(self, rate: float, num_tokens: int, clip_norm: float) -> Tensor:
        """Take one step and return the norm of the gradient of the mean loss, before clipping. If
        the norm is not finite, no weight changes.
        """
        # in the pool: rounding depends on the number of OpenMP threads, which is fixed there
        [total_norm] = self.run_in_pool(norm_of, [self.grads])
        norm: Tensor = total_norm / num_tokens
        scale = torch.full_like(norm, 1 / num_tokens)
        if clip_norm > 0:
            scale = scale * (clip_norm / (norm + 1e-6)).clamp(max=1.0)
        found_inf = (~norm.isfinite()).float()
        self.run_in_pool(lambda rule: rule.step(rate, scale, found_inf), self.rules)
        self.copy_to_model()
        return norm

    def copy_to_model(self) -> None:
        """Copy the masters into the model's parameters, where these are of another type."""
        self.run_in_pool(lambda copy: torch._foreach_copy_(*copy), self._copies)

    def run_in_pool(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Return the results of a function for each item, computed by the threads of the pool if
        there is one.
        """
        return list((self.pool.map if self.pool else map)(function, items))

    def moments(self) -> Weights:
        """Return the state of Adam and Muon by name."""
        return {name: moment for rule in self.rules for name, moment in rule.moments.items()}


def copy_values(tensors: Weights, values: Weights) -> None:
    """Copy `values` into the tensors of the same names."""
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
