"""What is left out of the training text: by each filter, counted, and nothing else."""

from __future__ import annotations

import errno
import logging
import random
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyConfig, made_up_pairs, write_corpus

from mtrain.config.loading import load_config
from mtrain.config.schema import Config, FilterConfig
from mtrain.data import duplicates
from mtrain.data.cache import cache_directory
from mtrain.data.filters import Selection
from mtrain.data.prepare import Preparation, Prepared, weights_of
from mtrain.runs import manifest
from mtrain.runtime import log
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import Stop

Pair = tuple[str, str]


def kept(pairs: list[Pair], **settings: object) -> tuple[list[Pair], dict[str, int]]:
    """What a filter of text keeps, and what it says of the others."""
    dropped: Counter[str] = Counter()
    selection = Selection(99, FilterConfig.model_validate(settings))
    return selection.by_text(list(pairs), dropped), dict(+dropped)


# --- by text ------------------------------------------------------------------------------------

ODD = [
    ("same", " same "),
    ("a\tb", "fine"),
    ("bell\x07", "c"),
    ("d", "lost \ufffd byte"),
    ("private \ue000", "e"),
    ("c1 \x85", "f"),
    ("a line\u2028separator", "g"),
    ("an object \ufffc", "h"),
    ("no character", "\ufdd0"),
    ("an icon", "of a font \U000f0001"),
    ("漢字", "kanji"),
    ("Привет", "hello"),
    ("1 + 1 = 2", "1 + 1 = 2"),
]


@pytest.mark.parametrize(
    ("settings", "pairs", "reason"),
    [
        ({}, ODD, ""),
        ({"identical": True}, ODD[1:-1], "the same text on both sides"),
        ({"control": True}, [*ODD[:2], *ODD[10:]], "control or invalid characters"),
        ({"src_script": ["Han", "Cyrillic", "Latin"], "tgt_script": ["Latin"]}, ODD, ""),
        # no letters are of any script
        (
            {"src_script": ["Latin", "Cyrillic"]},
            ODD[:10] + ODD[11:],
            "src_script is not Latin or C",
        ),
    ],
)
def test_filters_of_text(settings: dict[str, object], pairs: list[Pair], reason: str) -> None:
    found, counts = kept(ODD, **settings)
    assert found == pairs
    assert sum(counts.values()) == len(ODD) - len(pairs)
    assert all(name.startswith(f"pairs dropped: {reason}") for name in counts)


@pytest.mark.parametrize(
    ("text", "scripts", "share"),
    [
        ("カタカナーひらがな漢字", ["Han", "Hiragana", "Katakana"], 1.0),
        ("हिन्दी में लिखा", ["Devanagari"], 1.0),
        ("abcабв123", ["Cyrillic"], 0.5),
    ],
)
def test_the_fraction_of_letters_decides(text: str, scripts: list[str], share: float) -> None:
    assert kept([(text, "x")], src_script=scripts, script_share=share) == ([(text, "x")], {})
    assert kept([("x", text)], tgt_script=["Latin"], script_share=0.6)[0] == []


# --- by length ----------------------------------------------------------------------------------


def test_lengths_with_eos_decide() -> None:
    settings = FilterConfig(min_length=3, max_ratio=2.0)
    lengths = np.array([(2, 2), (1, 2), (2, 5), (2, 6), (9, 8), (10, 9)])
    dropped: Counter[str] = Counter()
    passed = Selection(10, settings).by_length(lengths, dropped)
    assert passed.tolist() == [True, False, True, False, True, False]
    assert dict(+dropped) == {
        "pairs dropped: longer than 10 tokens": 1,
        "pairs dropped: shorter than 3 tokens": 1,
        "pairs dropped: one side over 2.0 times as long": 1,
    }
    assert Selection(99, FilterConfig()).by_length(lengths, Counter()).all()
    both = Counter[str]()
    Selection(10, settings).by_length(np.array([(1, 10)]), both)
    assert +both == {"pairs dropped: longer than 10 tokens": 1}  # for the first reason only


def test_pairs_that_are_certainly_too_long_are_dropped_by_their_characters() -> None:
    selection, dropped = Selection(2, FilterConfig()), Counter[str]()
    short, longer = "x" * 128, "x" * 129
    pairs = [(short, short), (short, longer), (longer, short)]
    assert selection.by_characters(pairs, 1, dropped) == pairs[:1]
    assert dropped == {"pairs dropped: longer than 2 tokens": 2}
    assert selection.by_characters(pairs, 65, Counter()) == pairs


