"""Corpora whose sides do not belong together are found, and sound ones are left in peace."""

from __future__ import annotations

import numpy as np
import pytest

from mtrain.config.corpora import GeneratedCorpus
from mtrain.corpus.misalignment import misalignment_warnings
from mtrain.corpus.readers import ScoredText

APART = "lengths of the sides do not correlate"
ENTRY = GeneratedCorpus(generated="phrasebook", split="valid", pairs=1)


def corpus(pairs: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Text whose lines are about as long as their neighbours, as in documents, with translations
    that are longer or shorter by a fifth.
    """
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(0, 1, pairs)) / np.sqrt(np.arange(1, pairs + 1))
    lengths = np.exp(3 + 0.5 * drift + rng.normal(0, 0.4, pairs))
    others = lengths * np.exp(rng.normal(0, 0.2, pairs))
    return ["a" * round(n) for n in lengths], ["b" * round(n) for n in others]


def signs(sources: list[str], references: list[str]) -> list[str]:
    return list(misalignment_warnings(ScoredText(ENTRY, sources, references, "")))


@pytest.mark.parametrize("pairs", [1, 99, 100, 501, 30_000])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_said_of_a_sound_corpus(pairs: int, seed: int) -> None:
    assert signs(*corpus(pairs, seed)) == []


def test_nothing_is_said_of_lines_of_one_length() -> None:
    assert signs(["a b"] * 1000, ["c d e"] * 1000) == []


@pytest.mark.parametrize("pairs", [200, 30_000])
@pytest.mark.parametrize("slip", [1, 3, -2, 50])
def test_slipped_lines_are_noticed(pairs: int, slip: int) -> None:
    sources, references = corpus(pairs)
    [sign] = signs(sources, references[slip:] + references[:slip])
    assert sign == f"the {APART} as those of translations do: are they aligned line for line?"


def test_a_slip_is_noticed_where_neighbouring_lines_have_similar_lengths() -> None:
    """Shifted lines correlate, too, but less than at their distance."""
    rng = np.random.default_rng(3)
    noise, lengths = rng.normal(0, 1, 5000), [0.0]
    for each in noise:
        lengths.append(0.55 * lengths[-1] + each)
    sizes = np.exp(3 + 0.5 * np.array(lengths))
    sources, references = (["a" * round(n) for n in sizes * k] for k in (1.0, 1.2))
    assert signs(sources, references) == []
    [sign] = signs(sources, references[1:] + references[:1])
    assert APART in sign


def test_a_slip_is_noticed_where_lengths_recur() -> None:
    """Five captions of an image, the longest first, correlate with those of any other image."""
    rng = np.random.default_rng(4)
    sizes = np.exp(3 - 0.12 * (np.arange(5000) % 5) + rng.normal(0, 0.25, 5000))
    others = sizes * np.exp(rng.normal(0, 0.1, 5000))
    sources, references = (["a" * round(n) for n in side] for side in (sizes, others))
    assert np.corrcoef(sizes, np.roll(others, -700))[0, 1] > 0.25
    assert signs(sources, references) == []
    [sign] = signs(sources, references[700:] + references[:700])
    assert sign == f"the {APART} as those of translations do: are they aligned line for line?"


def test_nothing_is_said_of_text_sorted_by_length() -> None:
    sources, references = corpus(10_000)
    pairs = sorted(zip(sources, references, strict=True), key=lambda pair: sum(map(len, pair)))
    assert signs(*map(list, zip(*pairs, strict=True))) == []


@pytest.mark.parametrize("pairs", [600, 750, 999, 1400])
def test_the_last_pairs_are_looked_at(pairs: int) -> None:
    sources, references = corpus(pairs, 1)
    slip = pairs * 2 // 3
    [sign] = signs(sources, references[:slip] + references[slip + 3 :] + references[slip:][:3])
    assert f"{APART} near pair" in sign


@pytest.mark.parametrize("seed", range(5))
def test_a_slip_in_the_last_lines_of_a_scored_set_is_noticed(seed: int) -> None:
    sources, references = corpus(1000, seed)
    [sign] = signs(sources, [*references[:850], *references[851:], references[850]])
    assert f"{APART} near pair 851 (1 of 7 windows)" in sign


def test_shuffled_lines_are_noticed() -> None:
    sources, references = corpus(3000)
    [sign] = signs(sources, [references[i] for i in np.random.default_rng(1).permutation(3000)])
    assert APART in sign


def test_the_place_of_a_slip_is_told() -> None:
    sources, references = corpus(10_000)
    [sign] = signs(sources, [*references[:8000], "one too many", *references[8000:-1]])
    assert f"{APART} near pair 8,001 (4 of 20 windows)" in sign


def test_the_same_text_twice_is_noticed() -> None:
    sources, references = corpus(1000)
    assert signs(sources, sources) == ["100% of the pairs have the same text on both sides"]
    names = sources[:200] + references[200:]
    assert signs(sources, names) == []
