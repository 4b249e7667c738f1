"""A device that is missing is named with the reason and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch

from mtrain.runtime import device
from mtrain.runtime.device import (
    can_compile,
    compute_dtype,
    out_of_memory_as,
    pick_device,
    record_graph,
)
from mtrain.runtime.errors import NO_THREAD, RefusedError, UserError


def test_torch_reads_the_variables_for_cuda_after_they_are_set() -> None:
    code = """
import os, torch
from mtrain.runtime import device
torch.cuda.set_device = lambda device: None
device.set_up_cuda(torch.device("cuda", 0))
from torch._inductor import config
assert not config.triton.mix_order_reduction
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
"""
    names = os.environ.keys() - {"CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_MIX_ORDER_REDUCTION"}
    environment = {name: os.environ[name] for name in names}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


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


@pytest.mark.parametrize(
    ("error", "is_lack"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("unable to mmap 9 bytes from file <m>: Cannot allocate memory (12)"), True),
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_lack_of_memory_is_told_in_words(error: Exception, is_lack: bool) -> None:
    expected = pytest.raises(UserError if is_lack else RuntimeError)
    with expected as caught, out_of_memory_as("no memory for this"):
        raise error
    assert str(caught.value) == ("no memory for this" if is_lack else str(error))


@pytest.mark.parametrize("text", NO_THREAD)
def test_a_lack_of_threads_is_not_one_of_memory(text: str) -> None:
    expected = pytest.raises(UserError, match=r"cannot start another thread; .*ulimit -u")
    with expected, out_of_memory_as("no memory for this"):
        raise RuntimeError(text)


def test_a_gpu_that_torch_cannot_compile_for_is_found_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capabilities = {torch.device("cuda", 0): (6, 1), torch.device("cuda", 1): (8, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.get)
    monkeypatch.setattr(device, "find_spec", lambda name: True)
    monkeypatch.setattr(device, "Path", lambda *parts: Path(__file__))
    for name, compiler, expected in (
        ("cuda:0", sys.executable, False),
        ("cuda:1", sys.executable, True),
        ("cuda:1", "/none", False),
    ):
        monkeypatch.setenv("CC", compiler)
        assert can_compile(torch.device(name)) is expected


def test_models_in_several_threads_record_graphs_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch records only one graph at a time in a process."""
    barrier, open_recordings = Barrier(4), []

    @contextmanager
    def record(graph: object, *_: object, **__: object) -> Iterator[None]:
        assert not open_recordings
        open_recordings.append(graph)
        yield
        open_recordings.clear()

    fakes = {"CUDAGraph": lambda: SimpleNamespace(replay=None), "graph": record}
    fakes |= {"device": nullcontext, "stream": nullcontext, "current_stream": id}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(device, "_recording_stream", lambda device: None)

    def run(_: int) -> None:
        barrier.wait()
        record_graph(lambda: time.sleep(0.05), torch.device("cpu"), None)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [None] * 4


PRODUCT = """
import torch
from mtrain.model.cpu import packed_product
from mtrain.runtime.device import compute_dtype
matrix = torch.ones(9, 9, dtype=torch.bfloat16)
print(compute_dtype("auto", torch.device("cpu"), training=True))
print(packed_product(matrix, None)(matrix).sum())
"""


def test_limits_of_onednn_count() -> None:
    """As on a CPU with AVX2 alone, where torch refuses to pack matrices of bf16."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", PRODUCT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "torch.float32\ntensor(728., dtype=torch.bfloat16)\n"
