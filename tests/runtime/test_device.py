"""A device that is missing is named with the reason and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtrain.runtime import device
from mtrain.runtime.device import (
    as_output,
    can_compile,
    compute_dtype,
    has_fast_bf16,
    out_of_memory_as,
    pick_device,
    record_graph,
)
from mtrain.runtime.errors import NO_THREAD, RefusedError, UserError


@pytest.mark.slow
def test_torch_is_set_up_for_cuda_and_reads_the_variables_for_it() -> None:
    code = """
import os, torch
from mtrain.runtime import device
torch.cuda.set_device = lambda device: None
device.set_up_cuda(torch.device("cuda", 0))
from torch._inductor import config
assert not config.triton.mix_order_reduction
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
assert torch.are_deterministic_algorithms_enabled()
assert not torch.utils.deterministic.fill_uninitialized_memory
assert not torch.backends.cuda.flash_sdp_enabled()
assert not torch.backends.cuda.cudnn_sdp_enabled()
"""
    names = os.environ.keys() - {"CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_MIX_ORDER_REDUCTION"}
    environment = {name: os.environ[name] for name in names}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("is_built", "count", "words"),
    [
        (False, 0, rf"device cuda:3: torch {torch.__version__} is a build for CPUs.*; install one"),
        (True, 0, "device cuda:3: torch finds no CUDA device; see whether nvidia-smi lists one"),
        (True, 3, "device cuda:3: this machine has 3 CUDA devices, numbered from 0; use a lower"),
    ],
)
def test_why_a_gpu_is_missing(
    monkeypatch: pytest.MonkeyPatch, is_built: bool, count: int, words: str
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(RefusedError, match=words.replace("+", r"\+")):
        pick_device("cuda:3")


@pytest.mark.parametrize(
    ("name", "gpus", "has_mps", "expected"),
    [
        *(("auto", 2, True, "cuda:0"), ("auto", 0, True, "mps"), ("auto", 0, False, "cpu")),
        *(("cuda", 2, False, "cuda:0"), ("cuda:1", 2, False, "cuda:1")),
        *(("cpu", 2, True, "cpu"), ("mps", 2, True, "mps")),
    ],
)
def test_the_device_that_a_name_means(
    monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, has_mps: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert str(pick_device(name)) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mps", "device mps: not available on this machine; use cpu"),
        *((name, f"device {name}: unknown; use auto, ") for name in ("gpu", "cuda:x", "cpu:0", "")),
    ],
)
def test_a_device_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(RefusedError, match=words):
        pick_device(name)


def test_bf16_that_a_gpu_emulates_is_not_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert not has_fast_bf16(torch.device("cuda", 0))
    assert not has_fast_bf16(torch.device("mps"))


@pytest.mark.parametrize(
    ("precision", "name", "training", "if_fast", "if_slow"),
    [
        ("auto", "cpu", True, torch.bfloat16, torch.float32),
        ("auto", "cpu", False, torch.float32, torch.float32),
        *(("auto", "cuda", training, torch.bfloat16, torch.float32) for training in (True, False)),
        ("fp32", "cuda", True, torch.float32, torch.float32),
        ("bf16", "cpu", False, torch.bfloat16, torch.bfloat16),
    ],
)
def test_auto_is_bf16_where_it_is_fast_but_not_for_translations_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    name: str,
    training: bool,
    if_fast: torch.dtype,
    if_slow: torch.dtype,
) -> None:
    for is_fast, expected in ((True, if_fast), (False, if_slow)):
        monkeypatch.setattr(device, "has_fast_bf16", lambda device, is_fast=is_fast: is_fast)
        assert compute_dtype(precision, torch.device(name), training=training) == expected


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


def test_no_kernel_works_in_place_on_mps() -> None:
    for name in ("cpu", "cuda", "mps"):
        tensor: Any = SimpleNamespace(device=torch.device(name))
        assert as_output(tensor) is (None if name == "mps" else tensor)


@pytest.mark.parametrize("text", NO_THREAD)
def test_a_lack_of_threads_is_not_one_of_memory(text: str) -> None:
    expected = pytest.raises(UserError, match=r"cannot start another thread; .*ulimit -u")
    with expected, out_of_memory_as("no memory for this"):
        raise RuntimeError(text)


@pytest.mark.parametrize(
    ("capability", "compiler", "has_triton", "headers", "expected"),
    [
        ((7, 0), sys.executable, True, Path(__file__), True),
        ((6, 1), sys.executable, True, Path(__file__), False),
        ((7, 0), "/none", True, Path(__file__), False),
        ((7, 0), sys.executable, None, Path(__file__), False),
        ((7, 0), sys.executable, True, Path("/none"), False),
    ],
)
def test_what_compiling_for_a_gpu_needs_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    compiler: str,
    has_triton: bool | None,
    headers: Path,
    expected: bool,
) -> None:
    capabilities = {torch.device("cuda", 1): capability}  # of the GPU that is asked about
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.get)
    monkeypatch.setattr(device, "find_spec", lambda name: has_triton)
    monkeypatch.setattr(device, "Path", lambda *parts: headers)
    monkeypatch.setenv("CC", compiler)
    assert can_compile(torch.device("cuda", 1)) is expected


def use_fake_graphs(monkeypatch: pytest.MonkeyPatch, record: Callable[..., Any]) -> None:
    """Record graphs on the CPU by a context manager."""
    fakes = {"CUDAGraph": lambda: SimpleNamespace(replay=None), "graph": record}
    fakes |= {"device": nullcontext, "stream": nullcontext, "current_stream": id}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(device, "_recording_stream", lambda device: None)


def test_a_lack_of_memory_in_a_recording_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a recording that failed is another error."""

    @contextmanager
    def record(*_: object, **__: object) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    def lack() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    use_fake_graphs(monkeypatch, record)
    with pytest.raises(torch.OutOfMemoryError):
        record_graph(lack, torch.device("cpu"), None)
    with pytest.raises(RuntimeError, match="due to a previous error"):
        record_graph(lambda: None, torch.device("cpu"), None)


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

    use_fake_graphs(monkeypatch, record)

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


@pytest.mark.slow
def test_limits_of_onednn_count() -> None:
    """As on a CPU with AVX2 alone, where torch refuses to pack matrices of bf16."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", PRODUCT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "torch.float32\ntensor(728., dtype=torch.bfloat16)\n"
