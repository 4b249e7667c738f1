"""Readers of corpora: one line discipline, pairs that never slip, errors that name their place."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtrain.config.corpora import Corpus, FileCorpus, GeneratedCorpus, HubCorpus, TextCorpus
from mtrain.corpus import hub, phrasebook
from mtrain.corpus.lines import (
    Reading,
    evenly_spaced,
    medium_line_indices,
    read_file,
    read_text_file,
    reading_from,
    refuse_other_start,
    scan_file,
    shorten_text,
)
from mtrain.corpus.readers import Pair, read_pairs, read_scored_text, scan
from mtrain.corpus.tables import OTHER_COLUMNS
from mtrain.runtime.errors import EXIT_FAILED, UserError

# Characters that `str.splitlines` splits on, NUL, and a carriage return that ends no line.
ODD = "a\x00b\x0bc\x0cd\x1ce\x1df\x1eg\x85h\u2028i\u2029j\rk"
PAIRS = [("drei rote Vögel", "three red birds"), ("kein Regen", "no rain"), ("", "a blank")]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the datasets library on this machine, its cache included."""
    for module in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")


def write(directory: Path, src: bytes, tgt: bytes) -> TextCorpus:
    """Write both sides of a corpus, packed where named so."""
    (directory / "a.src").write_bytes(src)
    (directory / "a.tgt").write_bytes(tgt)
    return TextCorpus(src=str(directory / "a.src"), tgt=str(directory / "a.tgt"))


def packed(data: bytes, suffix: str) -> bytes:
    """What a file of that suffix holds for these bytes."""
    if suffix == "zst":
        return pyarrow.Codec("zstd").compress(data, asbytes=True)
    return gzip.compress(data, mtime=0) if suffix == "gz" else data


def read(corpus: Corpus, **options: Any) -> tuple[list[Pair], dict[str, int]]:
    """Read a corpus whole: its pairs, and the counts of what was changed or dropped."""
    reading = Reading(**options)
    return list(read_pairs(corpus, reading)), dict(reading.counts)


def error_of(corpus: Corpus, **options: Any) -> str:
    """Return what reading a corpus fails with, after the scan that finds unequal lengths."""

    def scan_and_read() -> None:
        scan(corpus, Reading(**options))
        read(corpus, **options)

    with pytest.raises(UserError) as caught:
        scan_and_read()
    assert caught.value.exit_code == EXIT_FAILED
    return str(caught.value)


# --- lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "lines", "removed"),
    [
        (b"", [], 0),
        (b"\n", [""], 0),
        (b"one", ["one"], 0),
        (b"one\ntwo\n", ["one", "two"], 0),
        (b"one\ntwo", ["one", "two"], 0),
        (b"one\n\n", ["one", ""], 0),
        (b"one\r\ntwo\r\n", ["one", "two"], 2),
        (b"one\r\r\n", ["one\r"], 1),
        (b"o\rne\r", ["o\rne\r"], 0),
        (b"\r\n", [""], 1),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"], 0),
        (b"\xef\xbb\xbf", [""], 0),
        (b"\xef\xbb\xbf\xef\xbb\xbfone", ["\ufeffone"], 0),
        (f"{ODD}\n  two  \t\n".encode(), [ODD, "  two  \t"], 0),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "gz", "zst"])
def test_lines_end_at_newlines_alone(
    tmp_path: Path, suffix: str, data: bytes, lines: list[str], removed: int
) -> None:
    path = tmp_path / f"caf\udce9.{suffix}"  # a name that is not UTF-8
    path.write_bytes(packed(data, suffix))
    assert read_text_file(path) == lines
    reading = Reading()
    assert [line.decode() for line in read_file(path, reading.counts)] == lines
    assert reading.counts["carriage returns removed"] == removed


def test_text_of_one_side_is_counted_once(tmp_path: Path) -> None:
    """An entry whose other side a model makes reads the same file for both."""
    path = tmp_path / "text"
    path.write_bytes(b"one\r\ntwo\r\n")
    counts = {"carriage returns removed": 2}
    assert read(TextCorpus(src=str(path), tgt=str(path))) == ([("one",) * 2, ("two",) * 2], counts)


@settings(deadline=None, max_examples=200)
@given(
    sides=st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=6),
    final_newline=st.booleans(),
)
@example(sides=[(ODD.encode(), b"\xe2\x80\xa8"), (b"\r", b"\xff")], final_newline=True)
def test_any_bytes_with_equal_newlines_stay_aligned(
    tmp_path_factory: pytest.TempPathFactory,
    sides: list[tuple[bytes, bytes]],
    final_newline: bool,
) -> None:
    """Each line carries its number, so that a kept pair shows whether it is one."""
    end = b"\n" if final_newline else b""
    src, tgt = (
        [b"%d:" % number + pair[side].replace(b"\n", b"") for number, pair in enumerate(sides)]
        for side in (0, 1)
    )
    directory = tmp_path_factory.getbasetemp()
    corpus = write(directory, *(b"\n".join(side) + (end if side else b"") for side in (src, tgt)))
    pairs, counts = read(corpus, invalid_utf8="drop", keep_blank=True)
    assert scan(corpus, Reading()).pairs == len(src)
    assert len(pairs) + counts.get("pairs dropped: invalid UTF-8", 0) == len(src)
    for left, right in pairs:
        number = int(left.split(":")[0])
        assert number == int(right.split(":")[0])
        # a last line without a newline keeps its carriage return
        assert src[number].decode() in (left, left + "\r")
        assert tgt[number].decode() in (right, right + "\r")


# --- pairs ------------------------------------------------------------------------------------


def test_pairs_that_are_blank_on_a_side_are_dropped_together(tmp_path: Path) -> None:
    corpus = write(
        tmp_path, "one\n\nthree\n\u3000\nfive\n".encode(), b"eins\nzwei\n \t\nvier\nfuenf"
    )
    dropped = {"pairs dropped: blank on a side": 3}
    assert read(corpus) == ([("one", "eins"), ("five", "fuenf")], dropped)
    kept, counts = read(corpus, keep_blank=True)
    assert len(kept) == 5
    assert counts == {}


