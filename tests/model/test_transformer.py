"""The Transformer against numpy and torch's own layers, and what must hold of it."""

from __future__ import annotations

import math
import platform
from functools import partial

import numpy as np
import pytest
import torch
from conftest import random_model
from numpy.typing import NDArray
from torch import Tensor, nn

from mtrain.model.attention import attend, attend_rows, attention_weights, dropout
from mtrain.model.decoder import Decoder
from mtrain.model.transformer import (
    Attention,
    DecoderLayer,
    Dropout,
    EncoderLayer,
    Shape,
    Transformer,
    set_compute_dtype,
    sinusoids,
)
from mtrain.runtime import device
from mtrain.runtime.device import has_fast_bf16, packed_product

Array = NDArray[np.float64]

D, H, F = 16, 4, 24
NORMS = pytest.mark.parametrize("norm", ["post", "pre"])
VARIANTS = pytest.mark.parametrize(
    ("norm", "positions", "tie"),
    [
        ("post", "sinusoidal", "all"),
        ("pre", "sinusoidal", "output"),
        ("post", "learned", "none"),
        ("pre", "learned", "all"),
    ],
)


def random_ids(*size: int, seed: int = 1) -> Tensor:
    """Return ids without padding."""
    return torch.randint(4, 23, size, generator=torch.Generator().manual_seed(seed))


def random_values(*size: int, seed: int = 2) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def array(x: Tensor) -> Array:
    return x.detach().double().numpy()


def assert_close(actual: Tensor | Array, expected: Tensor | Array, tolerance: float = 1e-5) -> None:
    sides = [array(x) if isinstance(x, Tensor) else x for x in (actual, expected)]
    np.testing.assert_allclose(*sides, rtol=0, atol=tolerance)


# --- Attention -------------------------------------------------------------------------------


