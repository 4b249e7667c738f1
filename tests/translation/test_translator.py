"""Translation of lines: one output line per input line, limits, scores, and learning."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording
import torch
from conftest import TinyConfig, Train, made_up_pairs, random_model, run_mtrain
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.data.tokenizer import Tokenizer
from mtrain.model import recorded
from mtrain.model.decoder import DecoderState, Ensemble
from mtrain.model.transformer import Dropout
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.workers import CAN_FORK
from mtrain.translation import loading
from mtrain.translation.attention import align, attention_of, word_indices
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.search import Hypothesis
from mtrain.translation.streams import score_files, translate_stream
from mtrain.translation.threads import kept_threads
from mtrain.translation.translator import Line, Translation, Translator

SENTENCES = [src for src, _ in made_up_pairs(40, 11)]


def with_decode(
    translator: Translator, *, in_processes: bool = False, **settings: Any
) -> Translator:
    loaded = translator.loaded
    loaded = replace(loaded, decode=loaded.decode.model_copy(update=settings))
    return Translator(loaded, in_processes=in_processes)


def stream(translator: Translator, text: bytes, **options: Any) -> bytes:
    sink = io.BytesIO()
    translate_stream(translator, io.BytesIO(text), sink, **options)
    return sink.getvalue()


@pytest.fixture
def untrained(tokenizer: Tokenizer, config: Config) -> Callable[..., Translator]:
    """Return a function that makes translators with random weights."""

    def make(**shape: Any) -> Translator:
        model = random_model(vocab_size=tokenizer.vocab_size, **shape)
        return Translator(LoadedModel(model, tokenizer, config.decode, config))

    return make


# --- Texts -----------------------------------------------------------------------------------


def test_the_model_has_learnt_the_made_up_language(translator: Translator) -> None:
    pairs = made_up_pairs(100, 12)
    found = translator.best([src for src, _ in pairs])
    right = sum(text == tgt for text, (_, tgt) in zip(found, pairs, strict=True))
    assert right >= 80


def numbered(found: bytes) -> tuple[list[tuple[str, str]], list[float]]:
    """Split n-best lines into (index, text) and the scores."""
    rows = [line.split("\t") for line in found.decode().removesuffix("\n").split("\n")]
    return [(index, text) for index, _, text in rows], [float(score) for _, score, _ in rows]


@pytest.mark.parametrize("window", [1, 5, 12])
def test_windows_change_nothing(translator: Translator, window: int) -> None:
    text = "".join(line + "\n" for line in ["bavo", "", *SENTENCES[:8], "", "celu"]).encode()
    expected, scores = numbered(stream(translator, text, n_best=2))
    found = numbered(stream(with_decode(translator, window=window), text, n_best=2))
    assert found[0] == expected
    assert found[1] == pytest.approx(scores, rel=1e-4, abs=1e-5)


def test_windows_begin_small_and_grow_to_the_limit(translator: Translator) -> None:
    limited = with_decode(translator, window=3000)
    assert list(map(len, limited.in_windows(range(8500)))) == [1000, 2000, 3000, 2500]
    assert list(limited.in_windows("abc", 1)) == [["a"], ["b"], ["c"]]


def test_batch_size_changes_no_text_and_scores_only_by_rounding(translator: Translator) -> None:
    lines = [*SENTENCES, "", "bavo " * 30, "unheard ~ Wörds", *SENTENCES[:5]]
    expected, _ = with_decode(translator, batch_tokens=4096).translate(lines)
    for batch_tokens in (1, 100):
        found, _ = with_decode(translator, batch_tokens=batch_tokens).translate(lines)
        assert [h.text for row in found for h in row] == [h.text for row in expected for h in row]
        scores = [h.score for row in expected for h in row]
        assert [h.score for row in found for h in row] == pytest.approx(scores, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_texts_are_the_same_without_scores(translator: Translator, beam_size: int) -> None:
    small = with_decode(translator, beam_size=beam_size, batch_tokens=200)
    lines = [*SENTENCES, "", "bavo " * 30]
    expected, _ = small.translate(lines)
    counts: list[int] = []
    assert small.best(lines, counts.append) == [found[0].text for found in expected]
    assert sum(counts) == len(lines)


@pytest.fixture
def threads() -> int:
    torch.set_num_threads(3)
    return 3


def test_a_wide_beam_for_a_short_line_is_cut_into_batches(
    translator: Translator, threads: int
) -> None:
    wide = with_decode(translator, beam_size=1000)
    assert [len(batch) for batch in wide._batches([np.zeros(1, np.int64)])] == [1]


def test_the_longest_lines_are_translated_first(translator: Translator) -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 500)
    batches = with_decode(translator, batch_tokens=800)._batches([np.zeros(n) for n in lengths])
    assert len(batches) > 20
    in_turn = [lengths[batch] for batch in batches]
    assert all(a.min() >= b.max() for a, b in pairwise(in_turn))


@pytest.mark.parametrize("lines", [140, 200, 300, 2000])
def test_batches_give_all_threads_the_same_work(
    translator: Translator, threads: int, lines: int
) -> None:
    """Each sentence is in one batch, none of which is above the budget."""
    one = with_decode(translator, beam_size=1, batch_tokens=1200)
    rows = [np.zeros(3 + 7 * number % 17, np.int64) for number in range(lines)]
    batches = one._batches(rows)
    work = [len(batch) * max(len(rows[i]) + 1 for i in batch) for batch in batches]
    assert sorted(np.concatenate(batches)) == list(range(lines))
    assert len(batches) % threads == 0
    assert min(work[:-1]) >= 0.5 * max(work)
    assert max(work) <= min(1200, 1.2 * sum(work) / len(work))


@pytest.mark.parametrize(("lines", "beam", "at_once"), [(1, 1, 1), (60, 2, 1), (60, 40, 3)])
def test_no_more_threads_are_used_than_have_work(
    translator: Translator, threads: int, lines: int, beam: int, at_once: int
) -> None:
    """A thread has at least 512 tokens x beam size; each line has a few tokens."""
    some, found = with_decode(translator, beam_size=beam), []

    def search(group: list[Any], scored: bool) -> list[list[Hypothesis]]:
        found.append(torch.get_num_threads())
        return [[Hypothesis([], 0.0)] for _ in group]

    some.search = search  # type: ignore[method-assign]
    some.translate(["bavo"] * lines)
    assert set(found) == {1}
    assert len(found) % at_once == 0
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("in_processes", [False, True])
def test_parallel_batches_give_the_same_texts_in_the_same_order(
    translator: Translator, threads: int, in_processes: bool
) -> None:
    lines = [*SENTENCES, "", "bavo " * 600, *SENTENCES[:5]]
    small = with_decode(translator, batch_tokens=30, in_processes=in_processes)
    found, cut = small.translate(lines)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    assert (found, cut) == small.translate(lines)


def test_overlapping_calls_leave_the_number_of_threads(
    translator: Translator, threads: int
) -> None:
    """A thread of Python that begins meanwhile inherits the lower number of the batches."""
    small, found = with_decode(translator, batch_tokens=30), []
    started, ended = threading.Event(), threading.Event()

    def first(lines: int) -> None:
        started.set()
        ended.wait(60)

    def others() -> None:
        started.wait(60)
        torch.set_num_threads(1)  # as batches of the first call do
        for _ in range(2):
            small.translate(SENTENCES[:20])
            found.append(torch.get_num_threads())

    pool = ThreadPoolExecutor(2)
    futures = [pool.submit(small.translate, SENTENCES[:20], first), pool.submit(others)]
    futures[1].result()
    ended.set()
    futures[0].result()
    found.append(ThreadPoolExecutor(1).submit(torch.get_num_threads).result())
    assert found == [threads] * 3


def test_a_stop_cancels_the_waiting_batches(translator: Translator, threads: int) -> None:
    small = with_decode(translator, batch_tokens=1)
    searched, stopped, calls = [], threading.Event(), count()

    class StoppedError(Exception):
        pass

    def search(sources: list[Any], scored: bool) -> list[list[Hypothesis]]:
        searched.append(sources)
        if next(calls) >= threads:  # all batches but the first ones wait for the stop
            stopped.wait(2)
        return [[Hypothesis([], 0.0)] for _ in sources]

    def stop() -> None:
        threading.Timer(0.1, stopped.set).start()
        raise StoppedError

    small.loaded.check_stop = stop
    small.search = search  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        small.best(SENTENCES * 5)
    assert len(searched) <= 3 * threads
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not CAN_FORK, reason="processes are not forked here")
def test_processes_translate_many_batches_and_end_with_a_stop(
    translator: Translator, threads: int
) -> None:
    class StoppedError(Exception):
        pass

    def stop() -> None:
        processes.append({each.pid for each in multiprocessing.active_children()})
        if len(processes) == 3:
            raise StoppedError

    processes: list[set[int | None]] = []
    small = with_decode(translator, batch_tokens=30, in_processes=True)
    small.loaded.check_stop = stop
    with pytest.raises(StoppedError):
        small.best(SENTENCES * 5)
    assert processes[0] == processes[-1]
    assert len(processes[0]) == threads
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(not CAN_FORK, reason="processes are not forked here")
def test_two_batches_at_a_time_are_translated_in_this_process(translator: Translator) -> None:
    torch.set_num_threads(2)
    small = with_decode(translator, batch_tokens=30, in_processes=True)
    processes: list[object] = []
    small.loaded.check_stop = lambda: processes.append(multiprocessing.active_children())
    small.best(SENTENCES * 5)
    assert len(processes) > 2
    assert not any(processes)


ODD = "bavo\u2028celu\x0cdimar\x85fosi\x1cjori\rlapo\u2029hanp\x0bkesum".encode()


def count_lines(text: bytes) -> int:
    """Count lines; the last line needs no newline."""
    return text.count(b"\n") + (not text.endswith(b"\n") and text != b"")


@given(
    lines=st.lists(st.binary(max_size=8) | st.sampled_from([b"bavo celu", b" ", b"\xc2\x85", ODD])),
    final_newline=st.booleans(),
)
@example([], False)
@example([b"", b"bavo", b"\r", b"\x00", b"\xff\xfe", ODD], True)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_come_back_line_for_line(
    translator: Translator, lines: list[bytes], final_newline: bool
) -> None:
    """Output lines have the numbers of their input lines; a blank line gives a blank line."""
    lines = [line.replace(b"\n", b"") for line in lines]
    text = b"\n".join(lines) + (b"\n" if final_newline else b"")
    found = stream(translator, text, n_best=1)
    rows = [row.split(b"\t", 2) for row in found.split(b"\n")[:-1]]
    assert [int(row[0]) for row in rows] == list(range(count_lines(text)))
    for line, row in zip(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), rows, strict=False):
        if not line.decode("utf-8", "replace").strip():
            assert row[2] == b""


def test_removed_and_replaced_characters_are_counted(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    found = stream(translator, b"\xef\xbb\xbfbavo \xff celu\r\nbavo\r\n\xc3\n")
    messages = ["carriage returns removed: 2", "lines invalid UTF-8, read with U+FFFD: 2"]
    assert sorted(record.getMessage() for record in caplog.records) == messages
    assert found == stream(translator, "bavo \ufffd celu\nbavo\n\ufffd\n".encode())


@pytest.mark.parametrize(
    ("character", "message"),
    [
        (b"\0", "lines with NUL characters, which may be damaged: 2"),
        (b"\r", "lines with carriage returns inside, which do not count as line ends: 2"),
    ],
)
def test_odd_characters_are_warned_of(
    translator: Translator, caplog: pytest.LogCaptureFixture, character: bytes, message: str
) -> None:
    stream(translator, b"bavo ??celu\nbavo\n?bavo\n".replace(b"?", character))
    assert caplog.messages == [message]


def test_white_space_before_the_text_of_a_long_line_does_not_count(translator: Translator) -> None:
    blanks = b" " * (translator.loaded.max_characters(translator.loaded.max_source_length) + 1)
    assert stream(translator, blanks + b"bavo celu\n") == stream(translator, b"bavo celu\n")


def test_a_generated_newline_becomes_a_space(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is replaced by a script of `bavo`, a newline byte, and eos."""
    pieces = translator.loaded.tokenizer.processor
    (ids,) = translator.loaded.tokenizer.encode(["bavo"])
    script = [*ids, pieces.piece_to_id("<0x0A>"), translator.loaded.tokenizer.eos_id]

    def step(tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        log_probs = torch.full((len(tokens), translator.loaded.tokenizer.vocab_size), -50.0)
        log_probs[:, script[min(state.time, len(script) - 1)]] = 0.0
        return log_probs, replace(state, time=state.time + 1)

    monkeypatch.setattr(translator.loaded.decoder, "step", step)
    assert stream(translator, b"fosi\njori\n") == b"bavo \nbavo \n"


# --- Formats ---------------------------------------------------------------------------------


def test_n_best_lines_carry_the_number_of_their_input(translator: Translator) -> None:
    wide = with_decode(translator, beam_size=4)
    rows, scores = numbered(stream(wide, b"bavo celu\n\nfosi\n", n_best=3))
    assert [index for index, _ in rows] == ["0", "0", "0", "1", "2", "2", "2"]
    (first, last), _ = wide.translate(["bavo celu", "fosi"])
    expected = [*first[:3], Translation("", 0.0), *last[:3]]
    assert [text for _, text in rows] == [h.text for h in expected]
    assert scores == pytest.approx([h.score for h in expected], abs=1e-4)
    scored = stream(wide, b"bavo celu\n\n", scores=True).decode().split("\n")
    assert [line.split("\t")[1] for line in scored[:-1]] == [first[0].text, ""]
    assert float(scored[0].split("\t")[0]) == pytest.approx(first[0].score, abs=1e-4)
    assert len({text for _, text in rows[:3]}) == 3


# --- Tags ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(both_run: Path) -> LoadedModel:
    return loading.load(both_run, device="cpu", precision="fp32")


def test_a_tag_is_before_each_source_within_the_limit(both: LoadedModel) -> None:
    (ids,), (tag,) = both.tokenizer.encode(["bavo celu"]), both.tokenizer.tag_ids("<2aa>")
    tagged = both.tagged("<2aa>")
    for room, kept, cut in ((2, ids, []), (1, ids[:-1], [0])):
        small = with_decode(Translator(tagged), max_source_length=len(ids) + room).loaded
        (source,), found = small.encode_sources(["bavo celu"])
        assert (source.tolist(), found) == ([tag, *kept], cut)
    assert tagged.encode_targets(["bavo celu"])[0][0].tolist() == ids


def test_words_are_linked_to_words_of_the_line(both: LoadedModel) -> None:
    tagged, line = both.tagged("<2aa>"), "zwent yalch quarb"
    (source,), (target,) = tagged.encode_sources([line])[0], tagged.encode_targets(["bavo"])[0]
    table = attention_of(tagged, source, target).cross[0].mean(0)[:-1, 1:-1].sum(0)
    words = word_indices([tagged.tokenizer.model_pieces[number] for number in source[1:]])
    best = np.bincount(words, table).argmax()
    assert align(tagged, [line, ""], ["bavo", "bavo"]) == ([f"{best}-0", ""], [])
    least = with_decode(Translator(tagged), max_source_length=2).loaded
    assert align(least, [line], ["bavo"]) == ([""], [])
    long = "bavo celu " * 4
    short = with_decode(Translator(tagged), max_source_length=6, max_len_b=40).loaded
    (links,), cut = align(short, [line], [long])  # only the source is cut
    assert cut == []
    assert [link.split("-")[1] for link in links.split()] == list("01234567")
    none = with_decode(Translator(tagged), max_len_a=0.0, max_len_b=0).loaded
    assert align(none, ["", line], ["", long]) == (["", ""], [1])  # no target word fits


def test_each_part_of_the_validation_set_has_its_tag(both: LoadedModel, both_run: Path) -> None:
    content = json.loads((both_run / "best.json").read_text())
    best = content["best"]["checkpoint"]
    written = (both_run / "validation" / f"{best}.txt").read_text().split("\n")
    sources, targets = zip(*made_up_pairs(12, 2), strict=True)
    there, back = both.tagged("<2bb>"), both.tagged("<2aa>")
    assert Translator(there).best([*sources]) + Translator(back).best([*targets, ""]) == written
    assert (there.tgt_lang, back.tgt_lang, both.tgt_lang) == ("ba", "aa", "ba")
    data = both.config.data.model_copy(update={"test": {}})
    without_test = both.config.model_copy(update={"data": data})
    directions = [*there.directions, *back.directions]
    assert replace(both, config=without_test).directions == directions
    [parts] = [
        entry["parts"]
        for entry in [*content["history"], content["average"]]
        if entry["checkpoint"] == best
    ]
    nll = [
        Scorer(there).nll([*sources], [*targets], Ranks()),
        Scorer(back).nll([*targets], [*sources], Ranks()),
    ]
    assert [part["nll"] for part in parts] == pytest.approx(nll)


@pytest.mark.parametrize(("count", "level"), [(2, "WARNING"), (1, "INFO")])
def test_tags_are_logged_if_none_is_given(
    both: LoadedModel, request: pytest.FixtureRequest, count: int, level: str
) -> None:
    caplog, patch = map(request.getfixturevalue, ("caplog", "monkeypatch"))
    data = both.config.data
    plain = [each.model_copy(update={"tag": None}) for each in data.train[count:]]
    data = data.model_copy(update={"train": data.train[:count] + plain})
    loaded = replace(both, config=both.config.model_copy(update={"data": data}))
    patch.setattr(loading, "load", lambda: loaded)
    with caplog.at_level(logging.INFO, "mtrain"):
        assert [loading.load_with_tag(tag=tag).tag for tag in ("<2aa>", None)] == ["<2aa>", None]
    [(name, text)] = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert (name, text.count("<2bb>"), text.count("<2aa>")) == (level, 1, count - 1)


def test_a_model_of_one_direction_starts_from_a_model_of_both(
    both_run: Path, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config(**{"train.init_from": str(both_run), "train.max_steps": 2})
    assert run_mtrain("train", "-c", config).returncode == 0
    assert loading.load(both_run, both_run, device="cpu").tags == ["<2bb>", "<2aa>"]
    with pytest.raises(RefusedError, match=r"tag <2aa>: .*it has no tags"):
        loading.load(both_run, tmp_path / "run", device="cpu").tagged("<2aa>")


# --- Limits ----------------------------------------------------------------------------------


def test_a_source_that_is_too_long_is_cut_counted_and_named(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    (ids,) = translator.loaded.tokenizer.encode(["bavo celu dimar fosi"])
    short = with_decode(translator, max_source_length=len(ids) + 1, window=2)
    long = "bavo celu dimar fosi gutel hanp"
    results, cut = short.translate(["", "bavo", long, "bavo celu dimar fosi"])
    assert cut == [2]
    assert results[2][0].text == translator.best(["bavo celu dimar fosi"])[0]
    assert short.best(["", "bavo", long], cut=cut.extend) == [row[0].text for row in results[:3]]
    assert cut == [2, 2]

    text = f"bavo\n\nbavo\n{long}\nbavo\n{long}\n".encode()
    with caplog.at_level(logging.WARNING, "mtrain"):
        assert stream(short, text).count(b"\n") == 6
    (record,) = caplog.records
    limit = len(ids) + 1
    assert record.getMessage() == f"lines longer than {limit} tokens, cut there: 2 (lines 4, 6)"


@pytest.mark.parametrize(("a", "b"), [(0.0, 0), (0.0, 7), (0.5, 2), (2.0, 1)])
def test_translations_end_at_the_limit_of_their_own_source(
    untrained: Callable[..., Translator], a: float, b: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that never ends fills each limit: a * source tokens + b."""
    found = with_decode(untrained(), max_len_a=a, max_len_b=b, beam_size=1)
    rows, _ = found.loaded.encode_sources(["bavo", "celu fosi hanp jori", "dimar lapo"])
    true_step = found.loaded.decoder.step

    def step(tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        log_probs, after = true_step(tokens, state)
        log_probs[:, found.loaded.ids.eos] = -100.0
        return log_probs, after

    monkeypatch.setattr(found.loaded.decoder, "step", step)
    lengths = [len(best.ids) for (best,) in found.search(list(map(Line, rows)))]
    assert lengths == [int(a * len(row) + b) for row in rows]


@pytest.mark.parametrize("n_best", [None, 2])
def test_translations_as_long_as_their_limit_are_named(
    translator: Translator, caplog: pytest.LogCaptureFixture, n_best: int | None
) -> None:
    lines = ["bavo", "", *SENTENCES[:2]]
    text = "".join(f"{line}\n" for line in lines).encode()
    stream(translator, text, n_best=n_best)
    assert caplog.messages == []
    for limit, is_named in ((3, True), (30, False)):  # in tokens with eos
        short = with_decode(translator, max_len_a=0.0, max_len_b=limit - 1)
        stream(short, text, n_best=n_best)
        lengths = [best.tokens for best, *_ in short.translate(lines)[0]]
        numbers = [str(number) for number, length in enumerate(lengths, 1) if length == limit]
        assert bool(numbers) == is_named
        assert "2" not in numbers
        named = f": {len(numbers)} (lines {', '.join(numbers)}); look at them, and raise --max-len"
        assert [named in message for message in caplog.messages] == [True] * is_named
        caplog.clear()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_hypothesis_contains_pad_or_bos(
    untrained: Callable[..., Translator], beam_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = with_decode(untrained(), beam_size=beam_size)
    decoder, special = found.loaded.decoder, {found.loaded.ids.pad, found.loaded.ids.bos}
    true_logits = decoder.logits

    def logits(tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        values, after = true_logits(tokens, state)
        values[:, list(special)] += 100.0
        return values, after

    monkeypatch.setattr(decoder, "logits", logits)
    rows, _ = found.loaded.encode_sources(SENTENCES[:3])
    for scored in (False, True):
        for hypotheses in found.search(list(map(Line, rows)), scored):
            assert all(special.isdisjoint(hypothesis.ids) for hypothesis in hypotheses)


@pytest.mark.parametrize("is_ensemble", [False, True])
def test_one_search_at_a_time_uses_the_memory_of_a_gpu(
    untrained: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch, is_ensemble: bool
) -> None:
    """Threads of Python may share a model."""
    monkeypatch.setattr(recorded, "record_graph", recording.record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    found = untrained()
    expected = [found.best([line]) for line in SENTENCES[:6]]
    own = recorded.RecordedDecoder(found.loaded.model)
    both = [own, recorded.RecordedDecoder(found.loaded.model)]
    found.loaded.decoder = Ensemble(both) if is_ensemble else own  # type: ignore[misc]
    locked, begin = list[bool](), own.begin

    def noted(src: Tensor) -> Any:
        locked.append(own.lock.locked())
        return begin(src)

    monkeypatch.setattr(own, "begin", noted)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda line: found.best([line]), SENTENCES[:6]))
    assert all(locked)
    assert results == expected


@pytest.mark.parametrize("words", [8, 40])
def test_learned_positions_limit_both_sides(
    untrained: Callable[..., Translator], words: int
) -> None:
    found = untrained(positions="learned", max_positions=12)
    line = "bavo celu " * words
    results, cut = found.translate(["bavo", line])
    assert cut == [1]
    assert all(hypothesis.score < 0 for row in results for hypothesis in row)
    assert [len(ids) + 1 for ids in found.loaded.encode_targets([line])[0]] == [12]
    for source, prefix in (("bavo", line), (line, line)):  # no room for a translation
        assert found.translate([source], prefixes=[prefix])[1] == [0]
    assert found.loaded.max_target_length == 12
    shorter = untrained(positions="learned", max_positions=9).loaded
    assert replace(found.loaded, other_models=(shorter,)).positions_limit == 9
    assert Scorer(found.loaded).score(["bavo", "bavo"], ["bavo", line])[1] == ([], [1])


def test_a_target_is_cut_at_its_own_limit(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a large `max_len_b`, this limit is much larger than the limit of the source."""
    loaded = with_decode(translator, max_source_length=2, max_len_b=400).loaded
    line = "unheard ~ words " * 20
    assert len(line) > loaded.max_characters(2)
    assert loaded.encode_sources([line])[1] == [0]
    (ids,), cut = loaded.encode_targets([line])
    assert (ids.tolist(), cut) == (loaded.tokenizer.encode([line])[0], [])
    path = tmp_path / "line"
    path.write_text(f"{line}\n", encoding="utf-8")
    scores, _ = Scorer(loaded).score([line], [line])
    assert list(score_files(loaded, path, path)) == pytest.approx(scores)
    message = f"{path}: lines longer than 2 tokens, cut there: 1 (line 1)"
    assert [record.getMessage() for record in caplog.records] == [message]


# --- Scores ----------------------------------------------------------------------------------


def source_ids(translator: Translator, line: str) -> Tensor:
    return torch.tensor(
        [[*translator.loaded.tokenizer.encode([line])[0], translator.loaded.ids.eos]]
    )


@pytest.mark.parametrize("line", [*SENTENCES[:3], "unheard ~ Wörds"])
@torch.no_grad()
def test_the_forced_score_of_a_hypothesis_is_its_search_score(
    translator: Translator, line: str
) -> None:
    loaded = translator.loaded
    wide = with_decode(translator, beam_size=5)
    (found,) = wide.search([Line(np.array(loaded.tokenizer.encode([line])[0]))])
    assert len(found) >= 5
    for hypothesis in found:
        tgt_in = torch.tensor([[loaded.ids.bos, *hypothesis.ids]])
        answers = torch.tensor([*hypothesis.ids, loaded.ids.eos])
        log_probs = loaded.model(source_ids(translator, line), tgt_in)[0].log_softmax(-1)
        forced = float(log_probs[torch.arange(len(answers)), answers].sum())
        assert hypothesis.score == pytest.approx(forced, abs=1e-4)


@pytest.mark.parametrize("options", [{"scores": True}, {"n_best": 1}])
def test_greedy_search_gives_scores_if_they_are_asked_for(
    translator: Translator, options: dict[str, Any]
) -> None:
    greedy = with_decode(translator, beam_size=1)
    *_, score, text = stream(greedy, b"bavo celu\n", **options).decode().rstrip("\n").split("\t")
    expected, _ = Scorer(translator.loaded).score(["bavo celu"], [text])
    assert [float(score)] == pytest.approx(expected, abs=1e-5)


def test_samples_have_no_unknown_pieces(translator: Translator) -> None:
    """At this temperature all pieces are about equally likely."""
    loaded = with_decode(translator, sample=True, temperature=100.0, max_len_b=40).loaded
    [samples], _ = Translator(loaded, n_best=200).translate(["bavo celu"])
    text = "".join(sample.text for sample in samples)
    assert len(text) > 5000
    assert "⁇" not in text


def test_a_stop_ends_the_scoring(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedError(Exception):
        pass

    def score(scorer: Scorer, pairs: list[Any]) -> Tensor:
        scored.append(pairs)
        return torch.zeros(1, dtype=torch.float64)

    def stop() -> None:
        if len(scored) == 2:
            raise StoppedError

    scored: list[Any] = []
    loaded = with_decode(translator, batch_tokens=1).loaded
    loaded.check_stop = stop
    monkeypatch.setattr(Scorer, "_batch_nll", score)
    with pytest.raises(StoppedError):
        Scorer(loaded).score(SENTENCES, SENTENCES)
    assert len(scored) == 2


def test_scores_do_not_depend_on_batches_and_sum_up_to_the_nll(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [*made_up_pairs(30, 13), ("bavo", ""), ("", "zwent"), ("", "")]
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    scores, _ = Scorer(translator.loaded).score(sources, targets)
    alone = Scorer(with_decode(translator, batch_tokens=1).loaded).score(sources, targets)[0]
    assert alone == pytest.approx(scores, rel=1e-4, abs=1e-4)
    # three rows of logits at a time
    monkeypatch.setattr("mtrain.translation.scorer.MAX_LOGITS", 1000)
    assert Scorer(translator.loaded).score(sources, targets)[0] == pytest.approx(scores, abs=1e-4)
    nll = Scorer(translator.loaded).nll(sources, targets, Ranks())
    tokens = sum(len(ids) + 1 for ids in translator.loaded.tokenizer.encode(targets))
    assert nll == pytest.approx(-sum(scores) / tokens, rel=1e-5)
    assert Scorer(translator.loaded).score([], []) == ([], ([], []))


@pytest.mark.parametrize("batch_tokens", [60, 10_000])
def test_batches_are_scored_at_the_same_time_with_the_same_result(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, batch_tokens: int
) -> None:
    """Each thread has one of torch's, so that the number of threads changes no bit."""
    pairs, seen, score_batch = made_up_pairs(40, 17), set[int](), Scorer._batch_nll

    def noted(scorer: Scorer, pairs: Any) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return score_batch(scorer, pairs)

    monkeypatch.setattr(Scorer, "_batch_nll", noted)
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    scorer = Scorer(with_decode(translator, batch_tokens=batch_tokens, window=25).loaded)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(scorer.nll(sources, targets, Ranks()))
        assert (seen, torch.get_num_threads()) == ({1}, threads)
        assert scorer.score([], []) == ([], ([], []))
        with ThreadPoolExecutor(1) as pool:  # a new thread
            assert pool.submit(torch.get_num_threads).result() == threads
    assert found[0] == found[1] == found[2]


def test_a_model_in_training_is_used_without_dropout(tokenizer: Tokenizer, config: Config) -> None:
    rates = Dropout(0.5, 0.5, 0.5)
    model = random_model(vocab_size=tokenizer.vocab_size, rates=rates).train()
    scorer = Scorer(LoadedModel(model, tokenizer, config.decode, config))
    assert scorer.score(["bavo"], ["zwent"]) == scorer.score(["bavo"], ["zwent"])


# --- Loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("threads", "ranks"), [(1, Ranks()), (2, Ranks(local_size=1000))])
def test_a_process_has_no_more_threads_than_are_left_to_it(
    trained_run: Path, threads: int, ranks: Ranks
) -> None:
    """By OMP_NUM_THREADS, which sets torch's number, or by other ranks; but at least one."""
    torch.set_num_threads(threads)
    loading.load_on_ranks([trained_run], ranks, device="cpu", precision="fp32")
    assert torch.get_num_threads() == 1


def test_bf16_translates(trained_run: Path) -> None:
    found = Translator(loading.load(trained_run, device="cpu", precision="bf16"))
    assert found.loaded.model.dtype == torch.bfloat16
    pairs = made_up_pairs(20, 15, longest=3)
    answers = found.best([src for src, _ in pairs])
    assert sum(a == tgt for a, (_, tgt) in zip(answers, pairs, strict=True)) >= 15


# --- Learning --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_small_model_learns_to_reverse_and_translate(
    tiny_config: TinyConfig, train: Train
) -> None:
    """Up to six words in reverse order; nearly all unseen lines are translated correctly."""
    model = {"d_model": 96, "num_heads": 4, "d_ff": 192, "dropout": 0.0}
    steps = {"max_steps": 1500, "warmup_steps": 100, "save_every": 750, "valid_every": 1500}
    steps |= {"schedule": "linear", "peak_lr": 0.003, "max_tokens": 1024, "log_every": 500}
    settings = {f"train.{key}": value for key, value in steps.items()}
    settings |= {f"model.{key}": value for key, value in model.items()}
    layers = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}
    text = {"pairs": 8000, "longest": 6, "tokenizer.vocab_size": 350}
    config = tiny_config(**settings, **layers, **text)
    assert train(config) == 0
    unseen = sorted(set(made_up_pairs(300, 16, 6)) - set(made_up_pairs(8000, 1, 6)))
    found = Translator(loading.load(config.parent / "run", device="cpu", beam_size=1))
    answers = found.best([src for src, _ in unseen])
    right = sum(a == tgt for a, (_, tgt) in zip(answers, unseen, strict=True))
    assert right >= 0.95 * len(unseen)


@pytest.mark.parametrize("method", ["embed", "hidden"])
def test_out_of_memory_errors_say_what_to_lower(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(translator.loaded.model, method, fail)
    lines = ["bavo", "celu"]
    use = {
        "embed": translator.best,
        "hidden": lambda lines: Scorer(translator.loaded).score(lines, lines),
    }
    with pytest.raises(UserError, match=r"out of memory on 2 lines.*--batch-tokens") as caught:
        use[method](lines)
    assert ("--beam-size" in str(caught.value)) == (method == "embed")  # `score` has no beam


def test_overlapping_uses_of_threads_begin_and_end_with_the_number_from_before() -> None:
    torch.set_num_threads(3)
    with kept_threads():
        torch.set_num_threads(1)
        with kept_threads():
            assert torch.get_num_threads() == 3
            torch.set_num_threads(1)
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
    assert torch.get_num_threads() == 3