@pytest.mark.parametrize("tgt", [b"\n" * 9, b"\xff\n" * 9])
def test_a_stop_is_heard_while_all_pairs_are_dropped(tmp_path: Path, tgt: bytes) -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        read(write(tmp_path, b"a\n" * 9, tgt), invalid_utf8="drop", check_stop=stop)


@pytest.mark.parametrize(
    ("src", "tgt", "lengths"), [(b"a\nb\n", b"a\n", (2, 1)), (b"", b"a\nb\nc", (0, 3))]
)
def test_unequal_sides_are_refused_with_both_counts(
    tmp_path: Path, src: bytes, tgt: bytes, lengths: tuple[int, int]
) -> None:
    message = error_of(write(tmp_path, src, tgt))
    assert f"{tmp_path / 'a.src'} has {lengths[0]} lines" in message
    assert f"{tmp_path / 'a.tgt'} has {lengths[1]}" in message


def test_lines_that_end_in_carriage_returns_alone_are_refused(tmp_path: Path) -> None:
    """They would be one line; a file with a few, or with both, is read."""
    lone, many = b"a\r" * 20, b"b\n" * 20
    for src, tgt, name in ((lone, many, "src"), (many, lone, "tgt"), (lone, lone, "src")):
        message = error_of(write(tmp_path, src, tgt))
        assert f"a.{name}: its lines end in carriage returns alone; convert it: tr" in message
    with pytest.raises(UserError, match="its lines end in carriage returns alone"):
        read_text_file(tmp_path / "a.tgt")
    for src in (b"b\r\n" * 20, b"a\rb\n" * 20):
        assert scan(write(tmp_path, src, many), Reading()).pairs == 20


@pytest.mark.parametrize("order", ["LE", "BE"])
def test_utf16_without_a_byte_order_mark_is_named(order: str) -> None:
    for text in ("犬は上に\n小犬\n", "собака\nдом\n", "หมา\nบ้าน\n", "a dog\nä\n"):
        with pytest.raises(UserError, match=f"convert the file: iconv -f UTF-16{order} -t UTF-8"):
            refuse_other_start(f"{text}{text}"[:-1].encode(f"utf-16-{order}"), "a.src")


def test_utf8_with_control_characters_is_not_taken_for_another_encoding() -> None:
    for text in ("\0dog\ncat\n", "dog\0\ncat\0\nbird\0\n", "\0dog\n\0cat\n\0bird\n", "\n\0"):
        for padding in ("", "-"):
            refuse_other_start(f"{padding}{text}犬\n犬\n".encode(), "a.src")
    refuse_other_start(b"ab\n\0", "a.src")
    refuse_other_start("日本\x1b$B\n".encode(), "a.src")  # nor for ISO-2022-JP
    refuse_other_start(("dog\0\n" * 4 + "-dog\0\n" * 4 + "犬\n犬\n").encode(), "a.src")


def test_lengths_of_texts_in_a_parquet_file_are_no_carriage_returns(tmp_path: Path) -> None:
    texts = [f"sentence {number:04}" for number in range(20)]  # of 13 bytes
    plain: dict[str, Any] = {"use_dictionary": False, "compression": "NONE"}
    corpus = parquet(tmp_path, {"de": texts, "en": texts}, "de", "en", **plain)
    assert scan(corpus, Reading()).pairs == 20


