"""Lines, cells, fields and segments longer than any sentence: held in bounded memory, dropped and
counted in training, cut and counted in translation, refused where texts are scored.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import re
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import run_here, write_config
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from mtrain.config.loading import load_config
from mtrain.config.schema import Corpus, FileCorpus, HubCorpus, TextCorpus
from mtrain.corpus import lines as text
from mtrain.corpus import tables, tmx
from mtrain.corpus.lines import LONGEST_LINE, TOO_LONG, Reading, bounded_lines
from mtrain.corpus.readers import read_pairs, read_text
from mtrain.data import duplicates, filters
from mtrain.data.tokenizer import Tokenizer, train_tokenizer
from mtrain.runtime.errors import RowError, UserError
from mtrain.scoring.references import read_references, read_source
from mtrain.translation import streams as lines
from mtrain.translation.translator import Translator

DROPPED = "pairs dropped: " + TOO_LONG
LONG = "word " * (LONGEST_LINE // 5 + 1)
WIDEST = "é" * (LONGEST_LINE // 2)
HUGE = 64 << 20


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
        patch.setattr(text, "LONGEST_LINE", 5)
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
    assert [len(line) for line in found] == [LONGEST_LINE + 8, 5]
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
    data = "".join(unit(*row) for row in rows)
    return FileCorpus(file=str(write_memory(folder / "a.tmx", data)), src="a", tgt="b")


FORMATS = [aligned, tsv, jsonl, parquet, memory]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("side", [0, 1])
def test_pairs_too_long_are_dropped_and_counted(
    tmp_path: Path, make: Callable[[Path, list[tuple[str, str]]], Corpus], side: int
) -> None:
    rows = [("one", "eins"), (LONG, "lang") if side == 0 else ("long", LONG), ("two", "zwei")]
    reading = Reading()
    assert list(read_pairs(make(tmp_path, rows), reading)) == [rows[0], rows[2]]
    assert reading.counts == {DROPPED: 1}


@pytest.mark.parametrize("make", FORMATS)
def test_sets_that_are_scored_name_a_line_too_long(
    tmp_path: Path, make: Callable[[Path, list[tuple[str, str]]], Corpus]
) -> None:
    corpus = make(tmp_path, [("one", "eins"), (LONG, "lang")])
    with pytest.raises(RowError, match=TOO_LONG) as told:
        list(read_pairs(corpus, Reading(keep_blank=True)))
    assert told.value.number == 2
    assert "a set that is scored loses no line" in str(told.value)


@pytest.mark.parametrize("make", [aligned, parquet, memory])
def test_a_text_of_just_the_most_bytes_is_kept(
    tmp_path: Path, make: Callable[[Path, list[tuple[str, str]]], Corpus]
) -> None:
    rows = [(WIDEST, "breit"), ("breit", WIDEST)]
    assert list(read_pairs(make(tmp_path, rows), Reading(keep_blank=True))) == rows


def test_a_run_tells_of_what_it_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path)
    corpus = load_config(config).data.train[0]
    assert isinstance(corpus, TextCorpus)
    with (tmp_path / corpus.src).open("a") as src, (tmp_path / corpus.tgt).open("a") as tgt:
        src.write(LONG + "\n")
        tgt.write("zwent\n")
    assert run_here(monkeypatch, "data", "build", "-c", config) == 0
    assert f"{DROPPED}: 1" in capfd.readouterr().err


# --- Formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.tsv.gz", "a.jsonl.zst"])
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


def test_a_huge_segment_takes_no_memory(tmp_path: Path) -> None:
    units = unit("x" * (HUGE // 4), "y") + unit("eins", "one")
    path = write_memory(tmp_path / "a.tmx.gz", units)
    del units
    reading = Reading()
    corpus = FileCorpus(file=str(path), src="a", tgt="b")
    peak, found = peak_of(lambda: list(read_pairs(corpus, reading)))
    assert found == [("eins", "one")]
    assert reading.counts == {DROPPED: 1}
    assert peak < 24 << 20


def test_many_variants_of_a_unit_take_no_memory(tmp_path: Path) -> None:
    variants = '<tuv xml:lang="c"><seg></seg></tuv>' * 100_000
    units = f"<tu>{variants}</tu>" + unit("eins", "one")
    reading = Reading()
    found = list(tmx.read_tmx(write_memory(tmp_path / "a.tmx", units), "a", "b", reading))
    assert found == [(2, "eins", "one")]
    assert reading.counts == {DROPPED: 1}


@pytest.mark.parametrize(
    "markup",
    ['<tu note="{}"/>', "<!-- {} -->", "<{}/>", "<?php {} ?>"],
    ids=["tag", "note", "name", "pi"],
)
def test_markup_too_long_is_refused(tmp_path: Path, markup: str) -> None:
    path = write_memory(tmp_path / "a.tmx", markup.format("x" * (HUGE // 8)))
    with pytest.raises(UserError, match=r"a\.tmx:1: .*too long; fix the file"):
        list(tmx.read_tmx(path, "a", "b", Reading()))


def test_a_row_group_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = parquet(tmp_path, [("one", "eins"), ("two", "zwei")])
    monkeypatch.setattr(tables, "LARGEST_BATCH", 100)
    with pytest.raises(UserError, match=r"row group 0 holds .* smaller row groups"):
        list(read_pairs(corpus, Reading()))


def test_only_the_columns_that_are_read_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"a": ["one"], "b": ["eins"], "image": ["x" * 10_000]})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False)
    monkeypatch.setattr(tables, "LARGEST_BATCH", 1000)
    corpus = FileCorpus(file=str(path), src="a", tgt="b")
    assert list(read_pairs(corpus, Reading())) == [("one", "eins")]


def nested(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    table = pyarrow.table({"t": [dict(zip("ab", row, strict=True)) for row in rows]})
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    return FileCorpus(file=str(folder / "a.parquet"), src="t.a", tgt="t.b")


def delta(folder: Path, rows: list[tuple[str, str]]) -> Corpus:
    table = pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate("ab")})
    coding = dict.fromkeys("ab", "DELTA_BYTE_ARRAY")
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(table, path, use_dictionary=False, column_encoding=coding)
    return FileCorpus(file=str(path), src="a", tgt="b")


@pytest.mark.parametrize("make", [parquet, nested, delta])
def test_a_text_that_comes_in_every_row_takes_no_memory(
    tmp_path: Path,
    make: Callable[[Path, list[tuple[str, str]]], Corpus],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "LARGEST_READ", 4 << 20)
    corpus = make(tmp_path, [("eins", "x" * (LONGEST_LINE - 100))] * 100)
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


@pytest.mark.parametrize("pairs", [0, 10, 1 << 60])
def test_a_number_of_rows_makes_no_number_of_files(tmp_path: Path, pairs: int) -> None:
    found = duplicates.Duplicates(tmp_path, pairs)
    assert 1 <= len(found.paths) <= 4096
    found.add(np.array([7, 9, 7], np.uint64), np.arange(3, dtype=np.uint64))
    assert [(a.tolist(), b.tolist()) for a, b in found.groups() if len(a)] == [([2], [0])]


@pytest.mark.parametrize("kind", ["<x{0}/>", '<tu n{0}=""/>'])
def test_ever_new_names_are_refused(tmp_path: Path, kind: str) -> None:
    path = write_memory(tmp_path / "a.tmx", "".join(map(kind.format, range(2000))))
    with pytest.raises(UserError, match=r"a\.tmx:1: .*more than 1,000 names of elements"):
        list(tmx.read_tmx(path, "a", "b", Reading()))


def test_a_language_is_named_by_its_beginning(tmp_path: Path) -> None:
    code = "a" * LONGEST_LINE
    path = write_memory(tmp_path / "a.tmx", unit("one", "eins").replace('"a"', f'"{code}"'))
    with pytest.raises(UserError, match="no unit has both") as told:
        list(tmx.read_tmx(path, "a", "b", Reading()))
    assert len(str(told.value)) < 1000


@pytest.mark.parametrize(
    ("data_files", "reason"),
    [
        ("https://example.invalid/a.csv", "names files by an address"),
        ("zip://a.csv::a.zip", "names files by an address"),
        ("../a.csv", r"which is outside of it"),
        ("{}/a.csv", r"which is outside of it"),
    ],
)
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
def test_a_local_dataset_holds_its_files(
    tmp_path: Path, data_files: str, reason: str, card: str
) -> None:
    write(tmp_path / "a.csv", b"a,b\none,eins\n")
    (tmp_path / "set").mkdir()
    named = json.dumps([{"config_name": "default", "data_files": data_files.format(tmp_path)}])
    lines = f"configs: {named}\n"
    text = f"---\n{lines}---\n" if card == "README.md" else lines
    write(tmp_path / "set" / card, text.encode())
    corpus = HubCorpus(dataset="./set", split="train", src="a", tgt="b")
    with pytest.raises(UserError, match=reason):
        list(read_pairs(corpus, Reading(tmp_path)))


@pytest.mark.parametrize("make", [aligned, tsv])
def test_a_set_too_large_for_memory_is_refused(
    tmp_path: Path,
    make: Callable[[Path, list[tuple[str, str]]], Corpus],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = make(tmp_path, [("one", "eins")] * 100)
    monkeypatch.setattr(text, "LARGEST_SET", 100 * (len("oneeins") + text.LINE))
    assert len(read_text(corpus, Reading(keep_blank=True), "")) == 100
    monkeypatch.setattr(text, "LARGEST_SET", text.LARGEST_SET - 1)
    with pytest.raises(UserError, match="of text in a set that is scored"):
        read_text(corpus, Reading(keep_blank=True), "")
    source = write(tmp_path / "source", b"one\n" * 200)
    with pytest.raises(UserError, match=r"source: more than .* in a set that is scored"):
        read_source(source, [])


@pytest.mark.parametrize("name", ["csv", "text", "pandas", "imagefolder", "webdataset"])
def test_a_reader_is_no_dataset(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = HubCorpus(dataset=name, split="train", src="a", tgt="b")
    with pytest.raises(UserError, match=f"dataset {name}: is a reader of the library"):
        list(read_pairs(corpus, Reading()))


def test_a_folder_of_pickles_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    corpus = HubCorpus(dataset="./set", split="train", src="a", tgt="b")
    with pytest.raises(UserError):
        list(read_pairs(corpus, Reading(tmp_path)))
    assert not Path("ran").exists()


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"a\tb\ta\none\teins\tuno\n")
    with pytest.raises(UserError, match=r"a\.tsv:1: two columns are named a; rename"):
        list(read_pairs(FileCorpus(file=str(path), src="a", tgt="b"), Reading()))
    others = list(read_pairs(FileCorpus(file=str(path), src=1, tgt=2), Reading()))
    assert others[1] == ("eins", "uno")


@pytest.mark.parametrize(
    ("row", "name", "is_bad"),
    [
        ('{"a": "x", "a": "y", "b": "z"}', "a", True),
        (r'{"a": "x", "\u0061": "y", "b": "z"}', "a", True),
        ('{"t": {"a": "x", "a": "y"}, "b": "z"}', "t.a", True),
        ('{"t": {"a": "x"}, "t": {"a": "y"}, "b": "z"}', "t.a", True),
        (r'{"t": {"a\/c": "x", "a/c": "y"}, "b": "z"}', "t.a/c", True),
        (r'{"\u00fc": "x", "ü": "y", "b": "z"}', "ü", True),
        ('{"a": "x", "c": {"a": "y"}, "b": "z"}', "a", False),
        (r'{"a": "\u0061", "b": "\"a\" and \"a\""}', "a", False),
        ('{"a": "x", "c": 1, "c": 2, "b": "z"}', "a", False),
    ],
)
def test_two_fields_of_one_name_are_refused(
    tmp_path: Path, row: str, name: str, is_bad: bool
) -> None:
    path = write(tmp_path / "a.jsonl", row.encode() + b"\n")
    corpus = FileCorpus(file=str(path), src=name, tgt="b")
    if is_bad:
        with pytest.raises(RowError, match=r"the field (a|t|a/c|ü) occurs twice"):
            list(read_pairs(corpus, Reading()))
    else:
        assert len(list(read_pairs(corpus, Reading()))) == 1


# --- Translation -----------------------------------------------------------------------------


def test_a_line_too_long_is_cut_and_counted(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    data = b"bavo\n" + b"celu " * (HUGE // 50) + b"\nfosi\n"
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
    assert len(long) > translator.loaded.most_characters
    assert cut == [0]
    assert ids.tolist() == whole[: len(ids)]
    assert len(ids) == translator.loaded.max_source_length - 1


def test_a_line_of_blanks_alone_is_counted_as_cut(translator: Translator) -> None:
    (ids,), cut = translator.loaded.encode_sources(
        [" " * translator.loaded.most_characters + "  bavo"]
    )
    assert cut == [0]
    assert len(ids) < translator.loaded.max_source_length


def test_scores_of_lines_too_long_are_those_of_what_is_left(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src = write(tmp_path / "src", b"bavo\n" + b"celu " * (HUGE // 50) + b"\nfosi\n")
    tgt = write(tmp_path / "tgt", b"zwent\nyalch\n" + b"xomt " * (HUGE // 50))
    sink = io.BytesIO()
    with caplog.at_level(logging.WARNING, "mtrain"):
        lines.score_files(translator.loaded, src, tgt, sink)
    assert len(sink.getvalue().splitlines()) == 3
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
        lines.encode_stream(translator.loaded.tokenizer, source, sink)
    short, long = sink.getvalue().decode().splitlines()
    assert long.startswith(short)
    assert "characters, cut there: 1" in caplog.text


# --- Scoring ---------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [lambda p: read_references([p]), lambda p: read_source(p, [])])
def test_text_that_is_scored_is_never_cut(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = write(tmp_path / "a.gz", b"short\n" + b"x" * HUGE)
    with pytest.raises(UserError, match=rf"a\.gz:2: {TOO_LONG}; cut or remove the line"):
        read(path)


def test_eval_refuses_a_line_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    long = write(tmp_path / "long", LONG.encode() + b"\n")
    short = write(tmp_path / "short", b"word\n")
    for arguments in ((long, "-r", short), (short, "-r", long)):
        assert run_here(monkeypatch, "eval", "--hypothesis", *arguments) == 1
        streams = capfd.readouterr()
        assert streams.out == ""
        assert f"error: {long}:1: {TOO_LONG}" in streams.err


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
        with pytest.raises(UserError, match="not a SentencePiece model: it has more than 64 MiB"):
            Tokenizer.load(tmp_path / "a.model")

    assert peak_of(load)[0] < 100 << 20


def longer_piece(model: Any) -> None:
    model.pieces[-1].piece = "x" * 2000


def longer_unknown(model: Any) -> None:
    model.trainer_spec.unk_surface = "x" * 2000


def longer_replacement(model: Any) -> None:
    texts = model.normalizer_spec.precompiled_charsmap.split(b"\0")
    texts[-2] = b"x" * 2000
    model.normalizer_spec.precompiled_charsmap = b"\0".join(texts)


@pytest.mark.parametrize("change", [longer_piece, longer_unknown, longer_replacement])
def test_a_model_makes_no_text_a_thousand_times_longer(change: Callable[[Any], None]) -> None:
    texts = [f"one {word} two" for word in ("alpha", "beta", "gamma")] * 20
    proto = train_tokenizer(lambda: texts, vocab_size=300, normalization="nmt_nfkc")
    Tokenizer(proto)
    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    change(model)
    with pytest.raises(UserError, match=r"a\.model: not a model to use: .*1,000 characters"):
        Tokenizer(model.SerializeToString(), "a.model")


def test_training_keeps_long_lines_from_the_vocabulary(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of far more characters than the longest tokens is not cut into pieces first."""
    selection = filters.Selection(max_length=10)
    most = 10 * max(text.CHARACTERS_A_TOKEN, tokenizer.longest_piece)
    dropped = Counter[str]()
    rows = [("a" * most, "b"), ("a", "b" * (most + 1))]
    assert selection.by_characters(rows, tokenizer.longest_piece, dropped) == rows[:1]
    assert dropped == {"pairs dropped: longer than 10 tokens": 1}


