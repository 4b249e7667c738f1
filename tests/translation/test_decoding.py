"""Other ways to decode: forced beginnings, no repeated rows, sampling, ensembles, alignments."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import made_up_pairs, random_model, run_mtrain
from hypothesis import given
from hypothesis import strategies as st
from test_search import BOS, EOS, Scored, Table, ToyState, enumerate_all, random_table
from torch import Tensor

from mtrain.config.schema import DecodeConfig, override_decode
from mtrain.data.tokenizer import Tokenizer, train_tokenizer
from mtrain.runs.checkpoint import Snapshot, load, resolve, save
from mtrain.runtime.errors import EXIT_FAILED, EXIT_REFUSED
from mtrain.translation import loading
from mtrain.translation.sampling import Choice, sample
from mtrain.translation.scorer import Scorer
from mtrain.translation.search import Hypothesis, Rules, beam_search, length_normalizer
from mtrain.translation.translator import Translator
from mtrain.translation.word_links import align, word_numbers

NORMAL = length_normalizer("power", 1.0)
LINES = [src for src, _ in made_up_pairs(20, 51, longest=7)]


def toy(table: Table, count: int) -> dict[str, Any]:
    """A step function over a table, and its state for so many sentences."""

    def step(tokens: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        pairs = zip(state.prefixes, tokens.tolist(), strict=True)
        prefixes = [(*prefix, token) for prefix, token in pairs]
        rows = [table(s, p[1:]) for s, p in zip(state.owners, prefixes, strict=True)]
        after = ToyState(state.owners, prefixes, state.sentences)
        return torch.tensor(rows, dtype=torch.float64), after

    everyone = list(range(count))
    return {"step": step, "state": ToyState(everyone, [()] * count, everyone), "bos_id": BOS}


def wide_search(table: Table, rules: Rules) -> list[list[Hypothesis]]:
    """A beam that holds everything there is."""
    parts = toy(table, len(rules.max_lens))
    return beam_search(**parts, rules=rules, beam_size=300, normalize=NORMAL)


def best_of(expected: Scored) -> tuple[tuple[int, ...], float]:
    return max(expected, key=lambda e: e[1] / (len(e[0]) + 1))


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_translations_begin_as_they_are_told(seed: int) -> None:
    table, limits, prefixes = random_table(seed, 4), [4, 5, 3], [[2, 3], [], [3]]
    found = wide_search(table, Rules(limits, EOS, prefixes=prefixes))
    for sentence, (limit, prefix) in enumerate(zip(limits, prefixes, strict=True)):
        every = enumerate_all(table, sentence, limit, 4)
        ids, score = best_of([e for e in every if list(e[0][: len(prefix)]) == prefix])
        assert tuple(found[sentence][0].ids) == ids
        assert found[sentence][0].score == pytest.approx(score, abs=1e-6)  # the prefix's included


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_row_of_tokens_comes_twice(seed: int, length: int) -> None:
    table, limits = random_table(seed, 3), [6, 5]
    found = wide_search(table, Rules(limits, EOS, settings=DecodeConfig(no_repeat_ngram=length)))
    for sentence, limit in enumerate(limits):
        every = enumerate_all(table, sentence, limit, 3)
        ids, score = best_of([e for e in every if max_count(e[0], length) < 2])
        assert tuple(found[sentence][0].ids) == ids
        assert found[sentence][0].score == pytest.approx(score, abs=1e-6)


def max_count(ids: tuple[int, ...], length: int) -> int:
    rows = [ids[start : start + length] for start in range(len(ids) - length + 1)]
    return max(Counter(rows).values(), default=0)


def test_a_prefix_may_repeat_and_holds_what_is_banned() -> None:
    rules = Rules(
        [6], EOS, banned=(2,), prefixes=[[2, 2, 2]], settings=DecodeConfig(no_repeat_ngram=1)
    )
    (found,) = wide_search(random_table(1, 4), rules)
    assert all(h.ids[:3] == [2, 2, 2] and 2 not in h.ids[3:] for h in found)


# --- sampling -----------------------------------------------------------------------------------


def draw(table: Table, choice: Choice, seeds: list[list[int]], limit: int = 4) -> list[Hypothesis]:
    parts = toy(table, len(seeds))
    rules = Rules([limit] * len(seeds), EOS)
    return sample(**parts, rules=rules, choice=choice, seeds=seeds, normalize=NORMAL)


def same_for_all(table: Table) -> Table:
    return lambda sentence, prefix: table(0, prefix)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_are_as_frequent_as_they_are_likely(temperature: float) -> None:
    table, count = same_for_all(random_table(3, 4)), 3000
    found = draw(table, Choice(temperature), [[1, n] for n in range(count)], limit=2)
    first = np.bincount([h.ids[0] if h.ids else EOS for h in found], minlength=4) / count
    weights = np.exp(np.array(table(0, ())) / temperature)
    assert first == pytest.approx(weights / weights.sum(), abs=0.03)


def test_a_sample_s_score_is_the_model_s_whatever_the_temperature() -> None:
    table = random_table(5, 6)
    for sentence, h in enumerate(draw(table, Choice(3.0), [[n] for n in range(20)])):
        ids = [*h.ids, EOS]
        expected = sum(table(sentence, tuple(ids[:n]))[token] for n, token in enumerate(ids))
        assert h.score == pytest.approx(expected, abs=1e-6)
        assert h.normalized == pytest.approx(expected / len(ids), abs=1e-6)


def test_a_seed_fixes_a_sample_whatever_else_is_drawn() -> None:
    table = same_for_all(random_table(6, 9))
    seeds = [[2, n] for n in range(30)]
    together = [h.ids for h in draw(table, Choice(), seeds, limit=8)]
    alone = [draw(table, Choice(), [seed], limit=8)[0].ids for seed in seeds]
    assert together == alone
    assert len({str(ids) for ids in together}) > 20


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        (Choice(top_k=1), {2}),
        (Choice(top_k=2), {1, 2}),
        (Choice(top_p=0.45), {2}),
        (Choice(top_p=0.55), {1, 2}),
        (Choice(top_p=0.81), {0, 1, 2}),
        (Choice(top_k=2, top_p=0.9), {1, 2}),
        (Choice(top_k=9), {0, 1, 2, 3}),
        # of 0.1 ** 2, 0.2 ** 2 ...: the likeliest alone has more than 0.7 of it
        (Choice(temperature=0.5, top_p=0.7), {2}),
    ],
)
def test_the_least_likely_are_left_out(choice: Choice, kept: set[int]) -> None:
    probs = torch.tensor([[0.2, 0.25, 0.5, 0.05]]).log()
    numbers = torch.linspace(0, 1, 501, dtype=torch.float64)
    drawn = choice.draw(probs.expand(501, 4), numbers)
    assert set(drawn.tolist()) == kept


def test_a_sample_ends_at_its_limit_even_if_nothing_may() -> None:
    endless = lambda sentence, prefix: [-float("inf"), -1.0, -1.0]  # noqa: E731
    (found,) = draw(endless, Choice(), [[1]], limit=5)
    assert len(found.ids) == 4


def test_lines_are_sampled_by_their_number(translator: Translator) -> None:
    decode = override_decode(translator.decode, sample=True)
    model = replace(translator.loaded, decode=decode)
    sampling = Translator(model, seed=5)
    found = sampling.best(LINES)
    assert found == sampling.best(LINES)
    assert [h[0].text for h in sampling.translate(LINES[7:], first=7)[0]] == found[7:]
    small = replace(model, decode=override_decode(decode, batch_tokens=8))
    assert Translator(small, seed=5).best(LINES) == found
    assert Translator(model, seed=6).best(LINES) != found
    assert translator.best(LINES) != found


def test_several_samples_of_a_line(translator: Translator) -> None:
    decode = override_decode(translator.decode, sample=True, temperature=2.0)
    results, _ = Translator(replace(translator.loaded, decode=decode), samples=3).translate(LINES)
    assert [len(found) for found in results] == [3] * len(LINES)
    assert sum(len({each.text for each in found}) > 1 for found in results) > 10


# --- ensembles ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of other weights, and the same vocabulary."""
    snapshot = load(resolve(trained_run))
    random = torch.Generator().manual_seed(1)
    weights = {
        name: weight + 0.05 * torch.randn(weight.shape, generator=random)
        for name, weight in snapshot.weights.items()
    }
    path = tmp_path_factory.mktemp("other") / "checkpoint"
    save(path, Snapshot(weights, snapshot.config, snapshot.tokenizer))
    return path


