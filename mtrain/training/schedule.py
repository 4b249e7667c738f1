"""Learning-rate schedules.

All rise linearly to their peak over `train.warmup_steps` and then follow a curve. To add one: a
function of the step in `CURVES`, and its name in `config/schema`.
"""

import math
from collections.abc import Callable

from mtrain.config.schema import TrainConfig

Schedule = Callable[[int], float]


def noam_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Return the paper's rate (equation 3) of a step, counted from 1.

    factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)
    """
    peak = factor * math.sqrt(1 / (d_model * warmup_steps))
    return peak * min(math.sqrt(warmup_steps / step), step / warmup_steps)


def _inverse_sqrt(step: int, train: TrainConfig) -> float:
    return math.sqrt(train.warmup_steps / step)


def _linear(step: int, train: TrainConfig) -> float:
    return 1 - _fraction(step, train)


def _cosine(step: int, train: TrainConfig) -> float:
    return 0.5 * (1 + math.cos(math.pi * _fraction(step, train)))


def _fraction(step: int, train: TrainConfig) -> float:
    """Return the fraction of the steps after the warm-up that is done."""
    warmup = train.warmup_steps
    return min(1.0, (step - warmup) / max(1, train.max_steps - warmup))


# Fraction of the peak rate at a step after the warm-up. Noam and inverse_sqrt are one curve with
# two ways to set its peak.
CURVES: dict[str, Callable[[int, TrainConfig], float]] = {
    "noam": _inverse_sqrt,
    "inverse_sqrt": _inverse_sqrt,
    "linear": _linear,
    "cosine": _cosine,
    "constant": lambda step, train: 1.0,
}


def make_schedule(train: TrainConfig, d_model: int) -> Schedule:
    """Return the learning rate as a function of the step, counted from 1."""
    warmup, curve = train.warmup_steps, CURVES[train.schedule]
    peak = train.peak_lr or noam_rate(warmup, d_model, warmup, train.lr_factor or 1.0)

    def rate(step: int) -> float:
        return peak * step / warmup if step < warmup else peak * curve(step, train)

    return rate