def test_a_file_of_another_form_is_named_before_its_lines_are_counted(tmp_path: Path) -> None:
    for start, words in (
        ("a\nb\n".encode("utf-16"), "UTF-16, not UTF-8; convert the file: iconv -f UTF-16 -t"),
        ("a\nb\n".encode("utf-16-le"), "UTF-16, not UTF-8; convert the file: iconv -f UTF-16LE"),
        ("a\nb\n".encode("utf-16-be"), "UTF-16, not UTF-8; convert the file: iconv -f UTF-16BE"),
        (
            "a\n日本\n".encode("iso2022_jp"),
            "ISO-2022-JP, not UTF-8; convert the file: iconv -f ISO",
        ),
        ("한국\n".encode("iso2022_kr"), "ISO-2022-KR, not UTF-8; convert the file: iconv -f ISO"),
        ("a\nb\n".encode("utf-32"), "UTF-32, not UTF-8; convert the file: iconv -f UTF-32 -t"),
        (b"\0\0\xfe\xff" + "a".encode("utf-32-be"), "UTF-32, not UTF-8; convert the file: iconv"),
        (bz2.compress(b"a\nb\n"), "looks like bzip2; unpack it"),
        (packed(b"a\nb\n", "zst"), "looks like zstd; unpack it, or give the file a name that"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS, not the text;"),
        (lzma.compress(b"a\nb\n"), "looks like xz; unpack it"),
        (b"PK\3\4a\nb\n", "looks like a ZIP archive; unpack it"),
        (b"PAR1\x15\n\0" * 9, "looks like Parquet, not text; name the file of a corpus .parquet"),
        (
            gzip.compress(b"a\nb\n"),
            "looks like gzip; unpack it, or give the file a name that ends in .gz",
        ),
    ):
        corpus = write(tmp_path, start, b"a\nb\n")
        with pytest.raises(UserError, match=re.escape(f"{tmp_path / 'a.src'}: {words}")):
            scan(corpus, Reading())
        with pytest.raises(UserError, match=re.escape(f"{tmp_path / 'a.src'}: {words}")):
            list(read_file(tmp_path / "a.src"))
        (tmp_path / "a.tsv").write_bytes(start)
        table = FileCorpus(file=str(tmp_path / "a.tsv"), src=0, tgt=1)
        with pytest.raises(UserError, match=re.escape(f"{tmp_path / 'a.tsv'}: {words}")):
            scan(table, Reading())


def test_text_may_begin_as_the_name_of_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_bytes(b"PAR1 is a receptor.\n")
    assert list(read_file(tmp_path / "text")) == [b"PAR1 is a receptor."]
    assert scan_file(tmp_path / "text", lambda: None)[0] == 1
    monkeypatch.setattr("mtrain.corpus.lines._BLOCK", 4)  # only the first block is judged
    (tmp_path / "text").write_bytes(b"abc\nPK\3\4\n")
    assert list(read_file(tmp_path / "text")) == [b"abc", b"PK\3\4"]
    assert scan_file(tmp_path / "text", lambda: None)[0] == 2


def test_parquet_under_the_name_of_a_text_is_told(tmp_path: Path) -> None:
    all_options: list[dict[str, Any]] = [{}, {"use_dictionary": False, "data_page_version": "2.0"}]
    for options in all_options:
        parquet(tmp_path, {"de": ["a"], "en": ["b"]}, "de", "en", **options)
        with pytest.raises(UserError, match="looks like Parquet"):
            list(read_file(tmp_path / "a.parquet"))


def test_nul_bytes_at_the_start_of_text_are_text(tmp_path: Path) -> None:
    """As a crash may leave them."""
    for start in (bytes(64) + b"a\n", b"\0\0\0\n" * 3, b"\n\0\0\0" * 9, bytes(8)):
        (tmp_path / "text").write_bytes(start)
        assert b"\n".join(line.rstrip(b"\n") for line in read_file(tmp_path / "text")) == (
            start.removesuffix(b"\n")
        )


def test_a_file_that_changes_between_scan_and_reading_is_noticed(tmp_path: Path) -> None:
    corpus = write(tmp_path, b"a\nb\n", b"a\n")
    with pytest.raises(UserError, match=r"a\.tgt: ends at line 1, before the other side"):
        read(corpus)


def test_text_that_is_not_utf8_ends_reading_or_drops_its_pair(tmp_path: Path) -> None:
    corpus = write(tmp_path, b"one\ntwo\nthree\n", b"eins\nzw\xffei\ndrei\n")
    message = error_of(corpus)
    assert message.startswith(f"{tmp_path / 'a.tgt'}:2: invalid UTF-8 (byte 3 ")
    assert "data.invalid_utf8: drop" in message
    dropped = {"pairs dropped: invalid UTF-8": 1}
    assert read(corpus, invalid_utf8="drop") == ([("one", "eins"), ("three", "drei")], dropped)

    both = write(tmp_path, b"\xff\n\xc0\xaf\nx\r\n", b"\xff\n\xed\xa0\x80\ny\r\n")
    dropped = {"pairs dropped: invalid UTF-8": 2, "carriage returns removed": 2}
    assert read(both, invalid_utf8="drop") == ([("x", "y")], dropped)


def test_evaluation_text_that_is_not_utf8_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "ref").write_bytes(b"fine\n\xe4\n")
    with pytest.raises(UserError, match=r"ref:2: invalid UTF-8"):
        read_text_file(tmp_path / "ref")


def test_paths_start_at_the_root(tmp_path: Path) -> None:
    whole = write(tmp_path, b"x\n", b"y\n")
    for src in ("a.src", whole.src):
        assert read(TextCorpus(src=src, tgt="a.tgt"), root=tmp_path)[0] == [("x", "y")]


