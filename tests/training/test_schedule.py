"""Learning rates against the paper's formula and tables by hand."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrain.config.schema import TrainConfig
from mtrain.training.schedule import DECAYS, make_schedule


def test_every_schedule_of_the_config_is_there() -> None:
    assert set(DECAYS) == set(get_args(TrainConfig.model_fields["schedule"].annotation))


@given(
    step=st.integers(1, 10**6),
    warmup=st.integers(1, 10**5),
    width=st.sampled_from([16, 512, 1024]),
    factor=st.floats(0.1, 10),
)
def test_noam_is_the_papers_formula(step: int, warmup: int, width: int, factor: float) -> None:
    expected = factor * width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    config = TrainConfig(warmup_steps=warmup, lr_factor=factor)
    assert make_schedule(config, width)(step) == pytest.approx(expected, rel=1e-9)
    assert make_schedule(TrainConfig(), 512)(4000) == pytest.approx(6.987712e-4, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # steps 1, 5, 10 (the end of the warm-up), 40, 60, 110 (the last), 200
        ("noam", [0.1, 0.5, 1.0, 0.5, 0.4082483, 0.3015113, 0.2236068]),
        ("inverse_sqrt", [0.1, 0.5, 1.0, 0.5, 0.4082483, 0.3015113, 0.2236068]),
        ("linear", [0.1, 0.5, 1.0, 0.7, 0.5, 0.0, 0.0]),
        ("cosine", [0.1, 0.5, 1.0, 0.7938926, 0.5, 0.0, 0.0]),
        ("constant", [0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules_by_hand(schedule: Any, rates: list[float]) -> None:
    config = TrainConfig(schedule=schedule, peak_lr=2e-3, warmup_steps=10, max_steps=110)
    rate = make_schedule(config, 64)
    found = [rate(step) / 2e-3 for step in (1, 5, 10, 40, 60, 110, 200)]
    assert found == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_no_warm_up_starts_at_the_peak(schedule: Any) -> None:
    config = TrainConfig(schedule=schedule, peak_lr=0.5, warmup_steps=0, max_steps=10**6)
    assert make_schedule(config, 64)(1) == pytest.approx(0.5, rel=1e-5)
