"""The Transformer against torch's own layers, and properties that must hold of it."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any

import numpy as np
import pytest
import torch
from conftest import random_model, shape_with
from numpy.typing import NDArray
from torch import Tensor, nn

from mtrain.model.cpu import RowTransformer
from mtrain.model.transformer import (
    VOCABULARY_MATRICES,
    Attention,
    DecoderLayer,
    Dropout,
    EncoderLayer,
    Transformer,
    attend,
    attention_weights,
    set_compute_dtype,
    sinusoids,
)

Array = NDArray[np.float64]

D, H, F = 16, 4, 24
KINDS = pytest.mark.parametrize("kind", [Transformer, RowTransformer])
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


def copy_attention(layer: Attention, theirs: nn.MultiheadAttention) -> None:
    """Give torch's attention the weights of ours."""
    theirs.in_proj_weight.copy_(layer.project_in.weight)
    theirs.in_proj_bias.copy_(layer.project_in.bias)
    theirs.out_proj.load_state_dict(layer.project_out.state_dict())


def run_attention(
    layer: Attention, x: Tensor, memory: Tensor | None, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return output and weights; to record the weights must not change the output."""
    plain = layer(x, memory, mask)
    layer.recorded[get_ident()] = []
    assert_close(layer(x, memory, mask), plain)
    return plain, layer.recorded[get_ident()][0]


@pytest.mark.parametrize("own", [True, False], ids=["causal", "padded source"])
@torch.no_grad()
def test_attention_equals_torch(own: bool) -> None:
    """Self-attention with a causal mask, and attention over a padded sequence."""
    layer = random_model(kind=Transformer).decoder_layers[0].cross_attention
    x, memory = random_values(2, 7, D), random_values(2, 8, D, seed=3)
    real = torch.arange(8) < torch.tensor([[8], [3]])
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    copy_attention(layer, theirs)
    if own:
        found = run_attention(layer, x, None, causal)
        expected = theirs(x, x, x, attn_mask=~causal, average_attn_weights=False)
    else:
        found = run_attention(layer, x, memory, real[:, None, None, :])
        padding = {"key_padding_mask": ~real, "average_attn_weights": False}
        expected = theirs(x, memory, memory, **padding)
    for ours, torchs in zip(found, expected, strict=True):
        assert_close(ours, torchs)


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


def torch_layer(kind: type, layer: EncoderLayer | DecoderLayer) -> nn.Module:
    """Return torch's layer with the weights of ours."""
    theirs = kind(D, H, F, dropout=0.0, batch_first=True, norm_first=layer.pre_norm)
    copy_attention(layer.self_attention, theirs.self_attn)
    norms = [layer.self_norm, layer.feed_norm]
    if isinstance(layer, DecoderLayer):
        copy_attention(layer.cross_attention, theirs.multihead_attn)
        norms.insert(1, layer.cross_norm)
    theirs.linear1.load_state_dict(layer.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(layer.feed_forward.outer.state_dict())
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    return theirs.eval()


def embedded(model: Transformer, ids: Tensor) -> Tensor:
    """Embeddings times sqrt(D) plus the paper's positions, written out."""
    table = np.zeros((ids.shape[1], D))
    for pos in range(ids.shape[1]):
        for i in range(D // 2):
            angle = pos / 10000 ** (2 * i / D)
            table[pos, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    rows = model.tgt_embedding.weight[ids]
    return rows * math.sqrt(D) + torch.from_numpy(table).float()


@KINDS
@NORMS
@torch.no_grad()
def test_whole_stacks_equal_torchs(norm: str, kind: type[Transformer]) -> None:
    model = random_model(norm=norm, kind=kind)
    src, tgt_in = random_ids(3, 7), random_ids(3, 6, seed=2)
    src[1, 4:] = model.shape.pad_id
    real = src != model.shape.pad_id
    causal = torch.ones(6, 6, dtype=torch.bool).tril()

    x = embedded(model, src)
    for layer in model.encoder_layers:
        x = torch_layer(nn.TransformerEncoderLayer, layer)(x, src_key_padding_mask=~real)
    memory = model.encoder_norm(x) if norm == "pre" else x
    assert_close(model.encode(src)[0][real], memory[real])

    y = embedded(model, tgt_in)
    for layer in model.decoder_layers:
        theirs = torch_layer(nn.TransformerDecoderLayer, layer)
        y = theirs(y, memory, tgt_mask=~causal, memory_key_padding_mask=~real)
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
    assert_close(sinusoids(0, 4, 4), expected, 1e-6)


def test_sinusoids_are_exact_at_far_positions() -> None:
    angles = np.arange(2000)[:, None] * 10000.0 ** (-np.arange(0, 64, 2) / 64)
    table = array(sinusoids(0, 2000, 64))
    assert_close(table[:, 0::2], np.sin(angles))
    assert_close(table[:, 1::2], np.cos(angles))
    assert (array(sinusoids(700, 720, 64)) == table[700:720]).all()


@torch.no_grad()
def test_sequences_longer_than_the_table_go_on_with_the_same_positions() -> None:
    model = random_model()
    src, long, table = random_ids(1, 700), random_ids(1, 600, seed=2), model.sinusoids
    logits = model(src, long)
    assert model.sinusoids is table  # recorded training steps read its memory
    assert_close(logits[:, :20], model(src, long[:, :20]))
    causal = torch.ones(600, 600, dtype=torch.bool).tril()
    x = model.run_decoder(embedded(model, long), causal, *model.encode(src))
    assert_close(logits, model.project(x))


@torch.no_grad()
def test_learned_positions_are_scaled_as_embeddings_are() -> None:
    """Stored models depend on it."""
    model = random_model(positions="learned", max_positions=8)
    assert model.tgt_positions is not None
    ids = random_ids(2, 5)
    expected = (model.tgt_embedding.weight[ids] + model.tgt_positions.weight[:5]) * D**0.5
    assert_close(model.embed(ids, model.tgt_embedding, model.tgt_positions), expected)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@torch.no_grad()
def test_the_position_of_a_token_remains_where_its_embedding_is_left_out(positions: str) -> None:
    model = random_model(positions=positions)
    ids, kept = random_ids(2, 5), torch.tensor([[1.0, 0, 1, 1, 0], [0, 0, 1, 1, 1]])
    arguments = model.tgt_embedding, model.tgt_positions
    places = model.positions(model.tgt_positions, 0, 5)
    expected = torch.where(kept[..., None] > 0, model.embed(ids, *arguments), places)
    assert_close(model.embed(ids, *arguments, kept), expected)


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


@KINDS
@VARIANTS
def test_packed_sentences_are_computed_as_if_alone(
    kind: type[Transformer], norm: str, positions: str, tie: str
) -> None:
    """Values and gradients, in rows with and without padding on either side."""
    model = random_model(
        kind=kind, norm=norm, positions=positions, tie_embeddings=tie, max_positions=9
    ).double()
    sizes = [[(3, 2), (6, 3)], [(2, 6), (1, 1), (4, 1)], [(8, 9)]]
    tables = torch.zeros(4, 3, 9, dtype=torch.int64)  # src, tgt_in and their segments
    alone, places = [], []
    for row, lengths in enumerate(sizes):
        starts = [0, 0]
        # padding of src is of no sentence, that of tgt_in of the last
        tables[2, row] = len(lengths)
        tables[3, row] = len(lengths) - 1
        for number, pair in enumerate(lengths):
            for side, length in enumerate(pair):
                place = slice(starts[side], starts[side] + length)
                tables[side, row, place] = random_ids(length, seed=10 * row + number)
                tables[2 + side, row, place] = number
                starts[side] += length
            src = tables[0, row, None, starts[0] - pair[0] : starts[0]].clone()
            alone.append(model.hidden(src, tables[1, row, None, place].clone())[0])
            places.append((row, place))
    src, tgt_in, *segments = tables
    hidden = model.hidden(src, tgt_in, None, (segments[0], segments[1]))
    together = [hidden[place] for place in places]
    kept = [name for name, _ in model.named_parameters() if not name.startswith("output")]
    parameters = [dict(model.named_parameters())[name] for name in kept]
    grads = [
        torch.autograd.grad(sum(x.cos().sum() for x in states), parameters)
        for states in (alone, together)
    ]
    for first, second in (*zip(alone, together, strict=True), *zip(*grads, strict=True)):
        torch.testing.assert_close(second, first, rtol=1e-9, atol=1e-11)


# --- Attention maps --------------------------------------------------------------------------


@KINDS
@torch.no_grad()
def test_attention_maps_are_distributions_over_visible_positions(kind: type[Transformer]) -> None:
    model = random_model(num_decoder_layers=3, kind=kind)
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
    with pytest.raises(IndexError):  # ends in the middle of the decoder
        model.attention_maps(src, tgt_in + 23)
    assert not any(isinstance(m, Attention) and m.recorded for m in model.modules())


@KINDS
@torch.no_grad()
def test_other_threads_that_use_a_model_change_no_attention_maps(
    kind: type[Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scores, and one wants other maps, between encoder and decoder."""
    model = random_model(kind=kind)
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    others = random_ids(3, 7, seed=3), random_ids(3, 4, seed=4)
    expected = [model.attention_maps(src, tgt_in), model.attention_maps(*others)]
    decode, found = model.decode, list[Any]()

    def disturbed(*arguments: Any) -> Tensor:
        monkeypatch.setattr(model, "decode", decode)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(model.hidden, *others).result()
            found.append(pool.submit(model.attention_maps, *others).result())
        return decode(*arguments)

    monkeypatch.setattr(model, "decode", disturbed)
    found.insert(0, model.attention_maps(src, tgt_in))
    torch.testing.assert_close(found, expected)


# --- Dropout ---------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("where", ["residual", "attention", "activation"])
@torch.no_grad()
def test_each_dropout_acts_in_training_only(where: str, kind: type[Transformer]) -> None:
    model = random_model(rates=Dropout(**{where: 0.4}), kind=kind)
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    still = random_model(kind=kind)(src, tgt_in)
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
        model = Transformer(shape_with(37000, **settings))
    assert model.num_parameters == expected


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("output", 2), ("none", 3)])
def test_tied_embeddings_are_one_matrix(tie: str, matrices: int) -> None:
    model = random_model(tie_embeddings=tie)
    weights = {id(m.weight) for m in (model.src_embedding, model.tgt_embedding, model.output)}
    assert len(weights) == matrices
    assert (model.output.weight is model.tgt_embedding.weight) == (tie != "none")
    of_vocabulary = [name for name, p in model.named_parameters() if len(p) == 23]
    assert sorted(of_vocabulary) == sorted(VOCABULARY_MATRICES[:matrices])
    everything = random_model(tie_embeddings="all").num_parameters
    assert model.num_parameters == everything + (matrices - 1) * 23 * D


@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_weights_start_as_in_fairseq(tie: str) -> None:
    """Matrices as by Xavier, with those of query, key and value as one; embeddings have a variance
    of 1 once they are multiplied by sqrt(D).
    """
    torch.manual_seed(1)
    small = {"d_model": 64, "num_heads": 4, "d_ff": 256}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    shape = shape_with(2000, **small, **layers, positions="learned", tie_embeddings=tie)
    for name, weight in Transformer(shape).state_dict().items():
        if weight.dim() == 2:
            is_hidden = name.startswith(("encoder", "decoder"))
            deviation = (2 / sum(weight.shape)) ** 0.5 if is_hidden else 64**-0.5
            assert float(weight.std()) == pytest.approx(deviation, rel=0.05), name
            assert (float(weight.abs().max()) < 3**0.5 * deviation) == is_hidden  # is uniform
        else:
            assert weight.eq(1.0 if name.endswith("norm.weight") else 0.0).all(), name


@KINDS
def test_layers_compute_in_bf16_over_embeddings_in_fp32(kind: type[Transformer]) -> None:
    model, exact = random_model(kind=kind), random_model()
    set_compute_dtype(model, torch.bfloat16)
    src, tgt_in = random_ids(2, 6), random_ids(2, 5, seed=2)
    logits = model(src, tgt_in)
    assert logits.dtype == model.decoder_layers[0].feed_forward.inner.weight.dtype == torch.bfloat16
    assert model.tgt_embedding.weight.dtype == torch.float32
    assert_close(logits, exact(src, tgt_in), 0.2)