# A frame of zstd with a window of 2 GiB.
WIDE = bytes.fromhex("28b52ffd00a8010000")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.txt", None, "cannot read: No such file"),
        ("absent.gz", None, "cannot read: No such file"),
        ("plain.gz", b"not packed\n", "cannot read: Not a gzipped file"),
        ("cut.gz", packed(b"line\n" * 500, "gz")[:-9], "cannot read: Compressed file ended"),
        ("flipped.gz", packed(b"x\n", "gz")[:-6] + b"\xff" * 6, "cannot read: CRC check failed"),
        ("broken.gz", packed(b"x\n", "gz")[:10] + b"\xff" * 12, "cannot read: "),
        ("empty.gz", b"", "cannot read: it is empty"),
        ("empty.zst", b"", "cannot read: it is empty"),
        ("absent.zst", None, "cannot read: "),
        ("plain.zst", b"not packed\n", "cannot read: ZSTD decompress failed"),
        ("cut.zst", packed(b"line\n" * 500, "zst")[:-9], "cannot read: Truncated"),
        ("wide.zst", WIDE, "cannot read: ZSTD decompress failed: Frame requires too much memory"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = error_of(TextCorpus(src=str(path), tgt=str(path)))
    assert message.startswith(f"{path}: {words}")

    assert "is a directory" in error_of(TextCorpus(src=str(tmp_path), tgt=str(tmp_path)))


def test_a_disk_that_fails_is_told_in_words() -> None:
    expected = pytest.raises(UserError, match=r"^a\.txt: cannot read: Input/output error$")
    with expected, reading_from("a.txt"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_packed_and_plain_text_read_alike(tmp_path: Path) -> None:
    src, tgt = b"un\r\ndos\n", b"uno\nzwo"
    plain = write(tmp_path, src, tgt)
    skipped = bytes.fromhex("502a4d1804000000") + b"pzst"  # a frame that pzstd writes before each
    for suffix, start in (("gz", b""), ("zst", b""), ("zst", skipped)):
        for name, data in (("a.src", src), ("a.tgt", tgt)):
            parts = (start + packed(part, suffix) for part in (data[:4], data[4:]))
            (tmp_path / f"{name}.{suffix}").write_bytes(b"".join(parts))
        both = TextCorpus(src=f"{plain.src}.{suffix}", tgt=f"{plain.tgt}.{suffix}")
        assert read(both) == read(plain)
        assert scan(both, Reading()) == scan(plain, Reading())


def test_the_scan_s_hash_is_of_the_text_on_both_sides(tmp_path: Path) -> None:
    texts = [(b"a\n", b"b\n"), (b"b\n", b"a\n"), (b"a", b"b\n"), (b"a\r\n", b"b\n"), (b"", b"")]
    hashes = [scan(write(tmp_path, *sides), Reading()).sha256 for sides in texts]
    assert len(set(hashes)) == len(texts)
    assert scan(write(tmp_path, *texts[0]), Reading()).sha256 == hashes[0]
    sides = b"".join(hashlib.sha256(side).digest() for side in texts[0])  # as runs have it stored
    assert hashes[0] == hashlib.sha256(sides).hexdigest()


# --- the built-in corpus ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "table", "generated"])
def test_swap_exchanges_the_sides(tmp_path: Path, kind: str) -> None:
    """The hash knows it, the tag and the languages. Errors name files as written."""
    (tmp_path / "a.tsv").write_text("a\tb\n\tc\nd\te\n")
    corpus: Corpus = {
        "text": write(tmp_path, b"a\n\nd\n", b"b\nc\ne\n"),
        "table": FileCorpus(file=str(tmp_path / "a.tsv"), src=0, tgt=1),
        "generated": GeneratedCorpus(generated="phrasebook", split="valid", pairs=3),
    }[kind]
    swapped = corpus.model_copy(update={"swap": True})
    pairs, counts = read(corpus)
    assert read(swapped) == ([pair[::-1] for pair in pairs], counts)
    text = read_scored_text(swapped, Reading(keep_blank=True), "")
    assert text.references == read_scored_text(corpus, Reading(keep_blank=True), "").sources
    changes = ({"tag": "<x>"}, {"src_lang": "xx"}, {"tgt_lang": "xx"})
    others = [corpus.model_copy(update=change) for change in changes]
    assert [read(other) for other in others] == [(pairs, counts)] * 3
    scans = [scan(each, Reading()) for each in (corpus, swapped, *others)]
    assert (len({each.sha256 for each in scans}), len({each.pairs for each in scans})) == (5, 1)
    (tmp_path / "a.src").write_bytes(b"a\n\xff\nb\n")
    assert kind != "text" or "a.src:2: " in error_of(swapped)


def test_the_phrasebook_is_read_by_split_and_size() -> None:
    train = GeneratedCorpus(generated="phrasebook", split="train", pairs=40)
    valid = train.model_copy(update={"split": "valid"})
    for corpus in (train, valid):
        assert read(corpus)[0] == list(phrasebook.pairs(corpus.split, 40))
        assert scan(corpus, Reading()).pairs == 40
    assert scan(train, Reading()) != scan(valid, Reading())
    assert "has at most 5000000 pairs" in error_of(train.model_copy(update={"pairs": 10**9}))


# --- tables -----------------------------------------------------------------------------------


def table(directory: Path, name: str, data: str | bytes, src: Any, tgt: Any) -> FileCorpus:
    """Write a file of rows, packed where named so."""
    data = data if isinstance(data, bytes) else data.encode()
    (directory / name).write_bytes(packed(data, name.rpartition(".")[2]))
    return FileCorpus(file=str(directory / name), src=src, tgt=tgt)


def parquet(
    directory: Path, columns: dict[str, list[Any]], src: str, tgt: str, **options: Any
) -> FileCorpus:
    path = directory / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return FileCorpus(file=str(path), src=src, tgt=tgt)


TSV = "".join(f"{number}\t{de}\t{en}\n" for number, (de, en) in enumerate(PAIRS))
JSON_LINES = "".join(json.dumps({"id": 1, "t": {"de": de, "en": en}}) + "\n" for de, en in PAIRS)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_columns_of_a_tsv_go_by_number_or_by_name(tmp_path: Path, suffix: str) -> None:
    numbered = table(tmp_path, f"a.tsv{suffix}", TSV, 1, 2)
    named = table(tmp_path, f"b.tsv{suffix}", "\ufeffid\tde\ten\r\n" + TSV, "de", "en")
    for corpus in (numbered, named):
        assert read(corpus, keep_blank=True)[0] == PAIRS
        assert read(corpus)[1].get("pairs dropped: blank on a side") == 1
        assert scan(corpus, Reading()).pairs == len(PAIRS)

    quoted = table(tmp_path, f"c.tsv{suffix}", f'"a\t{ODD}\n  b \t\u2028\n', 0, 1)
    assert read(quoted, keep_blank=True)[0] == [('"a', ODD), ("  b ", "\u2028")]


def test_a_tsv_without_a_line_has_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").touch()
    assert scan(FileCorpus(file=str(tmp_path / "a.tsv"), src="en", tgt="de"), Reading()).pairs == 0


def test_rows_of_a_tsv_with_other_columns_than_the_first_are_counted(tmp_path: Path) -> None:
    corpus = table(tmp_path, "a.tsv", "a\tb\tx\nc\td\ne\tf\tg\th\n", 0, 1)
    found, counts = read(corpus)
    assert found == [("a", "b"), ("c", "d"), ("e", "f")]
    assert counts == {f"{OTHER_COLUMNS}, from line 2 on": 2}


def test_cells_of_a_tsv_that_are_quoted_as_in_csv_are_read_as_they_are(tmp_path: Path) -> None:
    assert read(table(tmp_path, "b.tsv", "\t\n", 0, 1), keep_blank=True)[0] == [("", "")]
    rows = ['a\t"b"', '"say ""a"""\tb', 'a\t"""b"", c"', 'x = ""\t""', '"a" "" "b"\tb', '"\t""']
    expected = [tuple(row.split("\t")) for row in rows]
    assert read(table(tmp_path, "a.tsv", "\n".join(rows), 0, 1)) == (expected, {})


@pytest.mark.parametrize(
    ("first", "is_header"),
    [
        ("source\ttarget", True),
        ("en\tpt_BR", True),
        (" English\tGerman ", True),
        ('"en"\t " de "', True),
        ('""\t"de"', False),
        ("deu_Latn\tText", True),
        ("Text\tein Text", False),
        ("yes\tja", False),
        ("no-one knows\tso-genannt", False),
    ],
)
def test_a_first_row_of_names_is_told_where_columns_have_numbers(
    tmp_path: Path, first: str, is_header: bool
) -> None:
    content = f"{first}\nen\tde\n"
    found, counts = read(table(tmp_path, "a.tsv", content, 0, 1))
    assert len(found) == 2
    told = [re.search(r"is one of the pairs .* src: (\S+), tgt: (\S+)\)", text) for text in counts]
    assert len(told) == is_header
    for match in told:
        src, tgt = match.groups()
        assert read(table(tmp_path, "a.tsv", content, src, tgt))[0] == [("en", "de")]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_json_lines_with_nested_fields(tmp_path: Path, suffix: str) -> None:
    corpus = table(tmp_path, f"a.jsonl{suffix}", JSON_LINES, "t.de", "t.en")
    assert read(corpus, keep_blank=True)[0] == PAIRS
    assert scan(corpus, Reading()).pairs == len(PAIRS)


def test_parquet_with_nested_columns_in_more_than_one_batch(tmp_path: Path) -> None:
    pairs = [(f"{number} {de}", en) for number in range(800) for de, en in PAIRS]
    rows = [{"de": de, "en": en} for de, en in pairs]
    corpus = parquet(tmp_path, {"t": rows, "id": [0] * len(rows)}, "t.de", "t.en")
    assert read(corpus, keep_blank=True)[0] == pairs
    assert scan(corpus, Reading()).pairs == len(pairs)


@pytest.mark.parametrize(
    ("name", "data", "src", "tgt", "words"),
    [
        (
            "a.tsv",
            "a\tb\nc\n",
            0,
            1,
            "a.tsv:2: has 1 column, and no tab, but src: 0, tgt: 1 needs 2 (columns are numbered "
            "from 0); fix or remove the line",
        ),
        ("a.tsv", "en\tda\na\tb\n", "en", "de", "a.tsv:1: no column de; it has en, da"),
        ("a.tsv", "en\tda\na\tb\n\na\tb\tc\n", "en", "da", "a.tsv:3: blank; remove the line"),
        ("a.tsv", "en\tda\na\tb\tc\n", "en", "da", "a.tsv:2: has 3 columns, but the first line"),
        ("a.tsv", "", "en", "de", "a.tsv:1: no column en"),
        ("a.tsv", '"en" \t"en"\na\tb\n', "en", "de", "a.tsv:1: two columns en"),
        ("a.tsv", "x" * 999, "en", "de", f"it has {'x' * 200} ..."),
        ("a.tsv", b"a\tb\n\xff\tb\n", 0, 1, "a.tsv:2: invalid UTF-8 (byte 1 of the line)"),
        ("a.tsv.gz", TSV.encode() * 9, 7, 1, "a.tsv.gz:1: has 3 columns, but src: 7"),
        ("a.jsonl", '{"a": "b"}\n{"a": \n', "a", "a", "a.jsonl:2: not JSON: "),
        ("a.jsonl", '{"a": "b"},\n', "a", "a", "at character 11; write one JSON object per line"),
        ("a.jsonl", '{"a": "b', "a", "a", "Unterminated string starting at character 7;"),
        ("a.jsonl", f'{{"a": {"9" * 5000}}}', "a", "a", "a number has too many digits"),
        ("a.jsonl", "[" * 100_000, "a", "a", "a.jsonl:1: not JSON: values are nested too"),
        ("a.jsonl", '{"a": "b"}\n\n', "a", "a", "a.jsonl:2: blank; remove the line"),
        ("a.jsonl", '{"a": "b"}', "a", "c", "a.jsonl:1: no field c; it has a"),
        (
            "a.jsonl",
            '{"a": "b"}',
            "a",
            "a.c",
            "a.jsonl:1: no field a.c; the value is not an object",
        ),
        (
            "a.jsonl",
            '{"id": 1, "pair": {"en": "b", "de": "c"}, "none": {}}',
            "en",
            "de",
            "a.jsonl:1: no field en; it has id, pair.en, pair.de, none",
        ),
        ("a.jsonl", '["a"]', "a", "c", "a.jsonl:1: no field a; the value is not an object"),
        ("a.jsonl", '{"a": "b", "a": "c"}', "a", "a", "a.jsonl:1: the field a occurs twice"),
        ("a.jsonl", '{"ab": "1", "\\u0061b": "2"}', "ab", "ab", "the field ab occurs twice"),
        ("a.jsonl", '{"ä": "1", "ä": "2"}', "ä", "ä", "the field ä occurs twice"),
        ("a.jsonl", '{"t": {"a": "1", "a": "2"}}', "t.a", "t.a", "the field a occurs twice"),
        ("a.jsonl", '{"t": {"a": "1"}, "t": {"a": "2"}}', "t.a", "t.a", "the field t occurs twice"),
        ("a.jsonl", '{"t": {"a": "1", "\\u0061": "2"}}', "t.a", "t.a", "the field a occurs twice"),
        ("a.jsonl", '{"t.a": "1", "t.\\u0061": "2"}', "t.a", "t.a", "field t.a occurs twice"),
        ("a.jsonl", '{"a": "b", "c": null}', "a", "c", "a.jsonl:1: c is null, not text"),
        ("a.jsonl", '{"a": "b", "c": 7}', "a", "c", "a.jsonl:1: c is of the type int, not text"),
        ("a.jsonl", '{"a": "b", "c": "\\ud800"}', "a", "c", "a.jsonl:1: holds half of a"),
        ("a.jsonl", '{"a": "\\ud800", "c": "b"}', "a", "c", "a.jsonl:1: holds half of a"),
        ("a.parquet", b"PAR1 and no more", "a", "b", "a.parquet: cannot read: "),
        ("a.parquet", b"", "a", "b", "a.parquet: cannot read: "),
    ],
)
def test_a_bad_row_of_a_table_is_named(
    tmp_path: Path, name: str, data: str | bytes, src: Any, tgt: Any, words: str
) -> None:
    assert words in error_of(table(tmp_path, name, data, src, tgt))


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("de", "no text column de; it has t.de, t.en"),
        ("t.da", "no text column t.da; it has t.de, t.en"),
        ("t", "no text column t; it has t.de, t.en"),
        ("t.de", "row 2: t.de is null, not text; fix or remove the row"),
    ],
)
def test_a_bad_row_of_a_parquet_file_is_named(tmp_path: Path, src: str, words: str) -> None:
    rows = [{"de": "a", "en": "b"}, {"de": None, "en": "c"}]
    assert words in error_of(parquet(tmp_path, {"t": rows}, src, "t.en"))


