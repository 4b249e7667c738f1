"""Learning-rate schedules: a linear warm-up to the peak rate, then a function for each schedule.

A new schedule is a function here, an entry of `DECAYS` and a choice of `train.schedule` in
config/schema; its own settings belong in `TrainConfig`.
"""

import math
from collections.abc import Callable

from mtrain.config.schema import TrainConfig

Schedule = Callable[[int], float]


def make_schedule(train: TrainConfig, d_model: int) -> Schedule:
    """Return the function from a step, counted from 1, to its learning rate."""
    warmup = train.warmup_steps
    decay = DECAYS[train.schedule]
    # equation 3 of the paper at the end of the warm-up
    peak = train.peak_lr or (train.lr_factor or 1.0) * math.sqrt(1 / (d_model * warmup))

    def rate(step: int) -> float:
        if step < warmup:
            return peak * step / warmup
        return peak * decay(step, train)

    return rate


def _progress(step: int, train: TrainConfig) -> float:
    """Return the fraction of the steps after the warm-up that are done."""
    return min(1.0, (step - train.warmup_steps) / (train.max_steps - train.warmup_steps))


def _inverse_sqrt(step: int, train: TrainConfig) -> float:
    return math.sqrt(train.warmup_steps / step)


# The rate of a step after the warm-up, as a fraction of the peak rate.
DECAYS: dict[str, Callable[[int, TrainConfig], float]] = {
    "noam": _inverse_sqrt,  # the same curve: peak_lr or lr_factor sets its height
    "inverse_sqrt": _inverse_sqrt,
    "linear": lambda step, train: 1 - _progress(step, train),
    "cosine": lambda step, train: 0.5 * (1 + math.cos(math.pi * _progress(step, train))),
    "constant": lambda step, train: 1.0,
}
