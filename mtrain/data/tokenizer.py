"""Train and use SentencePiece vocabularies; ids of the special pieces."""

import hashlib
import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO

import sentencepiece

from mtrain.config.corpora import MAX_PIECE_LENGTH
from mtrain.config.schema import TokenizerConfig
from mtrain.corpus.lines import MAX_TEXT_LENGTH, decode_lines, shorten_text, strip_line_ends
from mtrain.corpus.parquet import read_number
from mtrain.runs import layout, manifest, reader
from mtrain.runtime.errors import UserError, reason_not_opened, thread_limit_error
from mtrain.runtime.log import warn_of_counts

# A vocabulary is trained on a sample of at most this many sentences, which bounds memory.
MAX_SENTENCES = 1_000_000
# Training a vocabulary skips longer lines; SentencePiece's own limit is 4,192.
MAX_SENTENCE_BYTES = 1 << 20
MAX_MODEL_BYTES = 64 << 20  # of a model's file; a million pieces take half of that

# Finds the smallest vocabulary size for a text in SentencePiece's error message.
_TOO_SMALL = re.compile(r"smaller than required_chars\. [0-9]+ vs ([0-9]+)")

# Field numbers of SentencePiece's model and wire types, in the encoding of Protocol Buffers.
_PIECES, _TRAINER = 1, 2
_NORMALIZERS = (3, 5)
_RULES, _CHARACTER_MAP = 1, 2
_SPLIT_DIGITS = 25  # of the trainer's settings
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_USER_DEFINED = b"\x18\x04"  # a piece's message ends with its type, unless it is normal
# Appended to a model, this stops it from adding a space before a text and from removing spaces.
_KEEP_SPACES = b"\x1a\x04\x18\x00\x20\x00"