@pytest.fixture(scope="module")
def ensemble(trained_run: Path, other_run: Path) -> Translator:
    return Translator(loading.load(trained_run, other_run, device="cpu", precision="fp32"))


def test_an_ensemble_of_one_model_is_that_model(trained_run: Path, translator: Translator) -> None:
    twice = Translator(loading.load(trained_run, trained_run, device="cpu", precision="fp32"))
    both, _ = twice.translate(LINES)
    alone, _ = translator.translate(LINES)
    assert [h[0].text for h in both] == [h[0].text for h in alone]
    scores = [h[0].score for h in alone]
    assert [h[0].score for h in both] == pytest.approx(scores, rel=1e-4)


@torch.no_grad()
def test_an_ensemble_takes_the_mean_of_probabilities(ensemble: Translator) -> None:
    loaded = ensemble.loaded
    src = torch.tensor([[*loaded.tokenizer.encode([LINES[0]])[0], loaded.ids.eos]])
    tgt = torch.tensor([[loaded.ids.bos, 9, 12, 40]])
    state = loaded.decoder.begin(src)
    for place in range(tgt.shape[1]):
        log_probs, state = loaded.decoder.step(tgt[:, place], state)
        probs = [model(src, tgt[:, : place + 1])[0, -1].softmax(-1) for model in loaded.members]
        torch.testing.assert_close(log_probs[0].exp(), torch.stack(probs).mean(0))


