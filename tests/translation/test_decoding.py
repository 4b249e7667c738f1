"""Decoding of a trained model by sampling, ensembles and prefixes, and word alignments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import made_up_pairs, make_tokenizer, random_model, run_mtrain
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mtrain.config.schema import override_decode
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs.checkpoint import Snapshot, load, save
from mtrain.runs.reader import resolve
from mtrain.runtime.errors import EXIT_FAILED, EXIT_REFUSED
from mtrain.scoring.mbr import min_risk_index
from mtrain.translation import loading
from mtrain.translation.attention import align, word_indices
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

LINES = [src for src, _ in made_up_pairs(20, 51, longest=7)]
TEXT = "".join(line + "\n" for line in LINES)


# --- Sampling -----------------------------------------------------------------------------------


def sampling(
    translator: Translator, *, seed: int | None = None, samples: int = 1, **settings: Any
) -> Translator:
    decode = override_decode(translator.decode, sample=True, **settings)
    return Translator(replace(translator.loaded, decode=decode), seed=seed, n_best=samples)


def test_lines_are_sampled_by_their_number(translator: Translator) -> None:
    drawn = sampling(translator, seed=5)
    found = drawn.best(LINES)
    assert found == drawn.best(LINES)
    assert [h[0].text for h in drawn.translate(LINES[7:], first=7)[0]] == found[7:]
    assert sampling(translator, seed=5, batch_tokens=8).best(LINES) == found
    several, _ = sampling(translator, seed=5, samples=3).translate(LINES)
    for text, samples in zip(found, several, strict=True):
        assert text in [sample.text for sample in samples]
    assert sampling(translator, seed=6).best(LINES) != found
    assert sampling(translator, seed=0).best(LINES) != sampling(translator).best(LINES)
    assert translator.best(LINES) != found


# --- Minimum Bayes risk ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_sampled", [False, True])
def test_minimum_bayes_risk_chooses_among_the_hypotheses(
    translator: Translator, is_sampled: bool
) -> None:
    decode = override_decode(translator.decode, sample=is_sampled, beam_size=6)
    loaded = replace(translator.loaded, decode=decode)
    lists, _ = Translator(loaded, n_best=6).translate(["", *LINES])
    chosen, _ = Translator(loaded, mbr=6).translate(["", *LINES])
    assert [len(each) for each in chosen] == [1] * len(lists)
    assert chosen[0] == lists[0]
    for (own,), found in zip(chosen[1:], lists[1:], strict=True):
        texts, scores = zip(*((h.text, h.score) for h in found[:6]), strict=True)
        assert len(texts) == 6
        assert own == found[min_risk_index(texts, scores)]
    assert [own for (own,) in chosen] != [found[0] for found in lists]


# --- Ensembles ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ensemble(loaded_model: LoadedModel) -> Translator:
    """A trained model, and a smaller one of random weights."""
    smaller = random_model(vocab_size=loaded_model.tokenizer.vocab_size, d_model=8)
    return Translator(replace(loaded_model, other_models=(replace(loaded_model, model=smaller),)))


@torch.no_grad()
def test_an_ensemble_searches_and_scores_by_the_mean_of_probabilities(ensemble: Translator) -> None:
    loaded = ensemble.loaded
    src = torch.tensor([[*loaded.tokenizer.encode([LINES[0]])[0], loaded.ids.eos]])
    tgt = torch.tensor([[loaded.ids.bos, 9, 12, 40]])
    probs = torch.stack([model(src, tgt)[0].softmax(-1) for model in loaded.all_models]).mean(0)
    state = loaded.decoder.begin(src)
    for place in range(tgt.shape[1]):
        log_probs, state = loaded.decoder.step(tgt[:, place], state)
        torch.testing.assert_close(log_probs[0].exp(), probs[place])
    ids = [row.numpy() for row in (src[0, :-1], tgt[0, 1:])]
    answers = torch.tensor([*ids[1], loaded.ids.eos])
    expected = -probs[range(len(answers)), answers].double().log().sum()
    found = Scorer(loaded).pair_nll([ids[0]], [ids[1]])[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("languages", "code", "words"),
    [
        (("ba", "aa"), EXIT_REFUSED, ["other: translates ba to aa, but ", "one direction"]),
        (("ba", "cc"), EXIT_REFUSED, ["other: translates ba to cc, but "]),
        (("aa", "ba"), 0, []),
        (("aa", "ba-xx"), 0, ["warning: ", "other: translates aa to ba-xx, but "]),
    ],
)
def test_ensembles_of_different_languages_are_refused_or_warned_of(
    trained_run: Path, tmp_path: Path, languages: tuple[str, str], code: int, words: list[str]
) -> None:
    snapshot = load(resolve(trained_run))
    config = snapshot.config.replace("src_lang: aa", f"src_lang: {languages[0]}")
    config = config.replace("tgt_lang: ba", f"tgt_lang: {languages[1]}")
    save(tmp_path / "other", replace(snapshot, config=config))
    models = ["-m", trained_run, "-m", tmp_path / "other"]
    done = run_mtrain("translate", *models, "--device", "cpu", input="bavo\n")
    assert (done.returncode, done.stderr == "") == (code, not words)
    assert [word for word in words if done.stderr.count(word) != 1] == []


def test_ensembles_of_different_vocabularies_are_refused(trained_run: Path, tmp_path: Path) -> None:
    snapshot = load(resolve(trained_run))
    lines = [side for pair in made_up_pairs(200, 61) for side in pair]
    proto = make_tokenizer(lines, vocab_size=Tokenizer(snapshot.tokenizer).vocab_size).proto
    save(tmp_path / "other", Snapshot(snapshot.weights, snapshot.config, proto))
    done = run_mtrain("translate", "-m", trained_run, "-m", tmp_path / "other", input="a\n")
    assert done.returncode == EXIT_REFUSED
    assert "has a different vocabulary from" in done.stderr


# --- Alignments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁a", "▁b", "c", "▁d"], [0, 1, 1, 2]),
        (["▁", "a", "▁", "▁", "b"], [0, 0, 1, 1, 1]),
        (["▁a", "<0xE6>", "<0xBC>", "<0xA2>", "▁b"], [0, 0, 0, 0, 1]),
        (["▁a", "<0xC2>", "<0xA0>", "b"], [0, 0, 1, 1]),  # a no-break space
        (["<0xC2>", "<0xA0>", *["<0xC3>", "<0xA9>"] * 2], [0] * 6),  # then é é, without spaces
        (["▁a▁b", "▁"], [1, 1]),
        (["a", "b", "▁c"], [0, 0, 1]),  # no space before the first word
        (["▁"], [0]),
        ([], []),
    ],
)
def test_each_piece_belongs_to_a_word(pieces: list[str], words: list[int]) -> None:
    assert word_indices(pieces) == words


@given(text=st.lists(st.text("abcz漢 é\u00a0\u3000", min_size=1), max_size=8).map(" ".join))
def test_words_are_separated_by_white_space(tokenizer: Tokenizer, text: str) -> None:
    pieces = tokenizer.processor.encode(text, out_type=str)
    assert max(word_indices(pieces), default=-1) + 1 == max(len(text.split()), min(1, len(pieces)))


def test_each_word_is_linked_to_the_word_with_most_attention(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention is set as if the target were the reversed source."""

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
    assert found == (["3-0 2-1 1-2 0-3", "", "1-0 0-1"], [])