def test_a_field_that_is_not_read_may_occur_twice(tmp_path: Path) -> None:
    line = r'{"id": 1, "id": 2, "a": "\u0061", "b": "c"}'
    assert read(table(tmp_path, "a.jsonl", line, "a", "b"))[0] == [("a", "c")]


def test_a_binary_column_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    corpus = parquet(tmp_path, {"a": [b"b", b"c"], "d": ["e", "f"]}, "d", "a")
    assert "row 1: a is of the type bytes, not text; fix" in error_of(corpus)


def test_names_with_dots_are_names(tmp_path: Path) -> None:
    lines = table(tmp_path, "a.jsonl", '{"t.en": "a", "t": {"de": "b"}}', "t.en", "t.de")
    columns = {"t.en": ["a"], "t": [{"de": "b"}]}
    for corpus in (lines, parquet(tmp_path, columns, "t.en", "t.de")):
        assert read(corpus)[0] == [("a", "b")]


def test_a_batch_of_nothing_is_named_by_its_first_row(tmp_path: Path) -> None:
    column = pyarrow.array([None, None], pyarrow.struct([("en", pyarrow.string())]))
    corpus = parquet(tmp_path, {"t": column, "de": ["a", "b"]}, "t.en", "de")
    assert "row 1: t.en is null" in error_of(corpus)


