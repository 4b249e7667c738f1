"""Streams of lines through a model or a vocabulary: one line out for each line in, in order, in
bounded memory.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from mtrain import checkpoint, manifest
from mtrain.aligned import decode_lines, warn_of
from mtrain.distributed import Ranks
from mtrain.errors import UserError
from mtrain.log import Places, progress_bar
from mtrain.text import read_file, read_lines
from mtrain.tokenizer import Tokenizer
from mtrain.translate import Translation, Translator


def translate_stream(
    translator: Translator,
    source: Iterable[bytes],
    sink: IO[bytes],
    *,
    n_best: int | None = None,
    scores: bool = False,
    line_buffered: bool = False,
    ranks: Ranks | None = None,
) -> None:
    """Translate every line of `source` to `sink`, `decode.window` lines at a time or one by one;
    of several ranks, the first reads and writes for all.
    """
    ranks = ranks or Ranks()
    counts: Counter[str] = Counter()
    texts = decode_lines(read_lines(source, counts), counts)
    window = 1 if line_buffered else translator.decode.window
    done, cut = 0, Places()

    def read() -> bytes:
        return json.dumps(list(islice(texts, window))).encode()

    with progress_bar(None, "line", "translating") as bar:
        while lines := json.loads(ranks.share(read)):
            results, places = translator.translate(lines, bar.update)
            cut.add(done + place + 1 for place in places)
            for index, hypotheses in enumerate(results if ranks.is_first else [], done):
                sink.writelines(_format(index, hypotheses, n_best, scores))
            if line_buffered:
                sink.flush()
            done += len(lines)
    warn_of(counts)
    cut.warn(translator.max_source_length)


def _format(
    index: int, hypotheses: list[Translation], n_best: int | None, scores: bool
) -> Iterator[bytes]:
    for hypothesis in hypotheses[: n_best or 1]:
        fields = [hypothesis.text]
        if n_best is not None or scores:
            fields.insert(0, f"{hypothesis.score:.6f}")
        if n_best is not None:
            fields.insert(0, str(index))
        yield "\t".join(fields).encode("utf-8") + b"\n"


def score_files(translator: Translator, source: Path, target: Path, sink: IO[bytes]) -> None:
    """Write the log-probability of each target line given its source line."""
    counts: Counter[str] = Counter()
    sides = [list(decode_lines(read_file(path, counts), counts)) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"{source} has {len(sides[0])} lines but {target} has {len(sides[1])}: "
            "they must match line for line"
        )
    window, cut = translator.decode.window, Places()
    for start in range(0, len(sides[0]), window):
        src, tgt = (side[start : start + window] for side in sides)
        values, places = translator.score(src, tgt, start + 1)
        cut.add(start + place + 1 for place in places)
        sink.writelines(f"{value:.6f}\n".encode() for value in values)
    warn_of(counts)
    cut.warn(translator.max_source_length)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a SentencePiece model file, or the one of a run or checkpoint directory."""
    if not path.is_dir():
        return Tokenizer.load(path)
    sealed = (path / manifest.NAME).exists() or checkpoint.steps(path / "checkpoints")
    if not sealed and (path / checkpoint.TOKENIZER).exists():
        return Tokenizer.load(path / checkpoint.TOKENIZER)  # of a run that has saved nothing yet
    directory = checkpoint.resolve(path)
    manifest.verify(directory, checkpoint.TOKENIZER)
    return Tokenizer.load(directory / checkpoint.TOKENIZER)


def encode_stream(tokenizer: Tokenizer, source: Iterable[bytes], sink: IO[bytes]) -> None:
    """Write the pieces of each line."""
    counts: Counter[str] = Counter()
    for text in decode_lines(read_lines(source, counts), counts):
        sink.write(" ".join(tokenizer.pieces.encode(text, out_type=str)).encode("utf-8") + b"\n")
    warn_of(counts)


def decode_stream(tokenizer: Tokenizer, source: Iterable[bytes], sink: IO[bytes]) -> None:
    """Write the text of each line of pieces."""
    counts: Counter[str] = Counter()
    for text in decode_lines(read_lines(source, counts), counts):
        line: str = tokenizer.pieces.decode_pieces(text.split(" ") if text else [])
        sink.write(line.replace("\n", " ").encode("utf-8") + b"\n")
    warn_of(counts)