def test_real_alignments_fit_their_lines(translator: Translator) -> None:
    targets = translator.best(LINES)
    links, cut = align(translator.loaded, LINES, targets)
    assert cut == []
    small = override_decode(translator.decode, batch_tokens=1)
    assert align(replace(translator.loaded, decode=small), LINES, targets) == (links, [])
    for source, target, line in zip(LINES, targets, links, strict=True):
        pairs = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert [word for _, word in pairs] == list(range(len(target.split())))
        assert all(0 <= word < len(source.split()) for word, _ in pairs)


def test_the_last_layers_decide_on_alignments(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four, of which two attend to the second word; the first layer does so most."""
    (pieces,) = translator.loaded.tokenizer.encode(["x"])  # of the first word

    def maps(src: Tensor, tgt_in: Tensor) -> dict[str, list[Tensor]]:
        weights = torch.zeros(4, 1, 1, tgt_in.shape[1], src.shape[1])
        weights[..., len(pieces)] = torch.tensor([9.0, 0.0, 0.6, 0.6]).view(4, 1, 1, 1)
        weights[..., 0] = torch.tensor([0.0, 1.0, 0.4, 0.4]).view(4, 1, 1, 1)
        return {"cross": list(weights)}

    monkeypatch.setattr(translator.loaded.model, "attention_maps", maps)
    assert align(translator.loaded, ["x y"], ["z"]) == (["0-0"], [])


def test_a_tag_is_no_word_of_an_alignment(both_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loading.load(both_run, device="cpu").tagged("<2bb>")
    (pieces,) = loaded.tokenizer.encode(["x"])  # of the first word

    def maps(src: Tensor, tgt_in: Tensor) -> dict[str, list[Tensor]]:
        weights = torch.zeros(1, 1, tgt_in.shape[1], src.shape[1])
        weights[..., 0], weights[..., 1 + len(pieces)] = 0.9, 0.1  # the tag, the second word
        return {"cross": [weights]}

    monkeypatch.setattr(loaded.model, "attention_maps", maps)
    assert align(loaded, ["x y"], ["z"]) == (["1-0"], [])


# --- The command line ---------------------------------------------------------------------------


def translate(trained_run: Path, *options: str | Path, text: str = TEXT) -> list[str]:
    done = run_mtrain("translate", "-m", trained_run, *options, input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_prefixes_and_alignments_by_the_command(trained_run: Path, tmp_path: Path) -> None:
    prefixes, links = tmp_path / "prefixes", tmp_path / "links"
    long = " ".join(["minek norva"] * 20)  # longer than the limit of the translation
    prefixes.write_text(f"norva\n\n{long}\n\n")
    text = "bavo celu\nlapo\nminek\n\n"
    options = ["--target-prefix", prefixes, "--alignments", links]
    lines = translate(trained_run, *options, text=text)
    assert len(lines) == 4
    assert lines[0].startswith("norva")
    assert lines[2].startswith(long)
    assert lines[3] == ""
    linked = links.read_text().split("\n")[:-1]
    assert [len(line.split()) for line in linked] == [len(line.split()) for line in lines]
    for wrong, message in (("a\n", "2: fewer prefixes"), ("a\n" * 5, "5: more prefixes")):
        prefixes.write_text(wrong)
        done = run_mtrain("translate", "-m", trained_run, *options[:2], input=text)
        assert done.returncode == EXIT_FAILED
        assert f"{prefixes}:{message} than lines" in done.stderr


def test_sampling_by_the_command(trained_run: Path) -> None:
    found = translate(trained_run, "--sample", "--seed", "4")
    small = ["--batch-tokens", "30", "--line-buffered"]
    assert found == translate(trained_run, "--sample", "--seed", "4", *small)
    assert found != translate(trained_run, "--sample", "--seed", "5")
    greedy = translate(trained_run, "--beam-size", "1")
    assert translate(trained_run, "--sample", "--top-k", "1") == greedy
    many = translate(trained_run, "--sample", "--n-best", "3", "--temperature", "1.5")
    indices = [int(line.split("\t")[0]) for line in many]
    assert indices == [n for n in range(len(LINES)) for _ in range(3)]