def test_a_parquet_file_that_was_cut_or_is_no_text_is_refused(tmp_path: Path) -> None:
    corpus = parquet(tmp_path, {"a": ["b"] * 5000, "c": ["d"] * 5000}, "a", "c")
    path = Path(corpus.file)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot read: " in error_of(corpus)
    bad = pyarrow.array([b"a"] * 1500 + [b"\xff"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(bad), bad.buffers())
    corpus = parquet(tmp_path, {"a": text, "c": ["d"] * 1501}, "a", "c")
    assert "cannot read after row 1000: 'utf-8' codec" in error_of(corpus)


@pytest.mark.parametrize("name", ["a.tsv.zst", "a.jsonl.gz", "a.parquet", "a.tsv"])
def test_tables_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    corpus = FileCorpus(file=str(tmp_path / name), src="a", tgt="b")
    assert f"{tmp_path / name}: cannot read: " in error_of(corpus)
    whole = packed(TSV.encode() * 200, name.rpartition(".")[2])
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    if name != "a.tsv":
        assert f"{tmp_path / name}: cannot read: " in error_of(corpus)


def test_rows_that_are_not_utf8_are_dropped_where_asked(tmp_path: Path) -> None:
    no_header = table(tmp_path, "b.tsv", b"x\xff\ty\na\tb\n", "a", "b")
    message = "b.tsv:1: the names of the columns are not UTF-8; convert"
    assert message in error_of(no_header, invalid_utf8="drop")
    tsv = table(tmp_path, "a.tsv", b"a\tb\n\xff\tb\nc\td\n", 0, 1)
    lines = b'{"a": "a", "b": "b"}\n{"a": "\\udc00", "b": "b"}\n{"a": "c", "b": "d"}\n'
    for corpus in (tsv, table(tmp_path, "a.jsonl", lines, "a", "b")):
        pairs, counts = read(corpus, invalid_utf8="drop")
        assert pairs == [("a", "b"), ("c", "d")]
        assert counts == {"pairs dropped: invalid UTF-8": 1}


def test_the_hash_of_a_table_is_of_what_is_read(tmp_path: Path) -> None:
    corpora = [table(tmp_path, "a.tsv", TSV, 1, 2), table(tmp_path, "b.tsv.gz", TSV, 1, 2)]
    first, packed_one = (scan(corpus, Reading()).sha256 for corpus in corpora)
    assert first == packed_one
    for other in (table(tmp_path, "c.tsv", TSV, 2, 1), table(tmp_path, "d.tsv", TSV[:-1], 1, 2)):
        assert scan(other, Reading()).sha256 != first


# --- Hugging Face datasets, from local folders ------------------------------------------------


def parquet_folder(directory: Path) -> HubCorpus:
    """A folder as WMT's sets are laid out: one column of {en, de}."""
    from datasets import Dataset

    folder = directory / "nested"
    folder.mkdir()
    rows = [{"de": de, "en": en} for de, en in PAIRS]
    Dataset.from_dict({"translation": rows}).to_parquet(str(folder / "train.parquet"))
    return HubCorpus(dataset="nested", split="train", src="translation.de", tgt="translation.en")


def jsonl_folder(directory: Path, rows: list[dict[str, Any]]) -> HubCorpus:
    folder = directory / "lines"
    folder.mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    return HubCorpus(dataset="lines", split="train", src="de", tgt="en")


def test_a_dataset_with_nested_columns(tmp_path: Path) -> None:
    corpus = parquet_folder(tmp_path)
    dropped = {"pairs dropped: blank on a side": 1}
    assert read(corpus, root=tmp_path) == (PAIRS[:2], dropped)
    assert scan(corpus, Reading(tmp_path)).pairs == 3
    first = corpus.model_copy(update={"split": "train[:1]"})
    assert read(first, root=tmp_path)[0] == PAIRS[:1]
    folder = corpus.model_copy(update={"dataset": ".", "name": "nested"})
    assert read(folder, root=tmp_path)[0] == PAIRS[:2]


def test_the_hash_of_a_dataset_tells_where_texts_end(tmp_path: Path) -> None:
    hashes = set()
    for number, (de, en) in enumerate([("ab", "c"), ("a", "bc")]):
        (tmp_path / str(number)).mkdir()
        corpus = jsonl_folder(tmp_path / str(number), [{"de": de, "en": en}])
        streamed = corpus.model_copy(update={"streaming": True})
        hashes.add(scan(streamed, Reading(tmp_path / str(number))).sha256)
    assert len(hashes) == 2


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_of_json_lines(tmp_path: Path, streaming: bool) -> None:
    corpus = jsonl_folder(tmp_path, [{"de": de, "en": en} for de, en in PAIRS])
    corpus = corpus.model_copy(update={"streaming": streaming})
    assert read(corpus, root=tmp_path, keep_blank=True)[0] == PAIRS
    copies = list((tmp_path / "hub").rglob("*.arrow"))
    assert bool(copies) != streaming


def test_a_dataset_that_was_saved_to_disk_is_read(tmp_path: Path) -> None:
    """Its Arrow files are described in JSON files."""
    from datasets import Dataset

    rows = [{"de": de, "en": en} for de, en in PAIRS]
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    corpus = HubCorpus(dataset="saved", split="train", src="de", tgt="en")
    assert read(corpus, root=tmp_path, keep_blank=True)[0] == PAIRS


def test_a_text_of_a_dataset_that_is_too_long_is_dropped_as_in_a_file(tmp_path: Path) -> None:
    texts = ["a", "b" * (1 << 21), "c"]
    corpus = jsonl_folder(tmp_path, [{"de": text, "en": text} for text in texts])
    assert scan(corpus, Reading(tmp_path)).pairs == 3
    dropped = {"pairs dropped: longer than 1,048,576 bytes": 1}
    assert read(corpus, root=tmp_path) == ([("a", "a"), ("c", "c")], dropped)
    assert "row 2: longer than" in error_of(corpus, root=tmp_path, keep_blank=True)


def test_rows_of_a_dataset_are_read_in_batches_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = jsonl_folder(tmp_path, [{"de": "a" * 1000, "en": "b" * 1000}] * 10)

    def sizes() -> list[int]:
        batches = hub._dataset_batches(corpus, tmp_path, "set")
        return [len(batch["de"]) for batch in batches]

    assert sizes() == [10]
    monkeypatch.setattr(hub, "BATCH_BYTES", 5000)
    assert sizes() == [3, 3, 3, 1]
    monkeypatch.setattr(hub, "ROWS", 2)
    assert sizes() == [2] * 5


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"src": "deutsch"}, "no field deutsch; it has translation.de, translation.en"),
        ({"src": "translation.da"}, "translation.da: no field da; it has de, en"),
        ({"src": "translation"}, "row 1: translation is of the type dict, not text"),
        (
            {"src": "translation.de.old"},
            "translation.de.old: no field de.old; the value is not an object",
        ),
        ({"split": "dev"}, "cannot load: Unknown split"),
        ({"split": "train[:0]"}, "cannot load: "),
        ({"name": "fr-en"}, "cannot load: "),  # no such subfolder
        ({"dataset": "elsewhere/no-such-set"}, "; there is no folder /"),
    ],
)
def test_errors_of_datasets_say_what_there_is(
    tmp_path: Path, update: dict[str, str], words: str
) -> None:
    corpus = parquet_folder(tmp_path).model_copy(update=update)
    message = error_of(corpus, root=tmp_path)
    assert words in message
    assert corpus.dataset in message
    assert len(message) < 500


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_of_csv_is_read_as_it_is(tmp_path: Path, streaming: bool) -> None:
    """What looks like a number, a truth value or nothing in a column stays text."""
    rows = [("007", "1,50"), ("True", "None"), ("1.0", "NA")]
    (tmp_path / "set").mkdir()
    scores = (1, "x", "")  # of several types
    numbered = zip(rows, scores, strict=True)
    lines = ["de,score,en", *(f'{src},{score},"{tgt}"' for (src, tgt), score in numbered)]
    (tmp_path / "set" / "train.csv").write_text("\n".join(lines) + "\n")
    corpus = HubCorpus(dataset="set", split="train", src="de", tgt="en", streaming=streaming)
    assert read(corpus, root=tmp_path)[0] == rows
    (tmp_path / "set" / "train.jsonl").write_text("{}\n")
    assert "plain text; it has csv, json" in error_of(corpus, root=tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("de,en\nA,B\nHallo, Welt,Hello\n", "2 fields in line 3, saw 3; in a CSV file, put"),
        ("de,en\nHallo, Welt,Hello\nA,B\n", "a row has more cells than the header; in a CSV"),
        ("de;en\nA;B\n", "no field de; it has de;en"),
        ("Hallo,Hello\nA,B\n", "no field de; it has Hallo, Hello"),
    ],
)
def test_text_with_a_comma_but_no_quotes_in_a_csv_is_refused(
    tmp_path: Path, streaming: bool, lines: str, words: str
) -> None:
    """Its end is not dropped, nor read as the other side."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text(lines)
    corpus = HubCorpus(dataset="set", split="train", src="de", tgt="en", streaming=streaming)
    assert words in error_of(corpus, root=tmp_path)


def test_a_row_that_is_not_text_and_a_damaged_dataset_are_named(tmp_path: Path) -> None:
    rows = [{"de": "a", "en": "b"}] * 3 + [{"de": "c", "en": None}]
    corpus = jsonl_folder(tmp_path, rows)
    assert "row 4: en is null" in error_of(corpus, root=tmp_path)
    (tmp_path / "lines" / "train.jsonl").write_text('{"de": "a", "en": ', encoding="utf-8")
    assert "dataset lines train: cannot load: " in error_of(corpus, root=tmp_path)
    (tmp_path / "lines" / "train.jsonl").write_text('{"de": "a", "de": "b"}\n', encoding="utf-8")
    assert "was specified twice" in error_of(corpus, root=tmp_path)
    (tmp_path / "lines" / "train.jsonl").write_bytes(b"")
    assert "cannot load: a file is empty" in error_of(corpus, root=tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("line", ['{"de": "DE", "en": "EN"}\n', "de,en\nDE,EN\n"])
def test_the_name_of_a_dataset_folder_is_no_pattern(
    tmp_path: Path, line: str, streaming: bool
) -> None:
    suffix = "jsonl" if line.startswith("{") else "csv"
    for folder, text in (("set1", "wrong"), ("set[1]", "right")):
        (tmp_path / folder).mkdir()
        lines = line.replace("DE", text).replace("EN", text.upper())
        (tmp_path / folder / f"train.{suffix}").write_text(lines)
    corpus = HubCorpus(dataset="set[1]", split="train", src="de", tgt="en", streaming=streaming)
    assert read(corpus, root=tmp_path)[0] == [("right", "RIGHT")]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.csv": b"de,en\na,b\n", "b.csv": b"en,de\nb,a\n"}, "differ in their columns; give all"),
        (
            {"a.jsonl": b'{"de": "a", "en": "b"}\n', "b.jsonl": b'{"de": "a", "fr": "b"}\n'},
            "differ in",
        ),
        ({"a.jsonl": b'{"de": "\xff", "en": "b"}\n'}, "; convert the files to UTF-8"),
        ({"a.csv": b'de,en\n"a,b\n'}, "and end each quote"),
    ],
)
def test_what_is_wrong_with_files_of_a_dataset_is_told(
    tmp_path: Path, files: dict[str, bytes], words: str
) -> None:
    (tmp_path / "set").mkdir()
    for name, content in files.items():
        (tmp_path / "set" / name).write_bytes(content)
    corpus = HubCorpus(dataset="set", split="train", src="de", tgt="en")
    message = error_of(corpus, root=tmp_path)
    assert words in message


def test_a_dataset_of_a_packed_file_that_is_cut_is_named(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    data = gzip.compress(b'{"de": "a", "en": "b"}\n' * 3)
    (tmp_path / "cut" / "train.jsonl.gz").write_bytes(data[:-9])
    corpus = HubCorpus(dataset="cut", split="train", src="de", tgt="en")
    message = error_of(corpus, root=tmp_path)
    assert message.startswith("dataset cut train: cannot load: Compressed file ended before")
    assert ";" not in message  # other advice does not fit


def test_messages_of_the_library_datasets_are_printable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    stream = io.StringIO()
    (handler,) = datasets.logging.get_logger().handlers
    monkeypatch.setattr(handler, "stream", stream)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "\x1b[2Jtrain.jsonl").write_text("no JSON\n")
    corpus = HubCorpus(dataset="set", split="train", src="de", tgt="en")
    assert "cannot load" in error_of(corpus, root=tmp_path)
    assert r"\x1b[2Jtrain.jsonl" in stream.getvalue()


def test_a_cache_of_datasets_that_cannot_be_written_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine where the home directory is read-only."""
    corpus = jsonl_folder(tmp_path, [{"de": de, "en": en} for de, en in PAIRS])

    def message_of(number: int) -> str:
        error = OSError(number, os.strerror(number), "/home/me/.cache")
        monkeypatch.setattr("datasets.load_dataset", Mock(side_effect=error))
        return error_of(corpus, root=tmp_path)

    advice = "'/home/me/.cache'; if that is the cache of datasets, set HF_HOME"
    assert advice in message_of(errno.EROFS)
    assert "HF_HOME" not in message_of(errno.EIO)


