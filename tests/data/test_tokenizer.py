"""SentencePiece vocabularies: nothing is lost, sizes are met or refused, ids stay in place."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from conftest import made_up_pairs, make_tokenizer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mtrain.config.schema import TokenizerConfig
from mtrain.data.tokenizer import Tokenizer, convert_stream, train_tokenizer
from mtrain.runtime.errors import UserError

LINES = [line for pair in made_up_pairs(60, 8) for line in pair]
MODEL_TYPES = pytest.mark.parametrize("model_type", ["bpe", "unigram"])


def train(vocab_size: int = 300, lines: list[str] = LINES, **options: object) -> Tokenizer:
    return make_tokenizer(lines, vocab_size=vocab_size, **options)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(model_type=request.param)


# --- Nothing is lost -------------------------------------------------------------------------

ODD = "|     |  bavo   celu\t\t|\u00a0|ﬁ ½ ｱ Ａｂｃ，。「」|👩‍👩‍👧‍👦 🇳🇱|é e\u0301|a\nb|<0x0A>|"
ODD += "\r \x0b \u2028|</s> <pad> <unk> <s>bavo</s>|\ufeffbavo \ufffd|bavo\x00\x01\x7f\x85|"
ODD += "漢字かな 한국어 עברית العربية ไทย|\U0010ffff \ue000|" + "bavo" * 300
TEXTS = st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
@example(texts=ODD.split("|"))
def test_any_text_comes_back_as_it_was(any_tokenizer: Tokenizer, texts: list[str]) -> None:
    found = any_tokenizer.encode(texts)
    assert any_tokenizer.decode(found) == texts
    assert found == [any_tokenizer.encode([text])[0] for text in texts]
    assert not {0, 1, 2, 3} & {token for ids in found for token in ids}  # the special ones


def test_the_one_exception_is_the_sign_that_stands_for_a_space(any_tokenizer: Tokenizer) -> None:
    assert any_tokenizer.decode(any_tokenizer.encode(["bavo\u2581celu"])) == ["bavo celu"]


def test_normalization_is_done_where_it_is_asked_for() -> None:
    found = train(normalization="nfkc")
    assert found.decode(found.encode(["Ａｂｃ，ﬁ  ne"])) == ["Abc,fi ne"]


def test_user_symbols_are_known_among_the_pieces(any_tokenizer: Tokenizer) -> None:
    found = train(user_symbols=["<2bb>", ">>b<<"], model_type="unigram")
    assert (found.user_symbols, any_tokenizer.user_symbols) == ({"<2bb>", ">>b<<"}, set())
    assert found.model_pieces[found.tag_ids(">>b<<")[0]] == ">>b<<"


def test_user_symbols_stay_whole_and_without_bytes_other_characters_are_unknown() -> None:
    found = train(user_symbols=["<2de>", "@@name@@"], vocab_size=60, byte_fallback=False)
    (ids,) = found.encode(["<2de> bavo @@name@@celu"])
    assert {"<2de>", "@@name@@"} <= {found.processor.id_to_piece(i) for i in ids}
    assert found.decode([ids]) == ["<2de> bavo @@name@@celu"]
    assert found.unk_id in found.encode(["bavo 漢"])[0]
    assert not found.has_byte_fallback
    assert train(vocab_size=320).has_byte_fallback


@MODEL_TYPES
def test_digits_are_split_where_it_is_asked_for(model_type: str) -> None:
    lines = [f"{line} {number} celu{number % 100}" for number, line in enumerate(LINES, 1900)]
    joined, split = (
        train(304, lines, model_type=model_type, split_digits=each) for each in (False, True)
    )
    assert any(re.search("[0-9]{2}", piece) for piece in joined.plain_pieces.values())
    pieces = split.processor.encode("bavo 1984x 7", out_type=str)
    assert [piece for piece in pieces if re.search("[0-9]", piece)] == [*"19847"]
    assert split.decode(split.encode(["bavo 1984x 7"])) == ["bavo 1984x 7"]


def test_long_lines_are_learned_from() -> None:
    """By default, SentencePiece leaves out lines of more than 4,192 bytes."""
    found = train(lines=[*LINES, "bavo " * 1000 + "ω"], character_coverage=1.0)
    assert "ω" in found.model_pieces


def test_a_newline_among_pieces_makes_no_line(tokenizer: Tokenizer) -> None:
    sink = io.BytesIO()
    convert_stream(tokenizer, [b"<0x0A>\n", b"\n", b"<0x0A> <0x0A>"], sink, to_pieces=False)
    assert sink.getvalue() == b" \n\n  \n"


# --- Ids and sizes ---------------------------------------------------------------------------


def test_the_vocabulary_lists_every_piece_once(tokenizer: Tokenizer) -> None:
    rows = [row.split("\t") for row in tokenizer.vocabulary.removesuffix("\n").split("\n")]
    assert [piece for piece, _ in rows][:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len({piece for piece, _ in rows}) == len(rows) == tokenizer.vocab_size == 320
    assert tokenizer.decode([[2, *tokenizer.encode(["bavo"])[0], 3, 0, 0]]) == ["bavo"]


@MODEL_TYPES
def test_a_vocabulary_too_large_names_the_largest_that_works(model_type: str) -> None:
    with pytest.raises(UserError, match=r"vocab_size: 5000 .*the largest that works is \d+") as e:
        train(5000, model_type=model_type)
    largest = int(re.findall(r"\d+", str(e.value))[-1])
    assert train(largest, model_type=model_type).vocab_size == largest


@MODEL_TYPES
def test_a_vocabulary_too_small_names_the_least_that_works(model_type: str) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size: 1 is too small: .*; raise it, or"):
        train(1, model_type=model_type)
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size: 262 is too small") as e:
        train(262, model_type=model_type)
    least = int(re.findall(r"use (\d+) or more", str(e.value))[0])
    with pytest.raises(UserError, match="is too small"):
        train(least - 1, model_type=model_type)
    assert train(least, model_type=model_type).vocab_size == least
    assert "src/" not in str(e.value)  # for people, not for SentencePiece's developers


def test_a_lack_of_threads_is_not_taken_for_a_wrong_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError(os.strerror(errno.EAGAIN))

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", fail)
    with pytest.raises(UserError, match="cannot start another thread"):
        train(300)


@MODEL_TYPES
def test_training_again_gives_the_same_bytes(model_type: str) -> None:
    first, second = (train(model_type=model_type) for _ in range(2))
    assert first.proto == second.proto
    assert first.fingerprint == second.fingerprint == hashlib.sha256(first.proto).hexdigest()
    assert first.fingerprint != train(299, model_type=model_type).fingerprint


# --- Pieces of another vocabulary ------------------------------------------------------------


def test_a_vocabulary_spells_the_pieces_of_another(any_tokenizer: Tokenizer) -> None:
    lines = [*LINES, *(f"Kernel {line} drivers" for line in LINES)]
    new = train(320, lines, user_symbols=["<2de>", "@bavo@"])
    spelled = any_tokenizer.map_vocabulary(new)
    own = any_tokenizer.all_pieces
    assert len(spelled) == new.vocab_size
    for piece, ids in zip(new.all_pieces, spelled, strict=True):
        if piece in own:
            assert ids == [own.index(piece)]
        else:
            assert any_tokenizer.unk_id not in ids
            text = any_tokenizer.processor.decode([own.index("\u2581"), *ids])
            assert text[-len(piece) :].replace(" ", "\u2581") in (piece, piece[1:])
    word = new.all_pieces.index("\u2581Kernel")
    assert spelled[word][0] == any_tokenizer.encode(["Kernel"])[0][0]  # with its space
    assert len(spelled[word]) > 1


def test_pieces_without_text_map_to_special_ids() -> None:
    old, new = foreign(pad_id=3, bos_id=-1), train()
    spelled = old.map_vocabulary(new)
    special = ("pad_id", "unk_id", "bos_id", "eos_id")
    for name in special:
        assert spelled[getattr(new, name)] == [getattr(old, name)]
    assert spelled[new.all_pieces.index("<0x0A>")] == [old.unk_id]
    assert max(map(max, spelled)) < old.vocab_size
    back = new.map_vocabulary(old)
    assert len(back) == old.vocab_size
    assert [back[getattr(old, name)] for name in special] == [
        [getattr(new, name)] for name in special
    ]


# --- Models from elsewhere -------------------------------------------------------------------


def foreign(**options: object) -> Tokenizer:
    """Train as SentencePiece does by itself, with other special pieces."""
    model, options = io.BytesIO(), {"vocab_size": 50, "minloglevel": 2, **options}
    train = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(LINES), model_writer=model, **options)
    return Tokenizer(model.getvalue())


@pytest.mark.parametrize(
    ("options", "expected", "size"),
    [
        ({}, (50, 0, 1, 2), 51),
        ({"bos_id": -1, "eos_id": -1}, (50, 0, 51, 52), 53),
        ({"pad_id": 3, "bos_id": -1}, (3, 0, 50, 2), 51),
    ],
)
def test_a_model_without_some_special_pieces_is_given_their_ids(
    options: dict[str, int], expected: tuple[int, ...], size: int
) -> None:
    found = foreign(**options)
    assert (found.pad_id, found.unk_id, found.bos_id, found.eos_id) == expected
    assert found.vocab_size == size
    (ids,) = found.encode(["bavo celu"])
    assert found.decode([[found.bos_id, *ids, found.eos_id, found.pad_id]]) == ["bavo celu"]


@pytest.mark.parametrize(
    "content", [b"", b"not a model", b"\x00" * 100, None], ids=["empty", "text", "zeros", "missing"]
)
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    message = "cannot read the tokenizer: No such file"
    if content is not None:
        (tmp_path / "odd.model").write_bytes(content)
        message = "not a SentencePiece model"
    with pytest.raises(UserError, match=rf"odd\.model: {message}"):
        Tokenizer.load(tmp_path / "odd.model")


def test_scores_that_are_no_numbers_are_none_of_merges(tokenizer: Tokenizer) -> None:
    processor = tokenizer.processor
    last = struct.pack("<f", processor.get_score(processor.get_piece_size() - 1))
    assert tokenizer.is_bpe
    for score in (math.nan, -math.inf):
        changed = Tokenizer(tokenizer.proto.replace(last, struct.pack("<f", score)))
        assert not changed.is_bpe


def test_a_normalization_to_bytes_that_are_no_text_is_refused() -> None:
    proto = train(normalization="nfkc").proto
    text = b"\0hPa\0"  # of a character for hectopascals
    assert text in proto
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Tokenizer(proto.replace(text, b"\0h\xffa\0"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("mine"), ValueError("odd")])
def test_an_error_of_the_reader_ends_the_training(error: BaseException) -> None:
    """SentencePiece would make a failure of its own of it."""

    def sentences() -> Iterator[str]:
        yield "a b c"
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        train_tokenizer(sentences, TokenizerConfig(vocab_size=300))
