"""The model as a CPU computes it, against the plain one and numerical gradients."""

from __future__ import annotations

import platform
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import random_model, run_mtrain
from test_transformer import NORMS, assert_close, random_ids, random_values
from torch import Tensor, nn

from mtrain.model import building, cpu
from mtrain.model.cpu import BitDropout, RowTransformer, attend_rows, packed_product
from mtrain.model.transformer import Transformer, attend
from mtrain.runtime.device import has_fast_bf16


@pytest.mark.parametrize(
    ("device", "compiled", "kind"),
    [("cpu", False, RowTransformer), ("cpu", True, Transformer), ("cuda", False, Transformer)],
)
def test_a_cpu_has_a_model_of_its_own(device: str, compiled: bool, kind: type) -> None:
    shape = random_model().shape
    found = building.build(shape, torch.device(device), compiled=compiled)
    assert type(found) is kind
    assert found.state_dict().keys() == random_model().state_dict().keys()


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="huge pages cannot be requested here")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_the_heap_grows_into_huge_pages() -> None:
    show = "keep_freed_memory(); print(open('/proc/self/smaps').read())"
    shown = run_mtrain("--version", prelude=f"from mtrain.model.cpu import *; {show}").stdout
    regions = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", shown)
    heap = [region for region in regions if "[heap]" in region]
    sizes = [int(re.findall(r"Size: +(\d+) kB", each)[0]) for each in heap if " hg" in each]
    assert sum(sizes) >= 256 << 10  # kB


# --- Attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_gradient_of_attention_equals_finite_differences(own: bool, p: float) -> None:
    B, T, S = 2, 3, 3 if own else 4
    bias = torch.full((T, S), float("-inf")).double().triu(1).expand(B, 1, T, S)
    query = random_values(B * T + 2, 12 if own else 4).double().requires_grad_()
    source = None if own else random_values(B * S + 1, 8, seed=3).double().requires_grad_()

    def attended(query: Tensor, source: Tensor | None) -> Tensor:
        return attend_rows(query, source, bias, 2, p, torch.Generator().manual_seed(1))

    assert torch.autograd.gradcheck(attended, (query, source))


def test_large_scores_do_not_overflow() -> None:
    """Above 88, their exponentials are infinite."""
    query = random_values(6, 12)
    query[:, :8] *= 30  # queries and keys
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    bias = torch.zeros(3, 3).masked_fill(~causal, float("-inf")).expand(2, 1, 3, 3)
    expected = attend(*cpu._split_heads(query, 2, 3, 2, 3), causal, 0.0)
    found = attend_rows(query, None, bias, 2, 0.0, None)
    assert_close(found, cpu._join_heads(query, 6, 2, 3, 2, expected), 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@NORMS
def test_both_kinds_of_model_have_one_gradient(norm: str, dtype: torch.dtype) -> None:
    """In bf16 rows are padded, which must add nothing."""
    src, tgt_in = random_ids(3, 6), random_ids(3, 5, seed=2)
    src[1, 4:] = 0
    sides = []
    for kind in (Transformer, RowTransformer):
        model = random_model(norm=norm, kind=kind).train().to(dtype)
        model(src, tgt_in).float().log_softmax(-1).square().mean().backward()
        sides.append([p.grad for p in model.parameters()])
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for first, second in zip(*sides, strict=True):
        assert float((first - second).norm()) <= tolerance * (float(first.norm()) + 0.1)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [(torch.float32, [18, 128, 129]), (torch.bfloat16, [128, 128, 256])],
)
def test_rows_in_bf16_are_few_numbers_of_rows(dtype: torch.dtype, sizes: list[int]) -> None:
    """Because oneDNN generates code for each number."""
    for (B, L), expected in zip(((3, 6), (4, 32), (3, 43)), sizes, strict=True):
        x = random_values(B, L, 16).to(dtype)
        rows = cpu._as_rows(x)
        assert rows.shape == (expected, 16)
        assert cpu._as_batch(rows, B, L).equal(x)
        assert not rows[B * L :].any()


