"""Stretches of lines that are shifted or unrelated, in lines of one word each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.check.shifts import Rows, Section, Shifts, Stretch
from mtrain.check.words import Words
from mtrain.config.corpora import TextCorpus

SOURCES = list(range(1, 201))  # the word of line n is n
OTHER = 1000  # the word n + OTHER matches no source, and n least badly


class Evidence:
    """Stands for associations: `nats` for equal words, and against others; none for the word 0."""

    def __init__(self, nats: float, against: float | None = None) -> None:
        self.nats, self.against = nats, nats if against is None else against

    def evidence(self, src: Words, tgt: Words) -> NDArray[np.float64]:
        against = np.where(src.hashes + np.uint64(OTHER) == tgt.hashes, self.against, self.nats)
        nats = np.where(src.hashes == tgt.hashes, self.nats, -against)
        return np.where(src.hashes * tgt.hashes == 0, 0.0, nats)


def words(numbers: list[int]) -> Words:
    return Words.of(np.array(numbers, np.uint64), np.ones(len(numbers), np.int64))


def look(
    targets: list[int], evidence: Evidence, size: int = 1000, sources: list[int] = SOURCES
) -> Shifts:
    """Look at sources and their targets in chunks of a size."""
    findings = Findings("data.train.0", TextCorpus(src="a", tgt="b"), Path(), 10)
    shifts = Shifts(evidence, findings)  # type: ignore[arg-type]
    for start in range(0, len(targets), size):
        lines = SOURCES[start : start + size]
        sides = words(sources[start : start + size]), words(targets[start : start + size])
        texts = [""] * len(lines)
        chunk = Chunk(findings, lines, (texts, texts), sides, ({}, {}))
        shifts.feed(chunk, evidence.evidence(*sides))
    shifts.finish()
    return shifts


def look_at_lengths(
    lengths: NDArray[np.int64], size: int = 1000, known: range = range(0), distance: int = 0
) -> Shifts:
    """Look at pairs of these lengths. Words tell the distance of the known rows, and nothing of
    others.
    """
    findings = Findings("data.train.0", TextCorpus(src="a", tgt="b"), Path(), 10)
    evidence = Evidence(4.0)
    shifts = Shifts(evidence, findings)  # type: ignore[arg-type]
    for start in range(0, len(lengths), size):
        rows = list(range(start + 1, min(start + size, len(lengths)) + 1))
        src, tgt = (["a" * n for n in side] for side in lengths[start : start + size].T.tolist())
        sides = (
            words([row if row in known else 0 for row in rows]),
            words([row - distance if row - distance in known else 0 for row in rows]),
        )
        chunk = Chunk(findings, rows, (src, tgt), sides, ({}, {}))
        findings.pairs += len(rows)
        shifts.feed(chunk, evidence.evidence(*sides))
    shifts.finish()
    return shifts


def slips(shifts: Shifts) -> list[tuple[int, int, int | None]]:
    """Return the first and last lines of the reported stretches, and their distances."""
    finding = shifts.findings.by_kind.get(("slip", ""))
    found: list[dict[str, Any]] = [each.json for each in finding.examples] if finding else []
    return [(each["line"], each["end"], each.get("distance")) for each in found]


def places(shifts: Shifts) -> list[tuple[int, int]]:
    """Return the first and last rows of the reported stretches."""
    return [(rows.start, rows.end) for rows in shifts.reported]


def moved(first: int, last: int, distance: int) -> list[int]:
    """Return targets of which those of lines `first` to `last` are behind their sources."""
    block = SOURCES[first - 1 : last]
    return [*SOURCES[: first - 1], *block[-distance:], *block[:-distance], *SOURCES[last:]]


def without(*lines: int) -> list[int]:
    """Return targets that match nothing in these lines."""
    return [line + OTHER if line in lines else line for line in SOURCES]


@given(st.integers(1, 10), st.booleans(), st.integers(1, 140), st.integers(60, 250))
def test_shifted_lines_are_found_in_chunks_of_any_size(
    shift: int, is_behind: bool, first: int, size: int
) -> None:
    distance, last = shift if is_behind else -shift, first + 4 * shift + 15
    shifts = look(moved(first, last, distance), Evidence(3.0), size)
    assert slips(shifts) == [(first, last, distance)]
    assert places(shifts) == [(first, last)]
    numbers = np.array([first - 1, first, last, last + 1])
    assert shifts.reported_of(numbers).tolist() == [first, last]


def test_no_pair_counts_more_than_four_nats() -> None:
    assert slips(look(moved(50, 52, 1), Evidence(100.0))) == []
    assert slips(look(moved(50, 53, 1), Evidence(100.0))) == [(50, 53, 1)]
    targets = moved(50, 89, 1)
    targets[69] = 70  # a pair that matches does not end the stretch
    assert slips(look(targets, Evidence(100.0))) == [(50, 89, 1)]


def test_a_stretch_ends_where_later_pairs_match() -> None:
    """A single wrong pair before it or after it is no part of it."""
    targets = without(47, 93)
    targets[49:89] = moved(50, 89, 2)[49:89]
    shifts = look(targets, Evidence(4.0))
    assert slips(shifts) == [(50, 89, 2)]
    for matching, number in ((2, 1), (3, 2)):
        targets = moved(50, 89, 2)
        targets[89 + matching : 129] = moved(90 + matching, 129, -3)[89 + matching : 129]
        assert len(slips(look(targets, Evidence(4.0)))) == number


@pytest.mark.parametrize("size", [75, 98, 1000])
def test_a_shift_goes_on_where_lines_match_as_well_unshifted(size: int) -> None:
    """Such as where neighbouring lines are the same."""
    sources, targets = ([*side[:79], *[80] * 31, *side[110:]] for side in (SOURCES, SOURCES))
    targets[49:150] = [*targets[52:150], *targets[49:52]]
    shifts = look(targets, Evidence(4.0), size, sources)
    assert slips(shifts) == [(50, 150, -3)]


@pytest.mark.parametrize(("matching", "number"), [(20, 1), (21, 2)])
def test_stretches_at_one_distance_with_few_lines_between_them_are_one(
    matching: int, number: int
) -> None:
    targets = moved(50, 89, 2)
    targets[89 + matching : 129 + matching] = moved(90 + matching, 129 + matching, 2)[
        89 + matching : 129 + matching
    ]
    shifts = look(targets, Evidence(4.0))
    assert len(slips(shifts)) == number
    assert slips(shifts)[-1][1] == places(shifts)[-1][1] == 129 + matching


@given(st.integers(1, 4), st.booleans(), st.integers(0, 20), st.sampled_from([150, 200]))
def test_shifted_lines_before_the_end_of_a_chunk_or_text_are_found(
    shift: int, is_behind: bool, rest: int, size: int
) -> None:
    distance, last = shift if is_behind else -shift, size - rest
    first = last - 2 * shift - 3
    assert slips(look(moved(first, last, distance), Evidence(4.0), size)) == [
        (first, last, distance)
    ]


@given(st.integers(0, 20), st.integers(4, 9))
def test_wrong_lines_before_the_end_of_a_text_are_not_shifted(rest: int, wrong: int) -> None:
    last = 200 - rest
    first = last - wrong + 1
    targets = without(*range(first, last + 1))
    targets[first] = first  # the next target matches the first source
    assert slips(look(targets, Evidence(6.0))) == []


@pytest.mark.parametrize("size", [52, 1000])
def test_wrong_lines_of_which_few_match_a_neighbour_are_not_shifted(size: int) -> None:
    targets = without(*range(50, 62))
    targets[52:57] = SOURCES[51:56]
    assert slips(look(targets, Evidence(4.0), size)) == []
    targets = without(50, 51, 52, 53)
    targets[53] = 53
    assert slips(look(targets, Evidence(4.0), size)) == []


def test_rows_of_stretches_that_overlap_are_those_of_either() -> None:
    shifts = look(SOURCES, Evidence(4.0))
    shifts.reported = [Rows(20, 90), Rows(30, 40), Rows(95, 95)]
    numbers = np.array([19, 20, 35, 41, 90, 91, 95, 96])
    assert shifts.reported_of(numbers).tolist() == [20, 35, 41, 90, 95]


def test_very_many_stretches_take_no_long_time() -> None:
    shifts, count = look([], Evidence(4.0)), 10_000
    starts = range(1, 1000 * count, 1000)
    shifts.closed = [Stretch(row, row + 400, 1) for row in starts]
    for row in starts:  # words tell the first stretch of each thousand rows, and lengths another
        shifts.sections += [Section(row, row + 699), Section(row + 700, row + 999, 2)]
    begun = time.process_time()
    shifts.finish()
    assert time.process_time() - begun < 5
    assert len(shifts.reported) == 2 * count


def test_unrelated_lines_are_reported_if_they_are_many() -> None:
    assert slips(look(without(*range(50, 89)), Evidence(4.0))) == []
    assert slips(look(without(*range(50, 90)), Evidence(4.0))) == [(50, 89, None)]


@pytest.mark.parametrize(
    ("nats", "against", "is_reported"),
    [(1.6, 1.6, True), (1.4, 1.4, False), (4.0, 2.1, True), (4.0, 1.9, False)],
)
def test_lines_that_match_badly_but_best_unshifted_may_be_a_list_of_names(
    nats: float, against: float, is_reported: bool
) -> None:
    shifts = look(without(*range(50, 110)), Evidence(nats, against))
    assert bool(slips(shifts)) == is_reported
    assert places(shifts) == [(50, 109)] * is_reported


@pytest.mark.parametrize("distance", [1, -1, 12, -30])
@pytest.mark.parametrize("size", [500, 700, 4000])
def test_a_text_that_is_shifted_throughout_is_known_by_its_lengths(
    distance: int, size: int
) -> None:
    src = np.random.default_rng(3).integers(5, 90, 2000)
    shifts = look_at_lengths(np.stack((src, np.roll(src + src % 5, distance)), 1), size)
    assert slips(shifts) == [(1, 2000, distance)]
    assert places(shifts) == [(1, 2000)]
    [example] = shifts.findings.by_kind["slip", ""].examples
    units = "line" if abs(distance) == 1 else "lines"
    direction = "behind" if distance > 0 else "ahead of"
    text = f"targets are {abs(distance)} {units} {direction} their sources throughout: look at"
    assert example.text.startswith(text)


def test_a_shift_is_not_throughout_if_lengths_tell_nothing_of_the_rest() -> None:
    src = np.random.default_rng(3).integers(5, 90, 4000)
    src[2000:] = 40
    tgt = src.copy()
    tgt[:2000] = np.roll(src[:2000], 3)
    shifts = look_at_lengths(np.stack((src, tgt), 1), 4000)
    [example] = shifts.findings.by_kind["slip", ""].examples
    assert example.text.endswith(": targets are about 3 lines behind their sources")


def test_the_rows_that_are_shifted_are_known_by_their_lengths() -> None:
    src = np.random.default_rng(3).integers(5, 90, 4000)
    tgt = src.copy()
    tgt[1200:1700], tgt[3000:-20] = np.roll(tgt[1200:1700], 3), tgt[3020:]
    shifts = look_at_lengths(np.stack((src, tgt), 1), 4000)
    [first, second] = slips(shifts)
    for found, place in ((first, (1201, 1700, 3)), (second, (3001, 4000, -20))):
        assert found[2] == place[2]
        assert np.abs(np.subtract(found, place)).max() <= 20
    assert places(shifts) == [found[:2] for found in (first, second)]
    assert slips(look_at_lengths(np.stack((src, src), 1))) == []


def test_stretches_that_words_tell_within_a_longer_one_are_not_reported() -> None:
    src = np.random.default_rng(3).integers(5, 90, 4000)
    tgt = src.copy()
    tgt[1200:1700] = np.roll(tgt[1200:1700], 3)
    lengths = np.stack((src, tgt), 1)
    shifts = look_at_lengths(lengths)
    assert places(shifts)
    known = look_at_lengths(lengths, known=range(1300, 1401), distance=3)
    assert [(each.start, each.end, each.distance) for each in known.closed] == [(1303, 1400, 3)]
    assert slips(known) == slips(shifts)
    assert places(known) == places(shifts)
    known = look_at_lengths(lengths, known=range(1210, 1691), distance=3)
    assert slips(known) == [(1213, 1690, 3)]


@pytest.mark.parametrize("told", [range(1250, 1351), range(1201, 1301), range(1400, 1701)])
def test_a_stretch_is_reported_once_also_if_lengths_tell_only_a_part_of_it(told: range) -> None:
    """In the middle, at the beginning, and at the end."""
    src = np.random.default_rng(3).integers(5, 90, 4000)
    tgt = src.copy()
    tgt[1200:1700] = np.roll(tgt[1200:1700], 3)
    plain = [row for row in range(1000, 2000) if row + 1 not in told]
    src[plain] = tgt[plain] = 40
    shifts = look_at_lengths(np.stack((src, tgt), 1), known=range(1201, 1701), distance=3)
    assert slips(shifts) == [(1204, 1700, 3)]
    assert places(shifts) == [(1204, 1700)]
