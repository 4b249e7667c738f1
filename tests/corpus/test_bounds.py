"""Lines, cells, fields and segments longer than any sentence: held in bounded memory, dropped and
counted in training, cut and counted in translation, refused where texts are scored.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import mmap
import pkgutil
import re
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import regex
from conftest import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

import mtrain
from mtrain.config.corpora import Corpus, FileCorpus, HubCorpus, TextCorpus
from mtrain.config.schema import FilterConfig
from mtrain.corpus import lines as text
from mtrain.corpus import parquet as parquet_reader
from mtrain.corpus.lines import MAX_LINE_LENGTH, TOO_LONG, Reading, RowError, bounded_lines
from mtrain.corpus.readers import read_pairs, read_scored_text, skim
from mtrain.data import duplicates, filters
from mtrain.data.duplicates import write_repeats
from mtrain.data.tokenizer import Tokenizer, convert_stream
from mtrain.runtime.errors import UserError
from mtrain.scoring.references import read_references, read_source
from mtrain.translation import streams as lines
from mtrain.translation.translator import Translator

DROPPED = "pairs dropped: " + TOO_LONG
LONG = "word " * (MAX_LINE_LENGTH // 5 + 1)
WIDEST = "é" * (MAX_LINE_LENGTH // 2)
HUGE = 24 << 20


# --- Lines -----------------------------------------------------------------------------------


@given(
    st.lists(st.text("ab\r é\N{GRINNING FACE}", max_size=30).map(str.encode)),
    st.booleans(),
    st.sampled_from([1, 3, 7, 1000]),
)
def test_lines_are_those_of_the_file_but_for_long_ones(
    parts: list[bytes], ends: bool, size: int
) -> None:
    data = b"\n".join(parts) + b"\n" * ends
    assert list(bounded_lines(io.BytesIO(data))) == list(io.BytesIO(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "MAX_LINE_LENGTH", 5)
        patch.setattr(text, "_BLOCK", size)
        found = list(bounded_lines(io.BytesIO(data)))
    whole = list(io.BytesIO(data))
    assert len(found) == len(whole)
    for line, old in zip(found, whole, strict=True):
        assert line == old if len(old) < 13 else old.startswith(line) and 5 < len(line) <= 13
        line.decode()  # no character is cut in two


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.zst"])
def test_a_huge_line_takes_no_memory(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"x" * HUGE + b"\nshort\n")
    peak, found = peak_of(lambda: deque(text.read_file(path), maxlen=2))
    assert [len(line) for line in found] == [MAX_LINE_LENGTH + 8, 5]
    assert peak < 8 << 20


# --- Training --------------------------------------------------------------------------------


def aligned(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    for name, side in zip(("a", "b"), zip(*rows, strict=True), strict=True):
        write(folder / name, "".join(f"{line}\n" for line in side).encode())
    return TextCorpus(src=str(folder / "a"), tgt=str(folder / "b"))


def tsv(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    data = "".join(f"{src}\t{tgt}\n" for src, tgt in rows).encode()
    return FileCorpus(file=str(write(folder / "a.tsv", data)), src=0, tgt=1)


def jsonl(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    data = "".join(json.dumps({"a": src, "b": tgt}) + "\n" for src, tgt in rows).encode()
    return FileCorpus(file=str(write(folder / "a.jsonl", data)), src="a", tgt="b")


def parquet(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    table = pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate("ab")})
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    return FileCorpus(file=str(folder / "a.parquet"), src="a", tgt="b")


def memory(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    return write_memory(folder / "a.tmx", "".join(unit(*row) for row in rows))


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_many_long_lines_take_no_memory(tmp_path: Path, suffix: str) -> None:
    """What reads several pairs at a time counts their characters, too."""
    long = (WIDEST[1:] + "\n").encode() * (HUGE >> 20)
    corpus = TextCorpus(src="a" + suffix, tgt="b" + suffix)
    for name in (corpus.src, corpus.tgt):
        write(tmp_path / name, b"one\n" + long + b"two\n")
    del long
    reading = Reading(tmp_path)
    longest, hashed = 0, tmp_path / "hashed"
    hashed.mkdir()

    def read() -> list[object]:
        nonlocal longest
        for some in text.chunked(read_pairs(corpus, reading), 1000):
            longest = max(longest, len(some))
        write_repeats(hashed, [read_pairs(corpus, reading)], 100, lambda pairs: None)
        return list(skim(corpus, reading, 100, {"two"}))

    peak, found = peak_of(read)
    last = (HUGE >> 20) + 2, "two", "two"
    assert found == [(True, False, (1, "one", "one")), (False, True, last)]
    assert longest < 9
    assert peak < 30 << 20


Make = Callable[[Path, list[tuple[str, str]]], Corpus]


@pytest.mark.parametrize("make", [aligned, tsv, jsonl, parquet, memory])
def test_pairs_too_long_are_dropped_and_counted_or_named(tmp_path: Path, make: Make) -> None:
    rows = [("one", "eins"), ("long", LONG), ("two", "zwei"), (LONG, "lang")]
    reading, corpus = Reading(), make(tmp_path, rows)
    assert list(read_pairs(corpus, reading)) == [rows[0], rows[2]]
    assert reading.counts == {DROPPED: 2}
    words = f"{TOO_LONG}; cut or remove it"
    with pytest.raises(RowError, match=words) as caught:
        list(read_pairs(corpus, Reading(keep_blank=True)))
    assert caught.value.number == 2


@pytest.mark.parametrize("make", [aligned, parquet, memory])
def test_a_text_of_just_the_most_bytes_is_kept(tmp_path: Path, make: Make) -> None:
    rows = [(WIDEST, "breit"), ("breit", WIDEST)]
    assert list(read_pairs(make(tmp_path, rows), Reading(keep_blank=True))) == rows


# --- Formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.jsonl.zst"])
def test_a_huge_row_takes_no_memory(tmp_path: Path, name: str) -> None:
    wide, place = b"x" * HUGE, (0, 1) if "tsv" in name else ("a", "b")
    rows = b"a\tb\n" + wide + b"\tb\n" if "tsv" in name else b'{"a": "' + wide + b'", "b": ""}\n'
    corpus = FileCorpus(file=str(write(tmp_path / name, rows + rows)), src=place[0], tgt=place[1])
    del wide, rows
    reading = Reading()
    peak, found = peak_of(lambda: list(read_pairs(corpus, reading)))
    assert reading.counts[DROPPED] == 2
    assert found == [("a", "b")] * 2 * ("tsv" in name)
    assert peak < 12 << 20


SHORT_SEGMENT = '<tuv xml:lang="c"><seg></seg></tuv>'


@pytest.mark.slow
@pytest.mark.parametrize(
    "variants",
    ["", SHORT_SEGMENT * 400_000, SHORT_SEGMENT.replace('"c"', f'"{"c" * 20_000}"') * 2000],
    ids=["text", "variants", "languages"],
)
def test_a_huge_unit_takes_no_memory(tmp_path: Path, variants: str) -> None:
    units = unit("" if variants else "x" * HUGE, "y", more=variants) + unit("eins", "one")
    corpus, reading = write_memory(tmp_path / "a.tmx.gz", units), Reading()
    del units
    peak, found = peak_of(lambda: list(read_pairs(corpus, reading)))
    assert found == [("eins", "one")]
    assert reading.counts == {DROPPED: 1}
    assert peak < 20 << 20


NAMES = range(2000)


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ('<tu note="{}"/>', "too long; fix the file"),
        ("<!-- {} -->", "too long; fix the file"),
        ("<{}/>", "too long; fix the file"),
        ("<?php {} ?>", "too long; fix the file"),
        ("".join(f"<x{n}/>" for n in NAMES), "more than 1,000 names of elements"),
        ("".join(f'<tu n{n}=""/>' for n in NAMES), "more than 1,000 names of elements"),
    ],
    ids=["attribute", "comment", "name", "pi", "elements", "attributes"],
)
def test_markup_that_takes_memory_is_refused(tmp_path: Path, units: str, words: str) -> None:
    corpus = write_memory(tmp_path / "a.tmx", units.format("x" * (8 << 20)))
    with pytest.raises(UserError, match=rf"a\.tmx:1: .*{words}"):
        list(read_pairs(corpus, Reading()))


def test_a_language_is_named_by_its_beginning(tmp_path: Path) -> None:
    units = unit("one", "eins").replace('"a"', f'"{"a" * MAX_LINE_LENGTH}"')
    with pytest.raises(UserError, match="no unit has both") as caught:
        list(read_pairs(write_memory(tmp_path / "a.tmx", units), Reading()))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("lies", [False, True])
def test_a_row_group_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """Even if its footer says that it is small: the texts of 2,000 bytes are said to be 100."""
    path, texts = tmp_path / "a.parquet", ["x" * 20] * 100
    table = pyarrow.table({"a": texts, "b": ["eins"] * 100, "image": ["y" * 10_000] * 100})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    corpus = FileCorpus(file=str(path), src="a", tgt="b")
    monkeypatch.setattr(parquet_reader, "MAX_GROUP_BYTES", 5000)
    assert len(list(read_pairs(corpus, Reading()))) == 100  # the image does not count
    monkeypatch.setattr(parquet_reader, "MAX_GROUP_BYTES", 2000)
    if lies:
        size = pyarrow.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size
        old, new = (bytes((2 * n & 127 | 128, n >> 6)) for n in (size, 100))
        data = path.read_bytes()
        at = data.rindex(old)
        path.write_bytes(data[:at] + new + data[at + 2 :])
        chunk = pyarrow.parquet.read_metadata(path).row_group(0).column(0)
        assert chunk.total_uncompressed_size == 100
    with pytest.raises(UserError, match=r"row group 0 holds .* smaller row groups"):
        list(read_pairs(corpus, Reading()))


@given(st.integers(0, 40), st.binary(min_size=1, max_size=12))
def test_the_header_of_a_page_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, more: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.parquet"
    table = pyarrow.table({"a": ["one"], "b": ["eins"]})
    pyarrow.parquet.write_table(table, path, use_dictionary=False)
    data = path.read_bytes()
    path.write_bytes(data[: 4 + at] + more + data[4 + at + len(more) :])
    with suppress(UserError):
        list(read_pairs(FileCorpus(file=str(path), src="a", tgt="b"), Reading()))


@pytest.mark.parametrize(
    "header",
    [
        *("15 00 10 15 02 00", "15 8e 80 80 80 20 00"),
        *("15 02 05 02 02 00", "05 00 02 00", "05 d0 0f 02 00"),
    ],
)
def test_a_header_that_readers_understand_differently_is_refused(header: str) -> None:
    """An end with a number beside it; 2^32 + 7, of which others read 7; the same field twice; and
    the fields 0 and 1000.
    """
    with mmap.mmap(-1, 16) as data:
        data[: len(bytes.fromhex(header))] = bytes.fromhex(header)
        with pytest.raises(LookupError):
            parquet_reader._struct(data)


@pytest.mark.parametrize("header", ["25 01 15 16 00", "25 16 15 01 00"])
def test_a_page_of_less_than_no_bytes_is_refused(header: str) -> None:
    chunk = SimpleNamespace(dictionary_page_offset=None, data_page_offset=4)
    chunk.total_compressed_size = 12
    with mmap.mmap(-1, 16) as data:
        data[4:9] = bytes.fromhex(header)
        with pytest.raises(ValueError, match="damaged"):
            next(parquet_reader._pages(data, chunk))


def nested(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    table = pyarrow.table({"t": [dict(zip("ab", row, strict=True)) for row in rows]})
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    return FileCorpus(file=str(folder / "a.parquet"), src="t.a", tgt="t.b")


def delta(folder: Path, rows: list[tuple[str, str]], version: str = "1.0") -> Corpus:
    table = pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate("ab")})
    coding = dict.fromkeys("ab", "DELTA_BYTE_ARRAY")
    path = folder / "a.parquet"
    options = {"use_dictionary": False, "column_encoding": coding, "data_page_version": version}
    pyarrow.parquet.write_table(table, path, **options)
    return FileCorpus(file=str(path), src="a", tgt="b")


@pytest.mark.parametrize("make", [parquet, nested, delta, partial(delta, version="2.0")])
def test_a_text_that_comes_in_every_row_takes_no_memory(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_reader, "PAGE_BYTES", 4 << 20)
    corpus = make(tmp_path, [("eins", "x" * (MAX_LINE_LENGTH - 100))] * 100)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 18
    peak, count = peak_of(lambda: sum(1 for _ in read_pairs(corpus, Reading())))
    assert count == 100
    assert peak < 12 << 20  # two batches, and not all rows


def test_a_list_is_no_text(tmp_path: Path) -> None:
    table = pyarrow.table({"a": [["one", "two"]], "b": ["eins"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    corpus = FileCorpus(file=str(tmp_path / "a.parquet"), src="a", tgt="b")
    with pytest.raises(UserError, match=r"no text column a; it has a\.list\.element, b"):
        list(read_pairs(corpus, Reading()))


@pytest.mark.parametrize("pairs", [0, 1 << 60])
def test_a_number_of_rows_makes_no_number_of_files(tmp_path: Path, pairs: int) -> None:
    found = duplicates.Duplicates(tmp_path, pairs)
    assert 1 <= len(found.paths) <= 4096
    found.add(np.array([7, 9, 7], np.uint64), np.arange(3, dtype=np.uint64))
    assert [(a.tolist(), b.tolist()) for a, b in found.groups() if len(a)] == [([2], [0])]


@pytest.mark.parametrize("make", [aligned, tsv])
def test_a_set_too_large_for_memory_is_refused(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make(tmp_path, [("five", "fünf")] * 100)
    monkeypatch.setattr(
        text, "MAX_SET_BYTES", 100 * (len("fivefünf".encode()) + text.LINE_OVERHEAD)
    )
    assert len(read_scored_text(corpus, Reading(keep_blank=True), "")) == 100
    monkeypatch.setattr(text, "MAX_SET_BYTES", text.MAX_SET_BYTES - 1)
    with pytest.raises(UserError, match="of text in a scored set"):
        read_scored_text(corpus, Reading(keep_blank=True), "")
    source = write(tmp_path / "source", b"one\n" * 200)
    with pytest.raises(UserError, match=r"source: more than .* in a scored set"):
        read_source(source, [])


@pytest.mark.parametrize("name", ["csv", "pandas", "webdataset"])
def test_a_reader_is_no_dataset(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = HubCorpus(dataset=name, split="train", src="a", tgt="b")
    with pytest.raises(UserError, match=f"dataset {name}: is a reader of the library"):
        list(read_pairs(corpus, Reading()))


@pytest.mark.parametrize("name", ["./set", "../set", "{}/set"])
def test_a_missing_folder_is_no_dataset_of_the_hub(tmp_path: Path, name: str) -> None:
    corpus = HubCorpus(dataset=name.format(tmp_path), split="train", src="a", tgt="b")
    with pytest.raises(UserError, match=r"set: no such folder: /.*/set; name one"):
        list(read_pairs(corpus, Reading(tmp_path)))


def test_a_folder_of_pickles_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    corpus = HubCorpus(dataset="./set", split="train", src="a", tgt="b")
    with pytest.raises(UserError, match=r"needs files of one kind, Parquet, JSON, .*; it has none"):
        list(read_pairs(corpus, Reading(tmp_path)))
    assert not Path("ran").exists()


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"a\tb\ta\none\teins\tuno\n")
    with pytest.raises(UserError, match=r"a\.tsv:1: two columns a; it has a, b, a\."):
        list(read_pairs(FileCorpus(file=str(path), src="a", tgt="b"), Reading()))
    others = list(read_pairs(FileCorpus(file=str(path), src=1, tgt=2), Reading()))
    assert others[1] == ("eins", "uno")
    table = pyarrow.table([["one"], ["eins"], ["uno"]], names=["a", "b", "a"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    corpus = FileCorpus(file=str(tmp_path / "a.parquet"), src="a", tgt="b")
    with pytest.raises(UserError, match=r"a\.parquet: two columns a; rename one of them"):
        list(read_pairs(corpus, Reading()))


# --- Translation -----------------------------------------------------------------------------


def test_a_line_too_long_is_cut_and_counted(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    data = b"bavo\n" + b"celu " * (HUGE // 5) + b"\nfosi\n"
    sink = io.BytesIO()
    with caplog.at_level(logging.WARNING, "mtrain"):
        peak, _ = peak_of(
            lambda: lines.translate_stream(translator, bounded_lines(io.BytesIO(data)), sink)
        )
    found = sink.getvalue().decode().split("\n")
    assert [found[0], found[2], *found[3:]] == [*translator.best(["bavo", "fosi"]), ""]
    assert found[1]
    limit = translator.loaded.max_source_length
    assert f"lines longer than {limit} tokens, cut there: 1 (line 2)" in caplog.text
    assert peak < 16 << 20


def test_the_cut_changes_no_token_that_is_read(translator: Translator) -> None:
    """Before a line is tokenized it is cut, far behind the last token that there is room for."""
    long = "bavo celu dimar fosi gutel hanp " * 2100
    (ids,), cut = translator.loaded.encode_sources([long])
    (whole,) = translator.loaded.tokenizer.encode([long])
    loaded = translator.loaded
    assert len(long) > loaded.max_characters(loaded.max_source_length)
    assert cut == [0]
    assert ids.tolist() == whole[: len(ids)]
    assert len(ids) == translator.loaded.max_source_length - 1


def test_a_line_of_blanks_alone_is_counted_as_cut(translator: Translator) -> None:
    blanks = " " * translator.loaded.max_characters(translator.loaded.max_source_length)
    (ids,), cut = translator.loaded.encode_sources([f"{blanks}  bavo"])
    assert cut == [0]
    assert len(ids) < translator.loaded.max_source_length


def test_scores_of_lines_too_long_are_those_of_what_is_left(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src = write(tmp_path / "src", b"bavo\n" + b"celu " * (HUGE // 5) + b"\nfosi\n")
    tgt = write(tmp_path / "tgt", b"zwent\nyalch\n" + b"xomt " * (HUGE // 5))
    with caplog.at_level(logging.WARNING, "mtrain"):
        assert len(list(lines.score_files(translator.loaded, src, tgt))) == 3
    most = translator.loaded.max_source_length, translator.loaded.max_target_length
    assert f"{src}: lines longer than {most[0]} tokens, cut there: 1 (line 2)" in caplog.text
    assert f"{tgt}: lines longer than {most[1]} tokens, cut there: 1 (line 3)" in caplog.text


def test_a_prefix_too_long_is_named(translator: Translator, tmp_path: Path) -> None:
    prefixes = write(tmp_path / "prefixes", b"zwent\n" + LONG.encode() + b"\n")
    source = bounded_lines(io.BytesIO(b"bavo\ncelu\n"))
    with pytest.raises(UserError, match=rf"prefixes:2: {TOO_LONG}; shorten the prefix"):
        lines.translate_stream(translator, source, io.BytesIO(), prefixes=prefixes)


def test_pieces_of_a_line_too_long(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    source = [b"bavo celu\n", b"bavo celu " * 100_000]
    sink = io.BytesIO()
    with caplog.at_level(logging.WARNING, "mtrain"):
        convert_stream(translator.loaded.tokenizer, source, sink, to_pieces=True)
    short, long = sink.getvalue().decode().splitlines()
    assert long.startswith(short)
    assert "characters, cut there: 1" in caplog.text


# --- Scoring ---------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [lambda p: read_references([p]), lambda p: read_source(p, [])])
def test_text_that_is_scored_is_never_cut(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = write(tmp_path / "a.gz", b"short\n" + b"x" * HUGE)
    with pytest.raises(UserError, match=rf"a\.gz:2: {TOO_LONG}; cut or remove the line"):
        read(path)


# --- Vocabularies ----------------------------------------------------------------------------


def test_pieces_that_are_not_utf8_are_no_model(tokenizer: Tokenizer) -> None:
    piece = tokenizer.all_pieces[20].encode()
    broken = tokenizer.proto.replace(piece, b"\xff" * len(piece))
    assert broken != tokenizer.proto
    with pytest.raises(UserError, match=r"a\.model: not a SentencePiece model"):
        Tokenizer(broken, "a.model")


def test_a_huge_file_is_no_model(tmp_path: Path) -> None:
    with (tmp_path / "a.model").open("wb") as file:
        file.truncate(1 << 34)

    def load() -> None:
        with pytest.raises(UserError, match="not a SentencePiece model: over 64 MiB"):
            Tokenizer.load(tmp_path / "a.model")

    assert peak_of(load)[0] < 100 << 20


def longer_piece(model: Any) -> None:
    model.pieces[-1].piece = "x" * 2000


def longer_unknown(model: Any) -> None:
    model.trainer_spec.unk_surface = "x" * 2000


def longer_replacement(model: Any) -> None:
    texts = model.normalizer_spec.precompiled_charsmap.split(b"\0")
    model.normalizer_spec.precompiled_charsmap = b"\0".join((*texts[:-2], b"x" * 2000, texts[-1]))


@pytest.mark.parametrize("change", [longer_piece, longer_unknown, longer_replacement])
def test_a_model_makes_no_text_a_thousand_times_longer(change: Callable[[Any], None]) -> None:
    texts = [f"one {word} two" for word in ("alpha", "beta", "gamma")] * 20
    proto = make_tokenizer(texts, vocab_size=300, normalization="nmt_nfkc").proto
    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    change(model)
    with pytest.raises(UserError, match=r"a\.model: not a model to use: .*1,000 characters"):
        Tokenizer(model.SerializeToString(), "a.model")


def test_training_keeps_long_lines_from_the_vocabulary(tokenizer: Tokenizer) -> None:
    """A text of far more characters than the longest tokens is not cut into pieces first."""
    most = 10 * max(text.CHARACTERS_PER_TOKEN, tokenizer.longest_piece)
    rows, dropped = [("a" * most, "b"), ("a", "b" * (most + 1))], Counter[str]()
    selection = filters.Selection(10, FilterConfig())
    assert selection.by_characters(rows, tokenizer.longest_piece, dropped) == rows[:1]
    assert dropped == {"pairs dropped: longer than 10 tokens": 1}


# --- Patterns --------------------------------------------------------------------------------


Pattern = re.Pattern[str] | regex.Pattern[str]


def patterns_in(value: object, seen: set[int]) -> Iterator[Pattern]:
    """Yield the patterns of a module's value, also in its tables, each read once."""
    if isinstance(value, re.Pattern | regex.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, list | tuple | dict) and id(value) not in seen:
        seen.add(id(value))
        for part in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(part, seen)