# --- repeats ------------------------------------------------------------------------------------


def repeats(path: Path, *arguments: Any) -> list[np.ndarray]:
    """What a sealed directory with the repeats holds."""
    manifest.write_directory(path, lambda inner: duplicates.write_repeats(inner, *arguments))
    return duplicates.open_repeats(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("options", "variable"), [([], "TMPDIR"), (["MTRAIN_CACHE"], "MTRAIN_CACHE")]
)
def test_a_full_disk_is_named_with_the_variable_that_chooses_another(
    tmp_path: Path, options: list[str], variable: str
) -> None:
    found = duplicates.Duplicates(tmp_path, 1, *options)
    found.paths[0].symlink_to("/dev/full")
    expected = f"^{re.escape(str(tmp_path))}: cannot store .*: No space .*, or set {variable} to a"
    with pytest.raises(UserError, match=expected):
        found.add(np.zeros(9, np.uint64), np.arange(9, dtype=np.uint64))


@pytest.mark.parametrize("method", ["tempfile._os.mkdir", "pathlib.Path.mkdir"])
def test_a_disk_too_full_for_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(method, fail)
    expected = "(TMPDIR|pairs): cannot store .*: No space .*, or set TMPDIR to a folder"
    with pytest.raises(UserError, match=expected), duplicates.temporary_folder() as folder:
        duplicates.find_unshared(folder, [("a", "b")], 1, lambda: None)
    assert not list(tmp_path.iterdir())


def test_a_stop_is_heard_between_files_of_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "AT_ONCE", 7)
    pairs, calls = [(str(number), "x") for number in range(60)], list[None]()
    duplicates.find_unshared(tmp_path, pairs, len(pairs), lambda: calls.append(None))
    assert len(calls) > 20


