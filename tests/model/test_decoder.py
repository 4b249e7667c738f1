"""Decoding position by position, against the forward pass over whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import recording
import torch
from conftest import needs_cuda, random_model
from test_transformer import KINDS, NORMS, VARIANTS, assert_close, random_ids
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from mtrain.model import cpu, recorded
from mtrain.model.decoder import Decoder, Ensemble
from mtrain.model.encoder import Encoder
from mtrain.model.recorded import Memory, RecordedDecoder, decoder_of
from mtrain.model.transformer import Transformer, set_compute_dtype
from mtrain.translation.search import BeamSearch, Rules, length_normalizer

CPU = torch.device("cpu")
DECODERS = pytest.mark.parametrize("decoder_class", [Decoder, RecordedDecoder])


@pytest.fixture(autouse=True)
def replay(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(recorded, "record_graph", recording.record)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def stepwise(decoder: Any, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Log-probabilities of every next token, decoded a position at a time."""
    state, rows = decoder.begin(src), []
    for column in tgt_in.unbind(1):
        log_probs, state = decoder.step(column, state)
        rows.append(log_probs.clone())
    return torch.stack(rows, 1)


@DECODERS
@KINDS
@VARIANTS
@torch.no_grad()
def test_cached_steps_equal_the_full_forward(
    norm: str, positions: str, tie: str, kind: type[Transformer], decoder_class: Any
) -> None:
    model = random_model(
        norm=norm, positions=positions, tie_embeddings=tie, kind=kind, max_positions=40
    )
    for B, S in ((3, 6), (3, 34), (19, 6)):
        src, tgt_in = random_ids(B, S), random_ids(B, 40, seed=2)
        src[0, 2:] = model.shape.pad_id
        found = stepwise(decoder_class(model), src, tgt_in)
        assert_close(found, model(src, tgt_in).log_softmax(-1))


@DECODERS
@torch.no_grad()
def test_few_learned_positions_suffice(decoder_class: Any) -> None:
    """Fewer than the keys that are computed at least."""
    model = random_model(positions="learned", max_positions=11)
    src, tgt_in = random_ids(3, 11), random_ids(3, 11, seed=2)
    found = stepwise(decoder_class(model), src, tgt_in)
    assert_close(found, model(src, tgt_in).log_softmax(-1))


@DECODERS
@torch.no_grad()
def test_cached_steps_cross_the_end_of_the_position_table(decoder_class: Any) -> None:
    model = random_model(num_encoder_layers=1, num_decoder_layers=1)
    src, tgt_in = random_ids(1, 5), random_ids(1, 530, seed=2)
    with torch.inference_mode():
        found = stepwise(decoder_class(model), src, tgt_in)
    assert_close(found, model(src, tgt_in).log_softmax(-1))


@NORMS
@torch.no_grad()
def test_steps_with_packed_matrices_and_in_bf16_are_near_the_full_forward(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "WORTH_PACKING", 0)
    model = random_model(norm=norm)
    src, tgt_in = random_ids(21, 6), random_ids(21, 20, seed=2)
    expected = model(src, tgt_in).log_softmax(-1)
    assert_close(stepwise(Decoder(model), src, tgt_in), expected)
    set_compute_dtype(model, torch.bfloat16)
    found = stepwise(Decoder(model), src, tgt_in)
    assert_close(found, expected, 0.2)
    assert found.dtype == torch.float32  # the logarithms are as exact as their sums