def test_an_ensemble_s_forced_scores_are_those_of_its_search(ensemble: Translator) -> None:
    found, _ = ensemble.translate(LINES)
    tokenizer = ensemble.loaded.tokenizer
    best = [hypotheses[0] for hypotheses in found]
    exact = [
        place
        for place, each in enumerate(best)
        if tokenizer.decode(tokenizer.encode([each.text]))[0] == each.text
    ]
    scores, _ = Scorer(ensemble.loaded).score(
        [LINES[n] for n in exact], [best[n].text for n in exact]
    )
    close = [
        abs(score - best[n].score) < 1e-3 * max(1, abs(score))
        for score, n in zip(scores, exact, strict=True)
    ]
    assert sum(close) > 0.8 * len(exact)  # others were spelled with other pieces


def test_models_of_an_ensemble_may_differ_in_size(ensemble: Translator) -> None:
    smaller = random_model(vocab_size=ensemble.loaded.tokenizer.vocab_size, d_model=8)
    mixed = Translator(replace(ensemble.loaded, others=(smaller,)))
    assert len(mixed.best(LINES)) == len(LINES)


@pytest.mark.parametrize(
    ("languages", "code", "words"),
    [
        (("bb", "aa"), EXIT_REFUSED, ["other: translates bb to aa, but ", "one direction"]),
        (("bb", "cc"), EXIT_REFUSED, ["other: translates bb to cc, but "]),
        (("aa", "bb"), 0, []),
        (("aa", "bb-xx"), 0, ["warning: ", "other: translates aa to bb-xx, but "]),
    ],
)
def test_models_of_other_languages_are_refused_or_told(
    trained_run: Path, tmp_path: Path, languages: tuple[str, str], code: int, words: list[str]
) -> None:
    snapshot = load(resolve(trained_run))
    config = snapshot.config.replace("src_lang: aa", f"src_lang: {languages[0]}")
    config = config.replace("tgt_lang: bb", f"tgt_lang: {languages[1]}")
    save(tmp_path / "other", replace(snapshot, config=config))
    models = ["-m", trained_run, "-m", tmp_path / "other"]
    done = run_mtrain("translate", *models, "--device", "cpu", input="bavo\n")
    assert (done.returncode, done.stderr == "") == (code, not words)
    assert [word for word in words if done.stderr.count(word) != 1] == []


def test_models_of_other_vocabularies_are_refused(trained_run: Path, tmp_path: Path) -> None:
    snapshot = load(resolve(trained_run))
    lines = [side for pair in made_up_pairs(200, 61) for side in pair]
    proto = train_tokenizer(lambda: lines, vocab_size=Tokenizer(snapshot.tokenizer).vocab_size)
    save(tmp_path / "other", Snapshot(snapshot.weights, snapshot.config, proto))
    done = run_mtrain("translate", "-m", trained_run, "-m", tmp_path / "other", input="a\n")
    assert done.returncode == EXIT_REFUSED
    assert "has another vocabulary than" in done.stderr


# --- alignments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁a", "▁b", "c", "▁d"], [0, 1, 1, 2]),
        (["▁", "a", "▁", "▁", "b"], [0, 0, 1, 1, 1]),
        (["▁a", "<0xE6>", "<0xBC>", "<0xA2>", "▁b"], [0, 0, 0, 0, 1]),
        (["▁a", "<0xC2>", "<0xA0>", "b"], [0, 0, 1, 1]),  # a no-break space
        (["▁a▁b", "▁"], [1, 1]),
        (["▁"], [0]),
        ([], []),
    ],
)
def test_pieces_are_of_words(pieces: list[str], words: list[int]) -> None:
    assert word_numbers(pieces) == words