# --- Patterns --------------------------------------------------------------------------------


def patterns() -> Iterator[re.Pattern[str]]:
    from mtrain.check import pairs
    from mtrain.config import yaml_reader
    from mtrain.corpus import markup
    from mtrain.report import page
    from mtrain.runs import layout
    from mtrain.runtime import console, files
    from mtrain.scoring import notes
    from mtrain.translation import attention

    for module in (
        attention, console, files, filters, pairs, layout, markup, notes, page, yaml_reader
    ):  # fmt: skip
        for value in vars(module).values():
            if isinstance(value, re.Pattern):
                yield value


# fmt: off
PARTS = [
    "a", "1", "_", "__a", "_a", "-", "-a", ".", ".1", "1.", "1,1", "@", "a@", "@a", "a.a",
    "@@", "%(", "%(a", "${a", "%1", "</", "<p", "<!-", "&a", "&#", "www.", "http://", "!", "Р",
    "Ð", "😀", "万", "1万", "0x", "[a", "1e1", "+1", "0_", "\\", "'", " ", " a", "a ", "\t",
    "<p  a ", "<p a=", " @", " ,",
]
# fmt: on


@pytest.mark.parametrize("pattern", dict.fromkeys(patterns()), ids=lambda p: p.pattern[:30])
def test_patterns_take_linear_time(pattern: re.Pattern[str]) -> None:
    """30,000 characters that nearly match, from each start: squared, they would take minutes."""
    begin = time.process_time()
    for part in PARTS:
        for head, tail in (("", ""), ("<p", "\0"), ("x@", "\0")):
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


def unit(src: str, tgt: str, markup: str = "") -> str:
    return (
        f'<tu {markup}><tuv xml:lang="a"><seg>{src}</seg></tuv>'
        f'<tuv xml:lang="b"><seg>{tgt}</seg></tuv></tu>\n'
    )


def write_memory(path: Path, units: str) -> Path:
    return write(path, f'<tmx version="1.4"><header/><body>{units}</body></tmx>\n'.encode())


def peak_of(act: Callable[[], object]) -> tuple[int, object]:
    """Return the most memory that Python took at once, in bytes, and what `act` returned."""
    tracemalloc.start()
    try:
        found = act()
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()