def test_samples_are_spaced_and_of_middle_length() -> None:
    assert evenly_spaced(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly_spaced([5, 6], 4) == [5, 6]
    lines = ["", "x" * 100, "ab", "abc", " ", "abcd", "abcde", "y"]
    assert medium_line_indices(lines, 6) == [2, 3, 5]
    assert medium_line_indices([" ", ""], 6) == []
    assert medium_line_indices(["one"], 6) == [0]


@pytest.mark.parametrize(
    ("length", "expected"), [(19, "one, two three four"), (18, "one, two three"), (8, "one, two")]
)
def test_a_text_is_cut_at_a_space_near_the_end(length: int, expected: str) -> None:
    assert shorten_text("one, two three four", length) == expected
    assert shorten_text("ab " + "c" * 40, 20) == "ab " + "c" * 17  # none is near


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("https://example.org/a.parquet", "its card names https://example.org/a.parquet, which"),
        ("/etc/passwd", "its card names /etc/passwd, which is not part of the dataset"),
        ("hf://datasets/x/set/a.py", "its files are not Parquet, JSON"),
    ],
)
def test_a_dataset_of_the_hub_may_name_only_its_own_files(
    monkeypatch: pytest.MonkeyPatch, file: str, reason: str
) -> None:
    config = SimpleNamespace(data_files={"train": ["hf://datasets/x/set/a.parquet", file]})
    builder = SimpleNamespace(config=config)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: builder)
    monkeypatch.setattr("datasets.load_dataset", None)
    corpus = HubCorpus(dataset="x/set", split="train", src="de", tgt="en")
    with pytest.raises(UserError, match=f"^dataset x/set: {reason}"):
        list(read_pairs(corpus, Reading()))


