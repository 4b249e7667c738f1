"""Devices of this machine: number formats, threads, memory."""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.runtime.errors import RefusedError, UserError

# glibc's numbers in malloc.h, and the largest threshold for single mappings that it accepts
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD = -1, -3, 32 << 20
# See `packed_product`.
WORTH_PACKING = 100_000


def pick_device(name: str) -> torch.device:
    """Turn auto, cpu, cuda, cuda:N or mps into a device; raises `RefusedError` where there is
    none.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if "," in name:
        number = name.count(",") + 1
        raise RefusedError(
            f"device {name}: a process has one device; for {number} of them start "
            f"torchrun --nproc-per-node {number} -m mtrain ..."
        )
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RefusedError(f"device {name}: unknown; use auto, cpu, cuda, cuda:N or mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RefusedError(
            f"device {name}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise RefusedError("device mps: not available on this machine")
    if device.type not in ("cpu", "cuda", "mps"):
        raise RefusedError(f"device {name}: unknown; use auto, cpu, cuda, cuda:N or mps")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 products run in hardware: CUDA from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


def compute_dtype(precision: str, device: torch.device, *, training: bool) -> torch.dtype:
    """Number format of activations. `auto` trains in bf16 where it is fast, and translates in fp32
    on CPUs.
    """
    if precision == "auto":
        wanted = has_fast_bf16(device) and (training or device.type == "cuda")
    else:
        wanted = precision == "bf16"
    return torch.bfloat16 if wanted else torch.float32


def set_up_cuda(device: torch.device) -> None:
    """Choose this device for CUDA, deterministic kernels, and the attention that is fastest for
    rows as short as sentences: 32 tokens take 0.3 ms instead of 0.8 with flash attention (H100).
    """
    torch.cuda.set_device(device)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # or else a kernel of its own would write NaN into each new tensor
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the randomness of a device. On the CPU and on CUDA this avoids `torch.manual_seed`,
    which takes a millisecond or two to visit all kinds of devices.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    elif device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def telling_lack_of_memory(explain: Callable[[], str]) -> Iterator[None]:
    """Turn a lack of memory, the device's or the machine's, into a `UserError` with these words."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        lacking = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not lacking and "DefaultCPUAllocator" not in str(error):  # torch has no type for it
            raise
        raise UserError(explain()) from None


def available_threads() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step, which otherwise pays for tens of thousands of
    page faults; other C libraries are not changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def packed_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return a function that maps rows (N, in) to (N, out) by a constant matrix (out, in), packed
    once into oneDNN's layout where that pays.

    Without it torch packs bf16 matrices for every product, and leaves fp32 to MKL: a vocabulary of
    8,000 on one core then takes three times as long for 5 hypotheses and a fifth longer for 270.
    Small fp32 matrices are as fast with MKL, and faster for few rows.
    """
    weight = weight.detach()
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if weight.dtype == torch.bfloat16:
        pays = has_fast_bf16(weight.device)
    else:
        pays = weight.dtype == torch.float32 and weight.numel() >= WORTH_PACKING
    if weight.device.type != "cpu" or not (has_onednn and is_x86 and pays):
        return partial(F.linear, weight=weight, bias=bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda rows: multiply(rows, packed, bias, "none", [], "")