# --- Dropout ---------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9, 0.999995])
def test_dropout_zeroes_its_fraction_and_scales_the_rest(p: float) -> None:
    torch.manual_seed(5)
    out = BitDropout(p)(torch.ones(333, 601))
    dropped = (out == 0).float()
    assert abs(float(dropped.mean()) - p) < 0.005
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / (1 - p)))
    for side in (dropped.mean(1), dropped.mean(0)):
        assert float((side - p).abs().max()) < 0.15


def test_dropout_follows_the_seed_and_passes_gradients_through_kept_values() -> None:
    x = torch.ones(40, 41, dtype=torch.bfloat16, requires_grad=True)
    assert BitDropout(0.5).eval()(x) is x
    assert BitDropout(0.0)(x) is x
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(BitDropout(0.3)(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].dtype == x.dtype
    drawn[0].sum().backward()
    assert torch.equal(x.grad, drawn[0].detach())


# --- Packed matrices -------------------------------------------------------------------------

AMD = {"cpu_name": "AMD EPYC", "avx512_f": False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 67])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_matrix_gives_the_same_product(
    dtype: torch.dtype, rows: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == torch.bfloat16 and not has_fast_bf16(torch.device("cpu")):
        pytest.skip("no bf16 here")
    monkeypatch.setattr(cpu, "cpu_capabilities", lambda: AMD)
    torch.manual_seed(1)
    x, weight = torch.randn(rows, 64, dtype=dtype), torch.randn(2000, 64, dtype=dtype) / 8
    bias = torch.randn(2000, dtype=dtype) if biased else None
    multiply = packed_product(weight, bias)
    assert not isinstance(multiply, partial) or platform.machine() not in ("x86_64", "AMD64")
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    expected = nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(multiply(x), expected, rtol=tolerance, atol=tolerance)
    wide = torch.zeros(rows, 2 * 2000, dtype=dtype)
    multiply(x, out=wide[:, :2000])
    torch.testing.assert_close(wide[:, :2000], expected, rtol=tolerance, atol=tolerance)
    assert not wide[:, 2000:].any()


def test_small_matrices_and_those_of_other_processors_are_not_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "cpu_capabilities", lambda: AMD)
    torch.manual_seed(1)
    x, weight = torch.randn(1, 64), torch.randn(2000, 64) / 8
    for small in (weight[:9], weight[:99]):  # narrow, and wide
        multiply = packed_product(small, None)
        assert isinstance(multiply, partial)
        assert_close(multiply(x), x @ small.T)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert_close(packed_product(weight, None)(x), x @ weight.T)
    assert isinstance(packed_product(weight, None), partial)


def test_fp32_matrices_are_not_packed_for_processors_of_intel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "cpu_capabilities", lambda: {"cpu_name": "Intel Xeon"})
    x, weight = torch.randn(5, 64), torch.randn(2000, 64) / 8
    multiply = packed_product(weight, None)
    assert isinstance(multiply, partial)
    assert_close(multiply(x), x @ weight.T)


def test_small_matrices_are_packed_for_many_rows_where_mkl_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "cpu_capabilities", lambda: {**AMD, "avx512_f": True})
    monkeypatch.setattr(cpu, "WORTH_ONEDNN", 8 * 64 * 99)
    torch.manual_seed(1)
    weight, bias = torch.randn(99, 64) / 8, torch.randn(99)
    multiply = packed_product(weight, bias)
    for rows in (1, 8, 9, 67):
        x, out = torch.randn(rows, 64), torch.empty(rows, 99)
        assert_close(multiply(x), nn.functional.linear(x, weight, bias))
        assert_close(multiply(x, out=out), nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize(
    ("name", "has_avx512", "is_slow"),
    [("AMD EPYC", True, True), ("AMD EPYC", False, False), ("Intel Xeon", True, False)],
)
def test_mkl_is_slow_on_processors_of_amd_with_avx512(
    name: str, has_avx512: bool, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"cpu_name": name, "avx512_f": has_avx512}
    monkeypatch.setattr(cpu, "cpu_capabilities", lambda: found)
    assert cpu.has_slow_mkl() == is_slow
    assert cpu.is_intel() == name.startswith("Intel")


def test_versions_of_torch_that_do_not_know_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert cpu.cpu_capabilities.__wrapped__() == {}
