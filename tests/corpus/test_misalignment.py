"""Corpora whose sides do not belong together are found, and sound ones are left in peace."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from mtrain.config.corpora import GeneratedCorpus
from mtrain.corpus.misalignment import (
    MAX_WINDOWS,
    distance_of,
    distances_of,
    misalignment_warnings,
    windows_of,
)
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pairs", [1, 99, 100, 501, 30_000])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_said_of_a_sound_corpus(pairs: int, seed: int) -> None:
    assert signs(*corpus(pairs, seed)) == []


def test_nothing_is_said_of_lines_of_one_length() -> None:
    assert signs(["a b"] * 1000, ["c d e"] * 1000) == []
    with np.errstate(all="raise"):
        assert distance_of(np.full((100, 2), 3)) is None


def test_nothing_is_said_of_lines_of_nearly_one_length_or_in_groups() -> None:
    rng = np.random.default_rng(1)
    src, tgt = ([char * n for n in rng.integers(99, 102, 1000)] for char in "ab")
    assert signs(src, tgt) == []
    lengths = np.repeat(np.exp(rng.normal(3, 0.5, 100)), 20)  # neighbours match nearly as well
    others = lengths * np.exp(rng.normal(0, 0.3, 2000))
    assert signs(["a" * round(n) for n in lengths], ["b" * round(n) for n in others]) == []


def test_windows_are_within_the_text_and_not_too_many() -> None:
    assert windows_of(99) == []
    assert windows_of(120) == [(0, 120)]
    assert windows_of(5000)[-1] == (4850, 5000)
    assert len(windows_of(10**9)) == MAX_WINDOWS


def test_a_distance_of_less_than_half_of_the_text_is_not_that_of_all() -> None:
    src, tgt = corpus(1050)
    tgt[:] = tgt[2:452] + tgt[453:753] + tgt[:2] + tgt[1049:752:-1] + tgt[452:453]
    assert [APART in sign for sign in signs(src, tgt)] == [True]


def test_a_distance_must_be_clear() -> None:
    rng = np.random.default_rng(1)
    lengths, noise = rng.integers(5, 100, 500), rng.integers(0, 180, 500)
    assert distance_of(np.stack((lengths, lengths), 1)) == 0
    assert distance_of(np.stack((lengths, lengths + noise), 1)) is None  # by 0.46
    groups = np.repeat(lengths[:100], 5)  # the next line has the same length in four of five
    assert distance_of(np.stack((groups, groups), 1)) is None


@pytest.mark.parametrize("pairs", [200, 30_000])
@pytest.mark.parametrize(
    ("slip", "text"),
    [
        (
            1,
            "targets are 1 line ahead of their sources throughout: look at the first lines; the "
            "targets lack 1 there, or the sources have 1 too many",
        ),
        (
            50,
            "targets are 50 lines ahead of their sources throughout: look at the first lines; the "
            "targets lack 50 there, or the sources have 50 too many",
        ),
        (
            -2,
            "targets are 2 lines behind their sources throughout: look at the first lines; the "
            "sources lack 2 there, or the targets have 2 too many",
        ),
        (60, f"the {APART} as those of translations do: are they aligned line for line?"),
    ],
)
def test_slipped_lines_are_noticed(pairs: int, slip: int, text: str) -> None:
    sources, references = corpus(pairs)
    assert signs(sources, references[slip:] + references[:slip]) == [text]


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
    assert sign.startswith("targets are 1 line ahead of their sources throughout")


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
    """That of the first one, if there are several."""
    sources, references = corpus(10_000)
    more = [*references[:6500], "too many", *references[6500:8000], *["more"] * 9]
    [sign] = signs(sources, [*more, *references[8000:-10]])
    assert sign == (
        f"the {APART} near pair 6,501 (7 of 20 windows): targets are 1 line behind their sources "
        "there"
    )


def test_a_few_very_long_lines_are_not_told_to_be_shifted() -> None:
    """Without them, the lengths of the window match in place."""
    sources, references = corpus(1050)
    sources[450:600:15], references[450:600:15] = ["a"] * 10, ["b" * 20_000] * 10
    [sign] = signs(sources, references)
    assert sign == (f"the {APART} near pair 451 (1 of 7 windows): are lines shifted there?")


def test_the_same_text_twice_is_noticed() -> None:
    sources, references = corpus(1000)
    assert signs(sources, sources) == ["100% of the pairs have the same text on both sides"]
    names = sources[:200] + references[200:]
    assert signs(sources, names) == []


def lengths(pairs: int, seed: int = 0) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    src = np.exp(4 + 0.5 * rng.normal(0, 1, pairs))
    return np.round(np.stack((src, src * np.exp(rng.normal(0, 0.1, pairs))), 1)).astype(int)


def shifted(sides: NDArray[np.int64], distance: int) -> NDArray[np.int64]:
    """Pairs whose targets are behind their sources by a distance, or ahead if it is negative."""
    pairs = len(sides) - 50
    first = max(0, -distance)
    start = max(0, distance)
    return np.stack((sides[start : start + pairs, 0], sides[first : first + pairs, 1]), 1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("pairs", "distance"), [(30, 1), (30, -3), (60, 0), (60, -15), (150, 50), (300, -50)]
)
def test_the_distance_of_the_sides_is_told_by_lengths(pairs: int, distance: int, seed: int) -> None:
    sides = lengths(pairs + 50, seed)
    assert distance_of(shifted(sides, distance)) == distance


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("pairs", [3, 29, 30, 60, 150, 500])
def test_no_distance_is_told_of_shuffled_or_sorted_lines(pairs: int, seed: int) -> None:
    sides = lengths(pairs, seed)
    for order in (np.random.default_rng(seed).permutation(pairs), sides[:, 1].argsort()):
        assert distance_of(np.stack((sides[:, 0], sides[order, 1]), 1)) is None
    assert distance_of(np.full((pairs, 2), 7)) is None


def test_a_long_line_on_each_side_does_not_tell_a_distance() -> None:
    sides = np.random.default_rng(1).integers(10, 20, (60, 2))
    sides[20, 0] = sides[23, 1] = 5000
    assert distance_of(sides) is None


@pytest.mark.parametrize("period", [200, 300, 500])
def test_the_places_where_single_lines_were_lost_are_told(period: int) -> None:
    sides = lengths(4000)
    kept = np.delete(sides[:, 1], np.arange(period - 1, 4000, period))
    sides = np.stack((sides[: len(kept), 0], kept), 1)
    parts = list(distances_of(sides))
    assert parts[0][0] == 0
    assert parts[1][2] == -1
    assert abs(parts[1][0] - period) <= 10
    assert len(parts) >= 0.8 * len(sides) / period
    for start, _, distance in parts:
        assert abs(start + distance * period) <= 100
    assert all(part[1] <= later[0] for part, later in pairwise(parts))


def test_a_shift_goes_on_in_the_pairs_that_follow() -> None:
    sides = shifted(lengths(650), -2)
    assert list(distances_of(sides, -2)) == [(0, 600, -2)]
    assert list(distances_of(sides)) == [(0, 600, -2)]
    later = np.concatenate((lengths(500, 1), sides))
    [_, (start, stop, distance)] = distances_of(later)
    assert abs(start - 500) <= 5
    assert (stop, distance) == (1100, -2)


@pytest.mark.parametrize("lost", [0, 1])
def test_shuffled_pairs_are_at_no_distance(lost: int) -> None:
    sides = lengths(3000)
    sides[600:2400, 1] = np.random.default_rng(1).permutation(sides[600:2400, 1])
    sides[2400 : 3000 - lost, 1] = sides[2400 + lost :, 1]
    [first, last] = distances_of(sides)
    assert (first[0], first[2], last[1:]) == (0, 0, (3000, -lost))
    assert list(distances_of(sides[700:2200])) == []
    assert 600 <= first[1] <= 750
    assert 2250 <= last[0] <= 2550
