"""Checks of stored weights before a model takes them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtrain.model.building import check_weights
from mtrain.runtime.errors import UserError

FLOAT_MAX = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("changes", "largest", "message"),
    [
        ({"b": None}, None, "missing or unknown weights: b; use"),
        ({"c": torch.ones(2)}, None, "missing or unknown weights: c; use"),
        ({"a": torch.ones(3, 2).half()}, None, r"a is torch\.float16, not fp32; use"),
        ({"a": torch.ones(2, 3)}, None, r"a has shape \(2, 3\), not \(3, 2\); use"),
        ({"b": torch.tensor([1.0, math.nan])}, None, "b has values that are not finite or too"),
        ({"b": torch.tensor([1.0, -math.inf])}, None, "b has values that are not finite or too"),
        ({"b": torch.tensor([1.0, -2e5])}, None, "b has values that are not finite or too large"),
        ({"b": torch.tensor([-9e4, 9e4])}, None, None),
        ({"b": torch.tensor([2e6, 1e30])}, FLOAT_MAX, None),  # as moments may be
        ({"b": torch.tensor([2e6, math.inf])}, FLOAT_MAX, "b has values that are not finite"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    changes: dict[str, Tensor | None], largest: float | None, message: str | None
) -> None:
    parameters = {"a": torch.zeros(3, 2), "b": torch.zeros(2)}
    stored = {"a": torch.ones(3, 2), "b": torch.ones(2), **changes}
    weights = {name: weight for name, weight in stored.items() if weight is not None}
    limit = {} if largest is None else {"largest": largest}
    if message is None:
        check_weights(parameters, weights, Path("there"), **limit)
        return
    with pytest.raises(UserError, match=f"^there: {message}.* another checkpoint$"):
        check_weights(parameters, weights, Path("there"), **limit)