@DECODERS
@KINDS
@torch.no_grad()
def test_steps_do_not_read_memory_before_they_write_it(
    kind: type[Transformer], decoder_class: Any
) -> None:
    """Deterministic algorithms fill new tensors with NaN, which no weight of 0 hides, and with ids
    that no vocabulary has.
    """
    model = random_model(kind=kind)
    src, tgt_in = random_ids(5, 5), random_ids(5, 20, seed=2)
    expected = model(src, tgt_in).log_softmax(-1)
    full = FullForward([model], src, src.new_empty(5, 0))
    rules = Rules([1, 4, 9, 9, 20], 1, (0, 2))
    searches = [BeamSearch(rules, 3, length_normalizer("gnmt", 1.0), CPU) for _ in range(2)]
    best = searches[0].run(full.step, full, bos_id=2)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        found = stepwise(decoder_class(model), src, tgt_in)
        decoder = decoder_class(model)
        others = searches[1].run(decoder.step, decoder.begin(src), bos_id=2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_close(found, expected)
    assert [[h.ids for h in row] for row in others] == [[h.ids for h in row] for row in best]


@KINDS
@VARIANTS
@torch.no_grad()
def test_sources_of_any_length_are_encoded_as_in_the_full_forward(
    norm: str, positions: str, tie: str, kind: type[Transformer]
) -> None:
    model = random_model(norm=norm, positions=positions, tie_embeddings=tie, kind=kind)
    encoder = Encoder(model)
    for B, S in ((1, 1), (3, 6), (2, 16), (2, 17), (2, 30)):
        src = random_ids(B, S)
        src[0, S // 2 + 1 :] = model.shape.pad_id
        memory, bias = encoder(src)
        real = src != model.shape.pad_id
        assert_close(memory[: B * S].view(B, S, -1)[real], model.encode(src)[0][real])
        assert len(memory) == model.parts.pad_rows(B * S)
        assert bias.shape == (B, model.shape.num_heads, 1, max(S, 16))
        assert (bias.isfinite().sum((2, 3)) == real.sum(1, keepdim=True)).all()


@DECODERS
@torch.no_grad()
def test_selected_hypotheses_go_on_with_their_own_past_and_source(decoder_class: Any) -> None:
    """Two sentences of three hypotheses each are reordered, then the first sentence leaves."""
    model = random_model()
    src = random_ids(2, 6)
    src[0, 4:] = model.shape.pad_id
    decoder = decoder_class(model)
    state = decoder.begin(src)
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
    extend([1, 1, 0, 2], None, [11, 12, 13, 14])  # more than ever
    extend([3, 0, 2, 1], None, [15, 16, 17, 18])
    for turn in range(20):  # beyond the room at the start
        extend([turn % 4, 3, 0, 2], None, [4 + turn % 19, 5, 6, 7])
    assert owners.tolist() == [1, 1, 1, 1]


@DECODERS
@torch.no_grad()
def test_sentences_may_change_places_when_others_leave(decoder_class: Any) -> None:
    model = random_model()
    src, tgt_in = random_ids(5, 6), random_ids(5, 9, seed=2)
    src[3, 2:] = model.shape.pad_id
    expected = model(src, tgt_in).log_softmax(-1)
    decoder, owners = decoder_class(model), torch.arange(5)
    state = decoder.begin(src)
    for time, column in enumerate(tgt_in.unbind(1)):
        log_probs, state = decoder.step(column[owners], state)
        assert_close(log_probs, expected[owners, time])
        if time in (2, 5):
            kept = torch.tensor([4, 1, 3] if time == 2 else [1, 0])
            state, owners = state.select(kept, kept), owners[kept]
    assert owners.tolist() == [1, 4]


@dataclass(frozen=True)
class FullForward:
    """A step function without a cache, and its state: source and tokens of each hypothesis."""

    models: Sequence[Transformer]
    src: Tensor
    tokens: Tensor

    def step(self, newest: Tensor, state: FullForward) -> tuple[Tensor, FullForward]:
        state = replace(state, tokens=torch.cat((state.tokens, newest[:, None]), 1))
        probs = [model(state.src, state.tokens)[:, -1].softmax(-1) for model in self.models]
        return torch.stack(probs).mean(0).log(), state

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> FullForward:
        return replace(self, src=self.src[rows], tokens=self.tokens[rows])


@DECODERS
@torch.inference_mode()
def test_a_search_by_an_ensemble_finds_what_full_forward_passes_find(
    decoder_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences of many lengths leave the batch, whose memory shrinks, one after the other."""
    monkeypatch.setattr(recorded, "MIN_SENTENCES", 1)
    models = [random_model(n, norm=norm, d_model=8 * n) for n, norm in ((2, "post"), (3, "pre"))]
    decoder = Ensemble([decoder_class(model) for model in models])
    src = random_ids(12, 20)
    src[torch.arange(20) > torch.arange(12)[:, None]] = 0
    limits, prefixes = [1 + 2 * n for n in range(12)], [[5] * (n % 4) for n in range(12)]
    rules = Rules(limits, 1, (0, 2), prefixes, no_repeat_ngram=2)
    searches = [BeamSearch(rules, 3, length_normalizer("gnmt", 1.0), CPU) for _ in range(2)]
    found = searches[0].run(decoder.step, decoder.begin(src), bos_id=2)
    full = FullForward(models, src, src.new_empty(12, 0))
    for own, others in zip(found, searches[1].run(full.step, full, bos_id=2), strict=True):
        assert [h.ids for h in own] == [h.ids for h in others]
        assert [h.score for h in own] == pytest.approx([h.score for h in others], abs=1e-4)
    if decoder_class is RecordedDecoder:  # steps for few sentences are computed for few
        assert {size.B for member in decoder.members for size in member.replays} == {12, 3}


@torch.inference_mode()
def test_matrices_are_multiplied_by_few_numbers_of_rows() -> None:
    """One sentence of forty leaves at each position."""
    decoder, computed = Decoder(random_model(kind=cpu.RowTransformer)), set[int]()
    project = decoder.project

    def counted(rows: Tensor, out: Tensor | None = None) -> Tensor:
        computed.add(len(rows))
        return project(rows, out=out)

    decoder.project = counted
    rules = Rules(list(range(1, 41)), 1, (0, 2))
    search = BeamSearch(rules, 2, length_normalizer("gnmt", 1.0), CPU)
    search.run(decoder.step, decoder.begin(random_ids(40, 7)), bos_id=2)
    assert max(computed) == 80
    assert len(computed) <= 8 + 8 + 8 + 8 + 2  # below 16, 32, 64, up to 80


@pytest.mark.parametrize("max_graphs", [1, 9])
@torch.no_grad()
def test_a_step_is_recorded_once_for_each_size(
    monkeypatch: pytest.MonkeyPatch, max_graphs: int
) -> None:
    monkeypatch.setattr(recorded, "MAX_GRAPHS", max_graphs)
    record, sizes = recorded.record_graph, []

    def count(work: Any, *others: Any) -> Any:
        sizes.append(work)
        return record(work, *others)

    monkeypatch.setattr(recorded, "record_graph", count)
    model = random_model(kind=Transformer)
    decoder, recorded_so_far = RecordedDecoder(model), []
    for B, S, T in ((5, 14, 30), (6, 12, 28), (5, 30, 30), (6, 16, 30)):
        src, tgt_in = random_ids(B, S), random_ids(B, T, seed=B)
        found = stepwise(decoder, src, tgt_in)
        assert_close(found, model(src, tgt_in).log_softmax(-1))
        recorded_so_far.append(len(sizes))
    # memory grew for the longer targets of the first batch, and for the longer sources of the third
    assert recorded_so_far == ([2, 4, 5, 7] if max_graphs == 1 else [2, 3, 4, 6])


@torch.no_grad()
def test_memory_is_freed_before_larger_memory_takes_its_place() -> None:
    decoder, living = RecordedDecoder(random_model(kind=Transformer)), list[StorageWeakRef]()

    class Embedding(torch.nn.Parameter):
        def new_empty(self, count: int, dtype: torch.dtype) -> Tensor:
            assert sum(not storage.expired() for storage in living) < len(Memory._fields)
            tensor = torch.empty(count, dtype=dtype)
            living.append(StorageWeakRef(tensor.untyped_storage()))
            return tensor

    decoder.decoder.embedding = Embedding(decoder.decoder.embedding)
    for B, S, T in ((2, 6, 30), (8, 34, 4)):
        stepwise(decoder, random_ids(B, S), random_ids(B, T))
    assert len(living) > 2 * len(Memory._fields)
    count = len(living)
    state = decoder.step(torch.full((8,), 5), decoder.begin(random_ids(8, 34)))[1]
    state.select(torch.arange(8).repeat_interleave(3))
    assert len(living) > count


@needs_cuda
@VARIANTS
@torch.no_grad()
def test_a_gpu_computes_the_same(norm: str, positions: str, tie: str) -> None:
    model = random_model(norm=norm, positions=positions, tie_embeddings=tie, kind=Transformer)
    src, tgt_in = random_ids(3, 6), random_ids(3, 20, seed=2)
    src[0, 2:] = model.shape.pad_id
    expected = model(src, tgt_in)
    model.to("cuda")
    assert_close(model(src.cuda(), tgt_in.cuda()).cpu(), expected, 1e-4)
    assert isinstance(decoder_of(model), RecordedDecoder)
    for decoder_class in (Decoder, RecordedDecoder):
        steps = stepwise(decoder_class(model), src.cuda(), tgt_in.cuda()).cpu()
        assert_close(steps, expected.log_softmax(-1), 1e-4)
