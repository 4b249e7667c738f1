"""Muon: momentum, made orthogonal before it updates the weights (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon). torch's own takes no stacked Q/K/V and no `found_inf`.

Shapes: `G` matrices of one shape, `R` rows, `C` columns.
"""

import torch
from torch import Tensor

MOMENTUM = 0.95
# Five iterations of this quintic move singular values in (0, 1] to about 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# Root mean square of an update at a rate of 1: about Adam's, so that one rate fits both (Liu et al.
# 2025, "Muon is Scalable for LLM Training", section 2.2).
RMS = 0.2


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
    """Muon over the matrices of a model's layers, batched by shape; `moments` is its state by
    name.
    """

    def __init__(
        self,
        weights: dict[str, Tensor],
        grads: dict[str, Tensor],
        stacked: dict[str, int],
        dtype: torch.dtype,
    ) -> None:
        """`stacked` maps the weights to update to the number of matrices stacked in each along its
        rows; `dtype` is that of the Newton-Schulz iterations.
        """
        self.dtype = dtype
        momenta = {name: torch.zeros_like(weights[name]) for name in stacked}
        self.moments = {f"{name}.momentum": momentum for name, momentum in momenta.items()}
        # by shape: views of weights, gradients and momenta
        self.groups: dict[torch.Size, tuple[list[Tensor], list[Tensor], list[Tensor]]] = {}
        for name, count in stacked.items():
            parts = [x[name].chunk(count) for x in (weights, grads, momenta)]
            group = self.groups.setdefault(parts[0][0].shape, ([], [], []))
            for views, part in zip(group, parts, strict=True):
                views.extend(part)

    @torch.no_grad()
    def step(self, rate: float, found_inf: Tensor) -> None:
        """Take a step, or leave everything as it is where `found_inf` is 1."""
        is_finite = found_inf == 0
        for (rows, columns), (weights, grads, momenta) in self.groups.items():
            grad, before = torch.stack(grads), torch.stack(momenta)
            after = before * MOMENTUM + grad
            torch._foreach_copy_(momenta, torch.where(is_finite, after, before).unbind())
            update = orthogonalize((grad + after * MOMENTUM).to(self.dtype)).float()
            update *= -rate * RMS * max(rows, columns) ** 0.5
            torch._foreach_add_(weights, torch.where(is_finite, update, 0.0).unbind())
