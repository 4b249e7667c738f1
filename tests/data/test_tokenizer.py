"""SentencePiece vocabularies: nothing is lost, sizes are met or refused, ids stay in place."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from conftest import made_up_pairs
from hypothesis import given
from hypothesis import strategies as st

from mtrain.data.tokenizer import Tokenizer, train_tokenizer
from mtrain.runtime.errors import UserError

LINES = [line for pair in made_up_pairs(60, 8) for line in pair]
MODEL_TYPES = pytest.mark.parametrize("model_type", ["bpe", "unigram"])


def train(vocab_size: int = 300, lines: list[str] = LINES, **options: object) -> Tokenizer:
    return Tokenizer(train_tokenizer(lambda: lines, vocab_size=vocab_size, **options))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(model_type=request.param)


# --- Nothing is lost -------------------------------------------------------------------------

ODD = [
    "",
    " ",
    "     ",
    "  bavo   celu    ",
    "\tbavo\t\tcelu\t",
    "bavo\u00a0celu\u2009dimar\u3000fosi\u200b",
    "\u00a0",
    "！，。？：（）「」『』《》％～",
    "ﬁne ½ № ① ｱｲｳ Ａｂｃ",
    "🙂 👩‍👩‍👧‍👦 🇳🇱 ✌🏽",
    "é e\u0301 ü u\u0308",
    "\x00",
    "bavo\x00celu\x00",
    "\x01\x02\x07\x08\x1b\x7f\x85",
    "\r \x0b \x0c \u2028 \u2029",
    "a\nb",
    "<s>",
    "</s> <pad> <unk> <s>bavo</s>",
    "<0x41><0x0A> <0xFF>",
    "\ufeffbavo \ufffd",
    "漢字かな交じり文 한국어 עברית العربية ไทย",
    "\U0010ffff \ue000",
    "bavo" * 300,
]


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_text_comes_back_as_it_was(any_tokenizer: Tokenizer, text: str) -> None:
    (ids,) = any_tokenizer.encode([text])
    assert any_tokenizer.decode([ids]) == [text]
    specials = {any_tokenizer.pad_id, any_tokenizer.bos_id, any_tokenizer.eos_id}
    assert not specials & set(ids)
    assert any_tokenizer.unk_id not in ids


@given(text=st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"])))
def test_any_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


def test_the_one_exception_is_the_sign_that_stands_for_a_space(any_tokenizer: Tokenizer) -> None:
    assert any_tokenizer.decode(any_tokenizer.encode(["bavo\u2581celu"])) == ["bavo celu"]


def test_texts_are_encoded_one_by_one(tokenizer: Tokenizer) -> None:
    together = tokenizer.encode(ODD)
    assert together == [tokenizer.encode([text])[0] for text in ODD]
    assert tokenizer.decode(together) == ODD


def test_normalization_is_done_where_it_is_asked_for() -> None:
    found = train(normalization="nfkc")
    assert found.decode(found.encode(["Ａｂｃ，ﬁ  ne"])) == ["Abc,fi ne"]


def test_user_symbols_stay_whole_and_without_bytes_other_characters_are_unknown() -> None:
    found = train(user_symbols=("<2de>", "@@name@@"), vocab_size=60, byte_fallback=False)
    (ids,) = found.encode(["<2de> bavo @@name@@celu"])
    assert {"<2de>", "@@name@@"} <= {found.pieces.id_to_piece(i) for i in ids}
    assert found.decode([ids]) == ["<2de> bavo @@name@@celu"]
    assert found.unk_id in found.encode(["bavo 漢"])[0]


# --- Ids and sizes ---------------------------------------------------------------------------


def test_special_ids_and_size(any_tokenizer: Tokenizer) -> None:
    found = any_tokenizer
    assert (found.pad_id, found.unk_id, found.bos_id, found.eos_id) == (0, 1, 2, 3)
    assert found.vocab_size == 300
    assert found.decode([[2, *found.encode(["bavo"])[0], 3, 0, 0]]) == ["bavo"]


def test_the_vocabulary_lists_every_piece_once(tokenizer: Tokenizer) -> None:
    rows = [row.split("\t") for row in tokenizer.vocabulary.removesuffix("\n").split("\n")]
    assert [piece for piece, _ in rows][:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len({piece for piece, _ in rows}) == len(rows) == tokenizer.vocab_size


@MODEL_TYPES
def test_a_vocabulary_too_large_names_the_largest_that_works(model_type: str) -> None:
    with pytest.raises(UserError, match=r"vocab_size: 5000 .*the largest that works is \d+") as e:
        train(5000, model_type=model_type)
    largest = int(re.findall(r"\d+", str(e.value))[-1])
    assert train(largest, model_type=model_type).vocab_size == largest
    with pytest.raises(UserError, match=f"the largest that works is {largest}$"):
        train(largest + 1, model_type=model_type)


@MODEL_TYPES
@pytest.mark.parametrize("vocab_size", [1, 100, 262])
def test_a_vocabulary_too_small_is_refused(model_type: str, vocab_size: int) -> None:
    with pytest.raises(UserError, match=f"tokenizer.vocab_size: {vocab_size} ") as e:
        train(vocab_size, model_type=model_type)
    assert "too large" not in str(e.value)
    assert "src/" not in str(e.value)  # for people, not for SentencePiece's developers


@MODEL_TYPES
def test_training_again_gives_the_same_bytes(model_type: str) -> None:
    first, second = (train(model_type=model_type) for _ in range(2))
    assert first.proto == second.proto
    assert first.fingerprint == second.fingerprint == hashlib.sha256(first.proto).hexdigest()
    assert first.fingerprint != train(299, model_type=model_type).fingerprint


# --- Models from elsewhere -------------------------------------------------------------------


def foreign(**options: object) -> Tokenizer:
    """Train as SentencePiece does by itself, with other special pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=50,
        minloglevel=2,
        **options,
    )
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
    ("content", "message"),
    [
        (b"", "not a SentencePiece model"),
        (b"not a model", "not a SentencePiece model"),
        (b"\x00" * 100, "not a SentencePiece model"),
        (None, "cannot read the tokenizer: No such file"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_name(
    tmp_path: Path, tokenizer: Tokenizer, content: bytes | None, message: str
) -> None:
    path = tmp_path / "odd.model"
    path.write_bytes(tokenizer.proto)
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"odd\.model: {message}"):
        Tokenizer.load(path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("mine"), ValueError("odd")])
def test_what_ends_the_reader_ends_the_training(error: BaseException) -> None:
    """SentencePiece would make a failure of its own of it."""

    def sentences() -> Iterator[str]:
        yield "a b c"
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        train_tokenizer(sentences, vocab_size=300)
