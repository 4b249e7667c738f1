"""A device that is missing is named with the reason and what to do."""

from __future__ import annotations

import pytest
import torch

from mtrain.runtime.device import compute_dtype, pick_device
from mtrain.runtime.errors import RefusedError


@pytest.mark.parametrize(
    ("is_built", "count", "words"),
    [
        (False, 0, rf"device cuda:3: torch {torch.__version__} is a build for CPUs.*; install one"),
        (True, 0, "device cuda:3: torch finds no CUDA device; see whether nvidia-smi lists one"),
        (True, 2, "device cuda:3: this machine has 2 CUDA devices, numbered from 0; use a lower"),
    ],
)
def test_why_a_gpu_is_missing(
    monkeypatch: pytest.MonkeyPatch, is_built: bool, count: int, words: str
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(RefusedError, match=words.replace("+", r"\+")):
        pick_device("cuda:3")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(RefusedError, match="precision fp16: unknown; use auto, fp32 or bf16"):
        compute_dtype("fp16", torch.device("cpu"), training=False)