@pytest.mark.parametrize("name", ["wmt14", "x/set", "x/set-1.0"])
@pytest.mark.parametrize(
    ("reader", "files", "options"),
    [
        ("parquet", {"train": ["hf://datasets/x/set/a.parquet"]}, {}),
        ("cache", None, {}),
        (
            "csv",
            {"train": ["hf://datasets/x/set/a.csv"]},
            {
                "converters": {"de": str, "en": str},
                "keep_default_na": False,
                "usecols": ["de", "en"],
            },
        ),
    ],
)
def test_a_dataset_of_the_hub_is_read_by_the_reader_of_its_files(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reader: str,
    files: dict[str, list[str]] | None,
    options: dict[str, Any],
) -> None:
    from datasets import Dataset

    builder = type("Builder", (), {"__module__": f"datasets.packaged_modules.{reader}.{reader}"})()
    builder.config = SimpleNamespace(data_files=files)
    columns = {
        side: list(texts)
        for side, texts in zip(("de", "en"), zip(*PAIRS, strict=True), strict=True)
    }
    loaded = []

    def load(*arguments: Any, **given: Any) -> Dataset:
        loaded.append((arguments, given))
        return Dataset.from_dict(columns)

    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: builder)
    monkeypatch.setattr("datasets.load_dataset", load)
    corpus = HubCorpus(dataset=name, name="de-en", split="dev", src="de", tgt="en")
    assert read(corpus, keep_blank=True)[0] == PAIRS
    assert loaded == [((name, "de-en"), {"split": "dev", "streaming": False, **options})]