@pytest.mark.parametrize("at_once", [7, 100, 1 << 22])
def test_repeats_are_found_within_and_across_corpora(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(duplicates, "AT_ONCE", at_once)
    monkeypatch.setattr(duplicates, "CHUNK", 13)
    draw = random.Random(1)
    corpora = [
        [(str(draw.randrange(60)), str(draw.randrange(3))) for _ in range(count)]
        for count in (101, 0, 64, 1)
    ]
    corpora.append([("1", "23"), ("12", "3"), ("12", "3")])
    told: list[int] = []
    found = repeats(tmp_path / "r", corpora, 166, told.append)
    assert sum(told) == 169
    seen: set[Pair] = set()
    for pairs, is_repeat in zip(corpora, found, strict=True):
        expected = [pair for pair in pairs if not (pair in seen or seen.add(pair))]
        assert list(duplicates.without_repeats(pairs, is_repeat)) == expected
    assert sorted(file.name for file in (tmp_path / "r").iterdir()) == [
        *(f"{number:05d}.npy" for number in range(5)),
        "manifest.json",
    ]


def test_repeats_are_of_one_text(tmp_path: Path) -> None:
    """Text that grew is read to its end, or nobody would see that it is another."""
    found = repeats(tmp_path / "r", [[("a", "b")] * 8], 8, lambda _: None)
    grown = [("a", "b")] * 8 + [("c", "d")] * 20
    assert list(duplicates.without_repeats(grown, found[0])) == [("a", "b"), *grown[8:]]
    file = tmp_path / "r" / "00000.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with pytest.raises(manifest.DamagedError):
        duplicates.open_repeats(tmp_path / "r")


@pytest.mark.parametrize("at_once", [7, 1 << 22])
def test_pairs_whose_sides_stand_in_no_other_pair_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Against a plain comparison of all pairs."""
    monkeypatch.setattr(duplicates, "AT_ONCE", at_once)
    monkeypatch.setattr(duplicates, "CHUNK", 13)
    draw = random.Random(1)
    texts = [f"Word {number}{end}" for number in range(60) for end in ("", "", "", "!")]
    pairs = [(draw.choice(texts), draw.choice(texts).upper()) for _ in range(40)]
    pairs += [*draw.sample(pairs, 25), ("...", "???"), ("word 99", "word 98"), ("word9 9", "x")]
    plain = [tuple("".join(filter(str.isalnum, t.lower())) or t for t in pair) for pair in pairs]
    expected = [
        pair not in pairs[:index]
        and all(
            other == pair or not (plain[index][0] == src or plain[index][1] == tgt)
            for other, (src, tgt) in zip(pairs, plain, strict=True)
        )
        for index, pair in enumerate(pairs)
    ]
    copied = [pair for pair, is_found in zip(pairs, expected, strict=True) if is_found]
    assert 0 < len(copied) < len(set(pairs))
    assert any(pairs.count(pair) > 1 for pair in copied)
    found = duplicates.find_unshared(tmp_path, pairs, len(pairs), lambda: None)
    assert found.tolist() == expected


# --- from a config ------------------------------------------------------------------------------


def prepared(config: Config) -> Prepared:
    return Preparation(config, Stop()).prepared


def test_a_config_filters_training_text_alone(
    tiny_config: TinyConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = list(dict.fromkeys(made_up_pairs(30, 8, longest=4)))
    odd = [("same", "same"), ("bell \x07", "x"), *good[:5], ("Привет", "mir"), ("a", "b " * 40)]
    first = write_corpus(tmp_path / "first", [*good[:20], *odd])
    second = write_corpus(tmp_path / "second", [*good[10:], ("same", "same")])
    valid = write_corpus(tmp_path / "odd", odd)
    filters = "identical: true, duplicates: true, control: true, src_script: [Latin], max_ratio: 9"
    text = {"data.train": [first, second], "data.valid": valid, "data.max_length": 99}
    config = load_config(tiny_config(**text), [f"filter={{{filters}}}"])
    log.logger.propagate = True
    with caplog.at_level(logging.INFO):
        found = prepared(config)
    assert len(found.store) == len(good)
    assert [part.stop - part.start for part in found.store.ranges] == [20, len(good) - 20]
    assert found.store.counts == {
        "pairs dropped: the same text on both sides": 1,
        "pairs dropped: seen before": 5 + 10 + 1,
        "pairs dropped: control or invalid characters": 1,
        "pairs dropped: src_script is not Latin": 1,
        "pairs dropped: one side over 9.0 times as long": 1,
    }
    assert "seen before: 16" in caplog.text
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not any("dropped" in text for text in warned)
    assert found.sets["data.valid"].sources == [src for src, _ in odd]
    vocabulary = found.tokenizer.vocabulary
    assert "П" not in vocabulary
    # what the second corpus repeats depends on the first
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokenizer.model").write_bytes(found.tokenizer.proto)
    alone = load_config(tiny_config(**text | {"data.train": [second]}), [f"filter={{{filters}}}"])
    assert len(prepared(alone).store) == len(good) - 10


def test_a_corpus_alone_is_tokenized_again(tiny_config: TinyConfig, tmp_path: Path) -> None:
    """Another corpus in the list does not touch what is known of the others."""
    sizes = {"new": 31, "old": 30}
    corpora = [write_corpus(tmp_path / name, made_up_pairs(n, n)) for name, n in sizes.items()]
    path = tiny_config(**{"data.train": corpora[1:]})
    alone = prepared(load_config(path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokenizer.model").write_bytes(alone.tokenizer.proto)
    before = set(cache_directory().iterdir())
    both = prepared(load_config(tiny_config(**{"data.train": corpora})))
    assert [len(both.store), *(part.stop for part in both.store.ranges)] == [61, 31, 61]
    stores = [path for path in set(cache_directory().iterdir()) - before if path.is_dir()]
    assert len(stores) == 1
    assert both.store.pair(31)[0].tolist() == alone.store.pair(0)[0].tolist()


def test_weights_and_temperature(tiny_config: TinyConfig) -> None:
    corpus = {"generated": "phrasebook", "split": "train", "pairs": 10}
    corpora = [corpus, {**corpus, "weight": 2.5}, corpus]
    path = tiny_config(**{"data.train": corpora})
    assert weights_of(load_config(path), [100, 10, 1]) == [1, 2.5, 1]
    warm = load_config(path, ["data.temperature=2"])
    assert weights_of(warm, [100, 25, 1]) == pytest.approx([1, 5, 10])
    shares = [n * w for n, w in zip([100, 25, 1], weights_of(warm, [100, 25, 1]), strict=True)]
    assert shares == pytest.approx([100, 2.5 * 50, 10])  # as roots of the sizes
    hot = load_config(path, ["data.temperature=100"])
    assert weights_of(hot, [1 << 30, 1, 1]) == [1, 2500, 1000]  # no pair more often than that