class Tokenizer:
    """A SentencePiece model with the ids of `pad`, `unk`, `bos` and `eos`. Special pieces that a
    model trained elsewhere lacks get ids after its last piece.
    """

    def __init__(self, proto: bytes, name: str = "tokenizer.model") -> None:
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.load_from_serialized_proto(proto)
            numbers = list(range(self.processor.get_piece_size()))
            pieces: list[str] = self.processor.id_to_piece(numbers)
            unknown: str = self.processor.decode([self.processor.unk_id()])
            fields = _fields(proto)
            longest_replacement = _longest_replacement(fields)
            self.splits_digits = _splits_digits(fields)
        except (RuntimeError, ValueError, LookupError):  # ValueError for pieces that are not UTF-8
            raise UserError(f"{name}: not a SentencePiece model; name another file") from None
        if max(longest_replacement, len(unknown), *map(len, pieces)) > MAX_PIECE_LENGTH:
            raise UserError(
                f"{name}: not a model to use: a piece, or the normalization of a character, is "
                f"longer than {MAX_PIECE_LENGTH:,} characters"
            )
        self.proto, self.model_pieces = proto, pieces
        self.longest_piece = max(map(len, pieces), default=1)
        self.vocab_size = len(pieces)
        self.unk_id: int = self.processor.unk_id()
        self.pad_id = self._special(self.processor.pad_id())
        self.bos_id = self._special(self.processor.bos_id())
        self.eos_id = self._special(self.processor.eos_id())

    def _special(self, given: int) -> int:
        if given >= 0:
            return given
        self.vocab_size += 1
        return self.vocab_size - 1

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a model file; raises `UserError`."""
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a file; name one, such as RUN/{layout.TOKENIZER}")
        try:
            with path.open("rb") as file:
                proto = file.read(MAX_MODEL_BYTES + 1)
        except OSError as error:
            reason = reason_not_opened(path, error)
            raise UserError(f"{path}: cannot read the tokenizer: {reason}") from None
        if len(proto) > MAX_MODEL_BYTES:
            raise UserError(f"{path}: not a SentencePiece model: over 64 MiB; name another file")
        return cls(proto, str(path))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model."""
        return hashlib.sha256(self.proto).hexdigest()

    @property
    def vocabulary(self) -> str:
        """Pieces and scores, one per line, in the format of SentencePiece's .vocab files."""
        score = self.processor.get_score
        return "".join(f"{piece}\t{score(i):g}\n" for i, piece in enumerate(self.model_pieces))

    @property
    def all_pieces(self) -> list[str]:
        """The piece of each id, all different; special ids that the model lacks get names here."""
        pieces = self.model_pieces.copy()
        taken = set(self.model_pieces)
        names = {self.pad_id: "<pad>", self.bos_id: "<s>", self.eos_id: "</s>"}
        for number in range(len(pieces), self.vocab_size):
            name = names[number]
            while name in taken:
                name = f"<{name}>"
            pieces.append(name)
        return pieces

    @property
    def plain_pieces(self) -> dict[int, str]:
        """Single characters and the results of merges, by id, without special pieces, bytes and
        user symbols. These have lower ids than the first merge, but the same score of 0.
        """
        pieces = self.model_pieces
        sp = self.processor
        special = (sp.is_control, sp.is_unknown, sp.is_byte, sp.is_unused)
        numbers = [i for i in range(len(pieces)) if not any(test(i) for test in special)]
        first_merge = max((i for i in numbers if sp.get_score(i) == 0), default=0)
        return {i: pieces[i] for i in numbers if sp.get_score(i) != 0 or i == first_merge}

    @cached_property
    def has_byte_fallback(self) -> bool:
        """Whether there are pieces for bytes, so that no text has an unknown piece."""
        return any(self.processor.is_byte(list(range(len(self.model_pieces)))))

    @cached_property
    def user_symbols(self) -> set[str]:
        """User-defined pieces: their text is always encoded to this one piece."""
        pieces = zip(self.model_pieces, _fields(self.proto)[_PIECES], strict=True)
        return {piece for piece, message in pieces if message.endswith(_USER_DEFINED)}

    def tag_ids(self, tag: str | None) -> list[int]:
        """Return the ids to put before a source: the id of the tag, if there is one."""
        return [] if tag is None else [self.processor.piece_to_id(tag)]

    @property
    def is_bpe(self) -> bool:
        """Whether the pieces' scores are ranks of merges rather than log-probabilities."""
        scores = [self.processor.get_score(number) for number in self.plain_pieces]
        return len(set(scores)) == len(scores) and all(score.is_integer() for score in scores)

    @property
    def normalization(self) -> str:
        """Name of the normalization rules for text that is encoded, such as nfkc."""
        normalizer = b"".join(_fields(self.proto)[_NORMALIZERS[0]])
        return b"".join(_fields(normalizer)[_RULES]).decode("utf-8", "replace")

    @property
    def settings(self) -> dict[str, object]:
        """The values of the config's settings that describe this vocabulary."""
        return {
            "vocab_size": self.vocab_size,
            "model_type": "bpe" if self.is_bpe else "unigram",
            "normalization": self.normalization,
            "byte_fallback": self.has_byte_fallback,
            "split_digits": self.splits_digits,
        }

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Encode texts, without bos or eos."""
        if len(texts) < 100:  # for a list, SentencePiece starts a thread, which takes over 0.1 ms
            return [self.processor.encode(text) for text in texts]
        ids: list[list[int]] = self.processor.encode(texts, num_threads=1)
        return ids

    def map_vocabulary(self, other: "Tokenizer") -> list[list[int]]:
        """Map each id of another vocabulary to ids of this one: the id of the same piece, else the
        ids that its text is encoded to, else `unk`.
        """
        own_ids = {piece: number for number, piece in enumerate(self.all_pieces)}
        encode = Tokenizer(self.proto + _KEEP_SPACES).processor.encode
        sp = other.processor
        mapped: list[list[int]] = []
        for number, piece in enumerate(other.model_pieces):
            if piece in own_ids:
                mapped.append([own_ids[piece]])
            elif sp.is_control(number) or sp.is_byte(number) or sp.is_unused(number):
                mapped.append([self.unk_id])  # it has no text
            else:
                mapped.append(encode(piece) or [self.unk_id])
        mapped += [[self.unk_id] for _ in range(other.vocab_size - len(mapped))]
        for name in ("pad_id", "unk_id", "bos_id", "eos_id"):
            mapped[getattr(other, name)] = [getattr(self, name)]
        return mapped

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Decode ids to texts, without special ids."""
        special = {self.pad_id, self.bos_id, self.eos_id}
        plain = ([token for token in row if token not in special] for row in ids)
        return [self.processor.decode(row) for row in plain]


def _longest_replacement(fields: defaultdict[int, list[bytes]]) -> int:
    """Return the length in bytes of the longest text that replaces a character in normalization,
    given the fields of a model; raises `LookupError`, `RecursionError` or `ValueError` if they are
    malformed.
    """
    longest = 0
    for normalizer in chain.from_iterable(fields[number] for number in _NORMALIZERS):
        for table in _fields(normalizer)[_CHARACTER_MAP]:
            if len(table) >= 4:  # size of a trie, the trie, the texts
                texts = table[4 + int.from_bytes(table[:4], "little") :]
                texts.decode("utf-8")
                longest = max(longest, *map(len, texts.split(b"\0")))
    return longest


def _splits_digits(fields: defaultdict[int, list[bytes]]) -> bool:
    """Whether a model was trained with every digit as a piece of its own; raises as
    `_longest_replacement` does.
    """
    trainer = b"".join(fields[_TRAINER])
    return any(value == 1 for number, value in _all_fields(trainer) if number == _SPLIT_DIGITS)