def patterns() -> dict[Pattern, None]:
    """Return the patterns of all modules."""
    names = [found.name for found in pkgutil.walk_packages(mtrain.__path__, "mtrain.")]
    modules = [vars(import_module(name)) for name in names if not name.endswith("__main__")]
    return dict.fromkeys(patterns_in(modules, set()))


# fmt: off
PARTS = [
    "a", "1", "_", "__a", "_a", "-", "-a", ".", ".1", "1.", "1,1", "@", "a@", "@a", "a.a",
    "@@", "%(", "%(a", "${a", "%1", "</", "<p", "<!-", "&a", "&#", "www.", "http://", "!", "Р",
    "Ð", "😀", "万", "1万", "0x", "[a", "1e1", "+1", "0_", "\\", "'", " ", " a", "a ", "\t",
    "<p  a ", "<p a=", " @", " ,",
]
# fmt: on


@pytest.mark.slow
@pytest.mark.parametrize("pattern", patterns(), ids=lambda p: p.pattern[:30])
def test_patterns_take_linear_time(pattern: Pattern) -> None:
    """30,000 characters that nearly match, from each start: squared, they would take minutes."""
    begin = time.process_time()
    for part in PARTS:
        for head, tail in (("", ""), ("<p", "\0"), ("x@", "\0"), ("", "- ")):
            deque(pattern.finditer(head + part * (30_000 // len(part)) + tail), maxlen=0)
    assert time.process_time() - begin < 60


# --- Helpers ---------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> Path:
    if path.suffix == ".gz":
        data = gzip.compress(data, 1)
    elif path.suffix == ".zst":
        data = pyarrow.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)
    return path


def unit(src: str, tgt: str, more: str = "") -> str:
    sides = zip("ab", (src, tgt), strict=True)
    variants = "".join(f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in sides)
    return f"<tu>{variants}{more}</tu>\n"


def write_memory(path: Path, units: str) -> FileCorpus:
    data = f'<tmx version="1.4"><header/><body>{units}</body></tmx>\n'.encode()
    return FileCorpus(file=str(write(path, data)), src="a", tgt="b")


def peak_of(act: Callable[[], object]) -> tuple[int, object]:
    """Return the most memory that Python took at once, in bytes, and what `act` returned."""
    tracemalloc.start()
    try:
        found = act()
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()