def numpy_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_attention(layer: Attention, x: Array, memory: Array, mask: Array) -> tuple[Array, Array]:
    """Multi-head attention with an additive mask: output (B, T, D), weights (B, H, T, S)."""
    matrices = array(layer.project_in.weight).reshape(3, H, D // H, D)
    biases = array(layer.project_in.bias).reshape(3, H, D // H)
    q, k, v = (
        np.einsum("btd,hkd->bhtk", side, matrix) + bias[None, :, None]
        for side, matrix, bias in zip((x, memory, memory), matrices, biases, strict=True)
    )
    weights = numpy_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(D // H) + mask)
    joined = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    out = joined @ array(layer.project_out.weight).T + array(layer.project_out.bias)
    return out, weights


def numpy_layer_norm(norm: nn.LayerNorm, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * array(norm.weight) + array(norm.bias)


def copy_attention(layer: Attention, theirs: nn.MultiheadAttention) -> None:
    """Give torch's attention the weights of ours."""
    theirs.in_proj_weight.copy_(layer.project_in.weight)
    theirs.in_proj_bias.copy_(layer.project_in.bias)
    theirs.out_proj.load_state_dict(layer.project_out.state_dict())


def filled(x: Tensor) -> Tensor:
    """Rows of a batch with filling behind them: (B, L, D) -> (R, D)."""
    return torch.cat((x.flatten(0, 1), torch.full((3, x.shape[-1]), 7.0, dtype=x.dtype)))


def over_rows(layer: nn.Module, x: Tensor, *rest: Tensor) -> Tensor:
    """Run a layer over filled rows and take the filling off again: (B, L, D) -> (B, L, D)."""
    out: Tensor = layer(filled(x), *rest)
    return out[:-3].view(x.shape)


def run_attention(
    layer: Attention, x: Tensor, memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return output and weights, the latter seen through `watch`, which may not change the
    former.
    """
    B, T, _ = x.shape
    source = None if memory is x else filled(memory)
    plain = layer(filled(x), source, mask, B, T)[: B * T].view(x.shape)
    layer.watch = []
    watched = layer(filled(x), source, mask, B, T)[: B * T].view(x.shape)
    assert_close(watched, plain)
    return plain, layer.watch[0]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_gradient_of_attention_is_its_slope(own: bool, p: float) -> None:
    B, T, S = 2, 3, 3 if own else 4
    mask = torch.ones(T, S, dtype=torch.bool).tril()
    query = random_values(B * T + 2, 12 if own else 4).double().requires_grad_()
    source = None if own else random_values(B * S + 1, 8, seed=3).double().requires_grad_()

    def attended(query: Tensor, source: Tensor | None) -> Tensor:
        torch.manual_seed(1)
        return attend_rows(query, source, (B, T, S, 2), mask, p)

    assert torch.autograd.gradcheck(attended, (query, source))


@NORMS
def test_both_forms_of_attention_have_one_gradient(norm: str) -> None:
    src, tgt_in = random_ids(3, 6), random_ids(3, 5, seed=2)
    src[1, 4:] = 0
    sides = []
    for watch in (None, []):
        model = random_model(norm=norm).train()
        for module in model.modules():
            if isinstance(module, Attention):
                module.watch = watch
        model(src, tgt_in).square().sum().backward()
        sides.append([p.grad for p in model.parameters()])
    for first, second in zip(*sides, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_attention_equals_numpy_and_torch_with_a_causal_mask() -> None:
    layer = random_model().decoder_layers[0].self_attention
    x = random_values(3, 7, D)
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    out, weights = run_attention(layer, x, x, causal)

    additive = np.triu(np.full((7, 7), -np.inf), 1)
    expected, expected_weights = numpy_attention(layer, array(x), array(x), additive)
    assert_close(out, expected)
    assert_close(weights, expected_weights)

    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    copy_attention(layer, theirs)
    expected_out, heads = theirs(x, x, x, attn_mask=~causal, average_attn_weights=False)
    assert_close(out, expected_out)
    assert_close(weights, heads)


@torch.no_grad()
def test_attention_over_another_sequence_with_padding_equals_torch() -> None:
    layer = random_model().decoder_layers[1].cross_attention
    x, memory = random_values(2, 5, D), random_values(2, 8, D, seed=3)
    real = torch.arange(8) < torch.tensor([[8], [3]])
    out, weights = run_attention(layer, x, memory, real[:, None, None, :])

    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    copy_attention(layer, theirs)
    expected, heads = theirs(x, memory, memory, key_padding_mask=~real, average_attn_weights=False)
    assert_close(out, expected)
    assert_close(weights, heads)


def test_attend_equals_a_triple_loop() -> None:
    q, k, v = (random_values(1, 2, 4, 3, seed=s) for s in (1, 2, 3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = np.zeros((1, 2, 4, 3))
    for head in range(2):
        for t in range(4):
            powers = [
                math.exp(sum(float(q[0, head, t, i] * k[0, head, s, i]) for i in range(3)) / 3**0.5)
                for s in range(t + 1)
            ]
            for s, power in enumerate(powers):
                expected[0, head, t] += power / sum(powers) * array(v[0, head, s])
    assert_close(attend(q, k, v, mask, 0.0), expected)
    assert_close(attention_weights(q, k, mask) @ v, expected)


# --- Layers and stacks -----------------------------------------------------------------------


def test_a_post_norm_encoder_layer_equals_numpy() -> None:
    layer = random_model().encoder_layers[0]
    x = random_values(2, 6, D)
    real = torch.arange(6) < torch.tensor([[6], [4]])
    additive = np.where(real.numpy(), 0.0, -np.inf)[:, None, None, :]

    attended, _ = numpy_attention(layer.self_attention, array(x), array(x), additive)
    middle = numpy_layer_norm(layer.self_norm, array(x) + attended)
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    raised = np.maximum(0, middle @ array(inner.weight).T + array(inner.bias))
    fed = raised @ array(outer.weight).T + array(outer.bias)
    expected = numpy_layer_norm(layer.feed_norm, middle + fed)
    assert_close(over_rows(layer, x, real[:, None, None, :]), expected)


def torch_encoder_layer(layer: EncoderLayer) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(
        D, H, F, dropout=0.0, batch_first=True, norm_first=layer.pre_norm
    )
    copy_attention(layer.self_attention, theirs.self_attn)
    copy_rest(layer, theirs, [layer.self_norm, layer.feed_norm])
    return theirs.eval()


def torch_decoder_layer(layer: DecoderLayer) -> nn.TransformerDecoderLayer:
    theirs = nn.TransformerDecoderLayer(
        D, H, F, dropout=0.0, batch_first=True, norm_first=layer.pre_norm
    )
    copy_attention(layer.self_attention, theirs.self_attn)
    copy_attention(layer.cross_attention, theirs.multihead_attn)
    copy_rest(layer, theirs, [layer.self_norm, layer.cross_norm, layer.feed_norm])
    return theirs.eval()


def copy_rest(
    layer: EncoderLayer | DecoderLayer, theirs: nn.Module, norms: list[nn.LayerNorm]
) -> None:
    theirs.linear1.load_state_dict(layer.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(layer.feed_forward.outer.state_dict())
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


@NORMS
@torch.no_grad()
def test_an_encoder_layer_equals_torchs(norm: str) -> None:
    layer = random_model(norm=norm).encoder_layers[0]
    x, real = random_values(2, 6, D), torch.arange(6) < torch.tensor([[6], [4]])
    expected = torch_encoder_layer(layer)(x, src_key_padding_mask=~real)
    # torch's fast path leaves zeros at padding
    assert_close(over_rows(layer, x, real[:, None, None, :])[real], expected[real])


@NORMS
@torch.no_grad()
def test_a_decoder_layer_equals_torchs(norm: str) -> None:
    layer = random_model(norm=norm).decoder_layers[0]
    x, memory = random_values(2, 5, D), random_values(2, 6, D, seed=3)
    real = torch.arange(6) < torch.tensor([[6], [4]])
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = torch_decoder_layer(layer)(
        x, memory, tgt_mask=~causal, memory_key_padding_mask=~real
    )
    found = over_rows(layer, x, causal, filled(memory), real[:, None, None, :])
    assert_close(found, expected)


def embedded(model: Transformer, ids: Tensor) -> Tensor:
    """Embeddings times sqrt(D) plus the paper's positions, written out."""
    table = np.zeros((ids.shape[1], D))
    for pos in range(ids.shape[1]):
        for i in range(D // 2):
            angle = pos / 10000 ** (2 * i / D)
            table[pos, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    rows = model.tgt_embedding.weight[ids]
    return rows * math.sqrt(D) + torch.from_numpy(table).float()


@NORMS
@torch.no_grad()
def test_whole_stacks_equal_torchs(norm: str) -> None:
    model = random_model(norm=norm)
    src, tgt_in = random_ids(3, 7), random_ids(3, 6, seed=2)
    src[1, 4:] = model.shape.pad_id
    real = src != model.shape.pad_id
    causal = torch.ones(6, 6, dtype=torch.bool).tril()

    x = embedded(model, src)
    for layer in model.encoder_layers:
        x = torch_encoder_layer(layer)(x, src_key_padding_mask=~real)
    memory = model.encoder_norm(x) if norm == "pre" else x
    assert_close(model.encode(src)[0][real], memory[real])

    y = embedded(model, tgt_in)
    for layer in model.decoder_layers:
        y = torch_decoder_layer(layer)(y, memory, tgt_mask=~causal, memory_key_padding_mask=~real)
    hidden = model.decoder_norm(y) if norm == "pre" else y
    assert_close(model(src, tgt_in), hidden @ model.tgt_embedding.weight.T)


# --- Positions -------------------------------------------------------------------------------


def test_sinusoids_equal_a_table_worked_out_by_hand() -> None:
    expected = np.array(
        [
            [0.0, 1.0, 0.0, 1.0],
            [0.8414710, 0.5403023, 0.0099998, 0.9999500],
            [0.9092974, -0.4161468, 0.0199987, 0.9998000],
            [0.1411200, -0.9899925, 0.0299955, 0.9995500],
        ]
    )
    assert_close(sinusoids(4, 4), expected, 1e-6)


def frequencies(width: int) -> Array:
    return 10000.0 ** (-np.arange(0, width, 2) / width)


def test_sinusoids_are_exact_at_far_positions() -> None:
    angles = np.arange(2000)[:, None] * frequencies(64)
    table = array(sinusoids(2000, 64))
    assert_close(table[:, 0::2], np.sin(angles))
    assert_close(table[:, 1::2], np.cos(angles))


@pytest.mark.parametrize("k", [1, 7, 100])
def test_a_shifted_position_is_a_fixed_rotation_of_the_position(k: int) -> None:
    rotation = np.zeros((32, 32))
    for i, frequency in enumerate(frequencies(32)):
        sin, cos = math.sin(k * frequency), math.cos(k * frequency)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, sin], [-sin, cos]]
    table = array(sinusoids(400, 32))
    assert_close(table[k:], table[:-k] @ rotation.T)


@torch.no_grad()
def test_sequences_longer_than_the_table_go_on_with_the_same_positions() -> None:
    model = random_model()
    src, long = random_ids(1, 700), random_ids(1, 600, seed=2)
    logits = model(src, long)
    assert_close(logits[:, :20], model(src, long[:, :20]))
    x = embedded(model, long)
    memory, src_mask = model.encode(src)
    causal = torch.ones(600, 600, dtype=torch.bool).tril()
    for layer in model.decoder_layers:
        x = over_rows(layer, x, causal, filled(memory), src_mask)
    assert_close(logits, model.project(x))


@torch.no_grad()
def test_cached_steps_cross_the_end_of_the_position_table() -> None:
    model = random_model(num_encoder_layers=1, num_decoder_layers=1)
    src, tgt_in = random_ids(1, 5), random_ids(1, 530, seed=2)
    assert_close(stepwise(model, src, tgt_in), model(src, tgt_in).log_softmax(-1))


def test_learned_positions_end_with_an_error() -> None:
    model = random_model(positions="learned", max_positions=8)
    model(random_ids(1, 8), random_ids(1, 8))
    with pytest.raises(ValueError, match="9 positions, but 8 learned"):
        model(random_ids(1, 9), random_ids(1, 8))


# --- Independence ----------------------------------------------------------------------------


@VARIANTS
@torch.no_grad()
def test_the_future_does_not_change_the_past(norm: str, positions: str, tie: str) -> None:
    model = random_model(norm=norm, positions=positions, tie_embeddings=tie)
    src, tgt_in = random_ids(2, 6), random_ids(2, 9, seed=2)
    changed = tgt_in.clone()
    changed[:, 4:] = random_ids(2, 5, seed=3)
    before, after = model(src, tgt_in), model(src, changed)
    assert_close(before[:, :4], after[:, :4], 1e-6)
    assert (before[:, 4:] - after[:, 4:]).abs().max() > 0.01


@VARIANTS
@torch.no_grad()
def test_padding_changes_nothing(norm: str, positions: str, tie: str) -> None:
    model = random_model(norm=norm, positions=positions, tie_embeddings=tie)
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    wider = torch.nn.functional.pad
    assert_close(model(wider(src, (0, 3)), wider(tgt_in, (0, 4)))[:, :5], model(src, tgt_in))


@torch.no_grad()
def test_batch_mates_and_their_order_change_nothing() -> None:
    model = random_model()
    src, tgt_in = random_ids(4, 6), random_ids(4, 5, seed=2)
    src[2, 3:] = model.shape.pad_id
    logits = model(src, tgt_in)
    order = torch.tensor([2, 0, 3, 1])
    assert_close(model(src[order], tgt_in[order]), logits[order])
    assert_close(model(src[2:3, :3], tgt_in[2:3]), logits[2:3])


# --- Cached decoding -------------------------------------------------------------------------


def stepwise(model: Transformer, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Log-probabilities of every next token, decoded a position at a time."""
    decoder = Decoder(model)
    state, rows = decoder.start(*model.encode(src)), []
    for column in tgt_in.unbind(1):
        log_probs, state = decoder.step(column, state)
        rows.append(log_probs)
    return torch.stack(rows, 1)


@VARIANTS
@torch.no_grad()
def test_cached_steps_equal_the_full_forward(norm: str, positions: str, tie: str) -> None:
    model = random_model(norm=norm, positions=positions, tie_embeddings=tie)
    src, tgt_in = random_ids(3, 6), random_ids(3, 40, seed=2)
    src[0, 2:] = model.shape.pad_id
    assert_close(stepwise(model, src, tgt_in), model(src, tgt_in).log_softmax(-1))


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_steps_with_packed_matrices_equal_the_full_forward(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "WORTH_PACKING", 0)
    model = random_model(norm=norm)
    src, tgt_in = random_ids(3, 6), random_ids(3, 20, seed=2)
    assert_close(stepwise(model, src, tgt_in), model(src, tgt_in).log_softmax(-1))


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_steps_in_bf16_are_near_those_in_fp32(norm: str) -> None:
    if not has_fast_bf16(torch.device("cpu")):
        pytest.skip("no bf16 here")
    model = random_model(norm=norm)
    src, tgt_in = random_ids(3, 6), random_ids(3, 20, seed=2)
    expected = stepwise(model, src, tgt_in)
    set_compute_dtype(model, torch.bfloat16)
    assert_close(stepwise(model, src, tgt_in), expected, 0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 67])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_matrix_multiplies_as_before(dtype: torch.dtype, rows: int, biased: bool) -> None:
    if dtype == torch.bfloat16 and not has_fast_bf16(torch.device("cpu")):
        pytest.skip("no bf16 here")
    torch.manual_seed(1)
    x, weight = torch.randn(rows, 64, dtype=dtype), torch.randn(2000, 64, dtype=dtype) / 8
    bias = torch.randn(2000, dtype=dtype) if biased else None
    multiply = packed_product(weight, bias)
    assert not isinstance(multiply, partial) or platform.machine() not in ("x86_64", "AMD64")
    exactness = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(
        multiply(x), nn.functional.linear(x, weight, bias), rtol=exactness, atol=exactness
    )


def test_other_processors_and_small_matrices_multiply_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight = torch.ones(1, 64), torch.ones(2000, 64)
    assert isinstance(packed_product(weight.to("meta"), None), partial)
    assert isinstance(packed_product(weight[:9], None), partial)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert_close(packed_product(weight, None)(x), x @ weight.T)
    assert isinstance(packed_product(weight, None), partial)


@torch.no_grad()
def test_selected_hypotheses_go_on_with_their_own_past_and_source() -> None:
    """Two sentences of three hypotheses each are reordered, then the first sentence leaves."""
    model = random_model()
    src = random_ids(2, 6)
    src[0, 4:] = model.shape.pad_id
    decoder = Decoder(model)
    state = decoder.start(*model.encode(src))
    prefixes, owners = torch.full((2, 1), 2), torch.tensor([0, 1])

    def extend(rows: list[int], sentences: list[int] | None, tokens: list[int]) -> None:
        nonlocal state, prefixes, owners
        kept = None if sentences is None else torch.tensor(sentences)
        log_probs, state = decoder.step(prefixes[:, -1], state)
        assert_close(log_probs, model(src[owners], prefixes)[:, -1].log_softmax(-1))
        state = state.select(torch.tensor(rows), kept)
        prefixes = torch.cat((prefixes[rows], torch.tensor(tokens)[:, None]), 1)
        owners = owners[rows]

    extend([0, 0, 0, 1, 1, 1], None, [5, 6, 7, 8, 9, 10])
    extend([2, 0, 0, 4, 5, 3], None, [11, 12, 13, 14, 15, 16])
    extend([5, 3, 3], [1], [17, 18, 19])
    extend([1, 0, 2], None, [4, 5, 6])
    extend([2, 1], None, [7, 8])  # fewer
    extend([1, 0], None, [9, 10])
    extend([1, 1, 0, 0], None, [11, 12, 13, 14])  # and more again than ever
    extend([3, 0, 2, 1], None, [15, 16, 17, 18])
    for turn in range(12):  # beyond the room at the start
        extend([turn % 4, 3, 0, 2], None, [4 + turn, 5, 6, 7])
    assert owners.tolist() == [1, 1, 1, 1]


# --- Attention maps --------------------------------------------------------------------------


@torch.no_grad()
def test_attention_maps_of_every_layer_are_distributions_over_what_may_be_seen() -> None:
    model = random_model(num_decoder_layers=3)
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    src[1, 4:] = model.shape.pad_id
    maps = model.attention_maps(src, tgt_in)
    shapes = {name: [tuple(m.shape) for m in layers] for name, layers in maps.items()}
    assert shapes == {
        "encoder": [(2, H, 6, 6)] * 2,
        "decoder": [(2, H, 5, 5)] * 3,
        "cross": [(2, H, 5, 6)] * 3,
    }
    for layer in (layer for layers in maps.values() for layer in layers):
        assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]))
    for layer in maps["encoder"] + maps["cross"]:
        assert layer[1, :, :, 4:].abs().max() == 0
        assert layer[1, :, :, :4].min() > 0
    for layer in maps["decoder"]:
        assert layer.triu(1).abs().max() == 0
    assert not any(isinstance(m, Attention) and m.watch is not None for m in model.modules())


# --- Dropout ---------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_scales_the_rest(p: float) -> None:
    torch.manual_seed(5)
    out = dropout(torch.ones(333, 601), p, training=True)
    assert abs(float((out == 0).float().mean()) - p) < 0.005
    assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / (1 - p)))
    rows, columns = (out == 0).float().mean(1), (out == 0).float().mean(0)
    assert max(float((side - p).abs().max()) for side in (rows, columns)) < 0.15


def test_dropout_is_off_without_training_or_share() -> None:
    x = random_values(50, 50)
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(dropout(x, 0.0, training=True), x)


def test_dropout_follows_the_seed_and_keeps_the_dtype() -> None:
    x = torch.ones(40, 41, dtype=torch.bfloat16)

    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return dropout(x, 0.3, training=True)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert draw(1).dtype == torch.bfloat16


def test_dropout_passes_gradients_through_what_it_kept() -> None:
    x = torch.ones(100, requires_grad=True)
    out = dropout(x, 0.5, training=True)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


def test_a_rate_near_one_keeps_next_to_nothing() -> None:
    assert int(dropout(torch.ones(1000), 0.999995, training=True).count_nonzero()) <= 1


@pytest.mark.parametrize("kind", ["residual", "attention", "activation"])
@torch.no_grad()
def test_each_kind_of_dropout_acts_in_training_alone(kind: str) -> None:
    model = random_model(rates=Dropout(**{kind: 0.4}))
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    still = random_model()(src, tgt_in)
    assert torch.equal(model(src, tgt_in), still)
    model.train()
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(model(src, tgt_in))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.allclose(draws[0], still)


# --- Shape -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 63_082_496),
        ({"d_model": 1024, "num_heads": 16, "d_ff": 4096}, 214_245_376),
    ],
    ids=["base", "big"],
)
def test_the_papers_models_have_their_number_of_parameters(
    settings: dict[str, int], expected: int
) -> None:
    with torch.device("meta"):
        model = Transformer(Shape(vocab_size=37000, pad_id=0, **settings))
    assert model.num_parameters == expected


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("output", 2), ("none", 3)])
def test_tied_embeddings_are_one_matrix(tie: str, matrices: int) -> None:
    model = random_model(tie_embeddings=tie)
    weights = {id(m.weight) for m in (model.src_embedding, model.tgt_embedding, model.output)}
    assert len(weights) == matrices
    assert (model.output.weight is model.tgt_embedding.weight) == (tie != "none")
    everything = random_model(tie_embeddings="all").num_parameters
    assert model.num_parameters == everything + (matrices - 1) * 23 * D


def test_embeddings_start_with_the_variance_of_one_after_scaling() -> None:
    model = Transformer(Shape(vocab_size=4000, pad_id=0, d_model=64, d_ff=64))
    assert float(model.tgt_embedding.weight.detach().std()) * 8 == pytest.approx(1.0, abs=0.01)


def test_layers_compute_in_bf16_over_embeddings_in_fp32() -> None:
    model, exact = random_model(), random_model()
    set_compute_dtype(model, torch.bfloat16)
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    logits = model(src, tgt_in)
    assert logits.dtype == model.decoder_layers[0].feed_forward.inner.weight.dtype == torch.bfloat16
    assert model.tgt_embedding.weight.dtype == torch.float32
    assert_close(logits, exact(src, tgt_in), 0.2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@VARIANTS
@torch.no_grad()
def test_a_gpu_computes_the_same(norm: str, positions: str, tie: str) -> None:
    model = random_model(norm=norm, positions=positions, tie_embeddings=tie)
    src, tgt_in = random_ids(3, 6), random_ids(3, 20, seed=2)
    src[0, 2:] = model.shape.pad_id
    expected = model(src, tgt_in)
    model.to("cuda")
    assert_close(model(src.cuda(), tgt_in.cuda()).cpu(), expected, 1e-4)
    steps = stepwise(model, src.cuda(), tgt_in.cuda()).cpu()
    assert_close(steps, expected.log_softmax(-1), 1e-4)