@given(text=st.lists(st.text("abcz漢 é\u00a0\u3000", min_size=1), max_size=8).map(" ".join))
def test_words_are_those_between_white_space(text: str) -> None:
    pieces = PIECES.pieces.encode(text, out_type=str)
    assert max(word_numbers(pieces), default=-1) + 1 == max(len(text.split()), min(1, len(pieces)))


PIECES = Tokenizer(
    train_tokenizer(
        lambda: [side for pair in made_up_pairs(200, 5) for side in pair], vocab_size=330
    )
)


def test_each_word_is_linked_to_what_is_attended_to(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With attention put in its place: the target is the source backwards."""

    def maps(src: Tensor, tgt_in: Tensor) -> dict[str, list[Tensor]]:
        B, S, T = *src.shape, tgt_in.shape[1]
        weights = torch.zeros(B, 1, T, S)
        for row in range(B):
            length = int((src[row] != translator.loaded.ids.pad).sum()) - 1
            for place in range(length):
                weights[row, 0, place, length - 1 - place] = 1
        return {"cross": [weights]}

    monkeypatch.setattr(translator.loaded.model, "attention_maps", maps)
    found = align(translator.loaded, ["x y z w", "", "x y"], ["w z y x", "a", "y x"])
    assert found == ["3-0 2-1 1-2 0-3", "", "1-0 0-1"]


def test_real_alignments_fit_their_lines(translator: Translator) -> None:
    targets = translator.best(LINES)
    links = align(translator.loaded, LINES, targets)
    small = override_decode(translator.decode, batch_tokens=9)
    assert align(replace(translator.loaded, decode=small), LINES, targets) == links
    for source, target, line in zip(LINES, targets, links, strict=True):
        pairs = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert [word for _, word in pairs] == list(range(len(target.split())))
        assert all(0 <= word < len(source.split()) for word, _ in pairs)


# --- the command line ---------------------------------------------------------------------------


def test_prefixes_and_alignments_by_the_command(trained_run: Path, tmp_path: Path) -> None:
    words = ["norva", "", "minek norva", ""]
    (tmp_path / "begun").write_text("".join(word + "\n" for word in words))
    text = "bavo celu\nlapo\nminek\n\n"
    options = ["--target-prefix", tmp_path / "begun", "--alignments", tmp_path / "links"]
    done = run_mtrain("translate", "-m", trained_run, *options, input=text)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert len(lines) == 5
    assert lines[0].startswith("norva")
    assert lines[2].startswith("minek norva")
    assert lines[3] == ""
    links = (tmp_path / "links").read_text().split("\n")
    assert [len(line.split()) for line in links] == [len(line.split()) for line in lines]
    for wrong, told in (("a\n", "fewer"), ("a\n" * 5, "more")):
        (tmp_path / "begun").write_text(wrong)
        done = run_mtrain("translate", "-m", trained_run, *options[:2], input=text)
        assert done.returncode == EXIT_FAILED
        assert f"has {told} lines" in done.stderr


def test_sampling_by_the_command(trained_run: Path) -> None:
    def lines(*options: str) -> list[str]:
        text = "".join(line + "\n" for line in LINES)
        done = run_mtrain("translate", "-m", trained_run, "--sample", *options, input=text)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    assert lines("--seed", "4") == lines("--seed", "4", "--batch-tokens", "30", "--line-buffered")
    assert lines("--seed", "4") != lines("--seed", "5")
    assert lines("--top-k", "1") == lines("--top-k", "1", "--seed", "9")
    many = [line.split("\t") for line in lines("--n-best", "3", "--temperature", "1.5")]
    assert [int(index) for index, *_ in many] == [n for n in range(len(LINES)) for _ in range(3)]
    for options, told in (
        (["--sample", "--temperature", "0"], "temperature"),
        (["--top-k", "3"], "--top-k: needs --sample"),
        (["--sample", "--beam-size", "3"], "--beam-size: does not go with"),
        (["-o", "x", "--alignments", "x"], "--alignments x: is the output file"),
    ):
        done = run_mtrain("translate", "-m", trained_run, *options, input="a\n")
        assert done.returncode == EXIT_REFUSED
        assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_two_models_by_the_command(trained_run: Path, other_run: Path, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("".join(line + "\n" for line in LINES))
    shutil.copy(tmp_path / "s", tmp_path / "r")
    options = ["-s", tmp_path / "s", "-r", tmp_path / "r", "--json"]
    done = run_mtrain("eval", "-m", trained_run, "-m", other_run, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lines"] == len(LINES)