def _fields(message: bytes) -> defaultdict[int, list[bytes]]:
    """Return the values of the fields of a message that hold bytes, by number."""
    values = defaultdict[int, list[bytes]](list)
    for number, value in _all_fields(message):
        if isinstance(value, bytes):
            values[number].append(value)
    return values


def _all_fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field of a message, except those of a fixed size."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        number, wire_type = divmod(read_number(stream), 8)
        if wire_type == _BYTES:
            yield number, stream.read(min(read_number(stream), len(message)))
        elif wire_type == _VARINT:
            yield number, read_number(stream)
        else:
            stream.seek(_FIXED[wire_type], io.SEEK_CUR)


def train_tokenizer(sentences: Callable[[], Iterable[str]], settings: TokenizerConfig) -> bytes:
    """Train a vocabulary on `sentences()` and return the model; raises `UserError` if the size does
    not suit the text.

    Unlike SentencePiece, by default this neither squeezes spaces nor turns Chinese full-width
    punctuation into ASCII.
    """
    try:
        return _train(sentences(), settings, exact=True)
    except RuntimeError:
        pass  # the size is too large or too small: training without a fixed size shows which
    vocab_size = settings.vocab_size
    try:
        largest = Tokenizer(_train(sentences(), settings, exact=False)).vocab_size
    except RuntimeError as error:
        if not any(sentence.strip() for sentence in sentences()):
            raise UserError(
                "data.train: no text to train the vocabulary on: all pairs are blank on a side, "
                "or left out by filter or data.invalid_utf8"
            ) from None
        smallest = _TOO_SMALL.search(str(error))
        advice = f"use {smallest[1]} or more" if smallest else "raise it"
        raise UserError(
            f"tokenizer.vocab_size: {vocab_size} is too small: it must hold the special pieces, "
            "256 bytes (with byte_fallback) and the characters of the text; "
            f"{advice}, or lower tokenizer.character_coverage"
        ) from None
    raise UserError(
        f"tokenizer.vocab_size: {vocab_size} is too large for this text; "
        f"the largest that works is {largest}"
    )


def _train(sentences: Iterable[str], settings: TokenizerConfig, *, exact: bool) -> bytes:
    """Run SentencePiece's trainer; unless `exact`, a small text may give fewer pieces."""
    model = io.BytesIO()
    failure: BaseException | None = None

    def read() -> Iterator[str]:
        nonlocal failure
        try:
            yield from sentences
        finally:  # SentencePiece hides the error, even KeyboardInterrupt, behind one of its own
            failure = sys.exception()

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read(),
            model_writer=model,
            vocab_size=settings.vocab_size,
            hard_vocab_limit=exact,
            model_type=settings.model_type,
            normalization_rule_name=settings.normalization,
            remove_extra_whitespaces=settings.normalization != "identity",
            character_coverage=settings.character_coverage,
            byte_fallback=settings.byte_fallback,
            split_digits=settings.split_digits,
            user_defined_symbols=settings.user_symbols,
            input_sentence_size=MAX_SENTENCES,
            max_sentence_length=MAX_SENTENCE_BYTES,
            shuffle_input_sentence=True,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            num_threads=1,  # unigram's sums depend on the number of threads
            minloglevel=2,
        )
    except RuntimeError as error:
        if failure is not None and not isinstance(failure, GeneratorExit):
            raise failure from None
        raise thread_limit_error(error) or error from None
    return model.getvalue()


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a SentencePiece model from a file, or from a run or checkpoint directory."""
    if not path.is_dir():
        return Tokenizer.load(path)
    is_sealed = (path / manifest.NAME).exists() or layout.complete_checkpoints(
        path / layout.CHECKPOINTS
    )
    if is_sealed or not (path / layout.TOKENIZER).exists():  # not a run without checkpoints
        path = reader.resolve(path)
        with reader.naming_intact(path):
            manifest.verify(path, layout.TOKENIZER)
    return Tokenizer.load(path / layout.TOKENIZER)


def convert_stream(
    tokenizer: Tokenizer, source: Iterable[bytes], sink: IO[bytes], *, to_pieces: bool
) -> None:
    """Convert lines of text to lines of pieces, or the other way round unless `to_pieces`."""
    counts: Counter[str] = Counter()
    for text in decode_lines(strip_line_ends(source, counts), counts):
        if len(text) > MAX_TEXT_LENGTH:
            counts[f"lines longer than {MAX_TEXT_LENGTH:,} characters, cut there"] += 1
        line = shorten_text(text, MAX_TEXT_LENGTH)
        if to_pieces:
            line = " ".join(tokenizer.processor.encode(line, out_type=str))
        else:
            pieces = line.split(" ") if line else []
            line = tokenizer.processor.decode_pieces(pieces)
        sink.write(line.replace("\n", " ").encode("utf-8") + b"\n")
    warn_of_counts(counts)
