"""Devices: choice, number formats, determinism, seeds, out-of-memory errors.

Importing this module sets two environment variables, unless they are set; both matter on CUDA only.
"""

import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from mtrain.runtime.errors import RefusedError, UserError, thread_limit_error

# Parts of the messages of torch, oneDNN and the operating system when a CPU runs out of memory:
# these errors have no type of their own.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "could not create a primitive", "Cannot allocate memory")
_recording = Lock()  # torch records only one CUDA graph at a time in a process

# cuBLAS reads the size of its buffers at its first product. torch.compile, which set_up_cuda loads,
# reads whether to sum a layer norm's gradients in one joint kernel, which is slower.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCHINDUCTOR_MIX_ORDER_REDUCTION", "0")


def pick_device(name: str) -> torch.device:
    """Turn auto, cpu, cuda, cuda:N or mps into a device; raises `RefusedError` if it is missing."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", name):
        raise RefusedError(
            f"device {name}: unknown; use auto, cpu, cuda, cuda:N or mps, and torchrun for several"
        )
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise RefusedError(f"device {name}: {_why_no_cuda(torch.cuda.device_count())}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise RefusedError("device mps: not available on this machine; use cpu")
    return torch.device(kind, int(index or 0)) if kind == "cuda" else torch.device(kind)


def _why_no_cuda(devices: int) -> str:
    """Return why a CUDA device is missing, and what to do."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return (
            f"torch {torch.__version__} is a build for CPUs, which cannot use a GPU; install one "
            "with CUDA (pytorch.org has the command), or use cpu"
        )
    if devices:
        return f"this machine has {devices} CUDA devices, numbered from 0; use a lower number"
    return "torch finds no CUDA device; see whether nvidia-smi lists one, or use cpu"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 products run in hardware: CUDA from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # ONEDNN_MAX_CPU_ISA may keep oneDNN from using what the CPU has
    allowed = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)()  # bool() is False
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # of some torch versions
    return allowed and any(getattr(torch.cpu, name, bool)() for name in probes)


def compute_dtype(precision: str, device: torch.device, *, training: bool) -> torch.dtype:
    """Return the number format of activations. `auto` trains in bf16 where it is fast, and
    translates in fp32 on CPUs. Raises `RefusedError` for an unknown name.
    """
    if precision not in ("auto", "fp32", "bf16"):
        raise RefusedError(f"precision {precision}: unknown; use auto, fp32 or bf16")
    if precision == "auto":
        wanted = has_fast_bf16(device) and (training or device.type == "cuda")
    else:
        wanted = precision == "bf16"
    return torch.bfloat16 if wanted else torch.float32


def set_up_cuda(device: torch.device) -> None:
    """Select this CUDA device, deterministic kernels, and the attention kernel that is fastest for
    sentences: 32 tokens take 0.3 ms, with flash attention 0.8 ms (H100).
    """
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    # avoid a kernel that writes NaN into each new tensor
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile finds what it needs for a CUDA device: a GPU from Volta on, Triton, a C
    compiler and the headers of Python.
    """
    names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    return (
        torch.cuda.get_device_capability(device) >= (7, 0)
        and find_spec("triton") is not None
        and any(map(shutil.which, names))
        and Path(sysconfig.get_path("include"), "Python.h").is_file()
    )


def record_graph(work: Callable[[], object], device: torch.device, pool: Any) -> Callable[[], None]:
    """Record what `work` launches on a CUDA device; return a function that launches all of it at
    once. `work` must not wait for the GPU, and may change tensors only in place. Its allocations
    come from `pool`, of `torch.cuda.graph_pool_handle`, where other graphs overwrite them.
    """
    graph = torch.cuda.CUDAGraph()
    stream = _recording_stream(device)
    try:
        with (
            _recording,
            torch.cuda.device(device),
            # restore the current stream even if recording fails, unlike `torch.cuda.graph`
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"),
        ):
            work()
    except RuntimeError as error:  # raised at the end of a failed recording, and hides the cause
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise error.__context__ from None
        raise
    return graph.replay


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all recordings: matrix products allocate memory for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def as_output(x: torch.Tensor) -> torch.Tensor | None:
    """Return the `out` argument for a softmax of the rows of `x`: `x` itself, or None (a new one)
    on MPS, whose kernels cannot work in place.
    """
    return None if x.device.type == "mps" else x


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the random generator of a device. On CUDA this avoids `torch.manual_seed`, which takes a
    millisecond or two to seed all kinds of devices.
    """
    if device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def out_of_memory_as(message: str) -> Iterator[None]:
    """Turn an out-of-memory error of the device or the machine, or a lack of threads, into a
    `UserError`.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and (lack := thread_limit_error(error)):
            raise lack from None
        has_type = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not has_type and not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        raise UserError(message) from None
