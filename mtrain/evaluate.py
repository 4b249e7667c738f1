"""`mtrain eval`: a model's or a file's translations against references."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrain import metrics
from mtrain.errors import UserError
from mtrain.lines import decode_lines, warn_of
from mtrain.log import Places, logger, progress_bar
from mtrain.metrics import Score, check_tokenizer, tokenizer_for
from mtrain.text import read_file, read_text_file
from mtrain.translate import Translator


@dataclass(frozen=True)
class Evaluation:
    """What `mtrain eval` prints."""

    lines: int
    bleu: Score
    chrf: Score
    ter: Score

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {
            "lines": self.lines,
            "bleu": self.bleu.as_json(),
            "chrf": self.chrf.as_json(),
            "ter": self.ter.as_json(),
        }

    def __str__(self) -> str:
        return "\n".join(map(str, (self.bleu, self.chrf, self.ter)))


def read_references(paths: list[Path]) -> list[list[str]]:
    """Read reference files of one length; raises `UserError`."""
    first = read_aligned(paths[0], [])
    if not first:
        raise UserError(f"{paths[0]}: holds no lines")
    return [first] + [read_aligned(path, [first]) for path in paths[1:]]


def read_aligned(path: Path, references: list[list[str]]) -> list[str]:
    """Read a file that must match the references line for line; raises `UserError` with both
    counts.
    """
    counts: Counter[str] = Counter()
    lines = read_text_file(path, counts)
    warn_of(counts)
    _check_length(path, lines, references)
    return lines


def read_source(path: Path, references: list[list[str]]) -> list[str]:
    """Read text to translate, as tolerantly as `mtrain translate` does."""
    counts: Counter[str] = Counter()
    lines = list(decode_lines(read_file(path, counts), counts))
    warn_of(counts)
    _check_length(path, lines, references)
    return lines


def translate(translator: Translator, lines: list[str], output: Path | None) -> list[str]:
    """Translate lines to the best text of each, and keep the result if asked."""
    with progress_bar(len(lines), "line", "translating") as bar:
        results, places = translator.translate(lines, bar.update)
    cut = Places()
    cut.add(place + 1 for place in places)
    cut.warn(translator.max_source_length)
    hypotheses = [found[0].text for found in results]
    if output is not None:
        try:
            output.write_bytes("".join(line + "\n" for line in hypotheses).encode("utf-8"))
        except OSError as error:
            raise UserError(f"{output}: cannot write: {error.strerror}") from None
    return hypotheses


def score(
    hypotheses: list[str],
    references: list[list[str]],
    tgt_lang: str | None,
    tokenize: str | None,
    lowercase: bool,
) -> Evaluation:
    """Score with BLEU, chrF and TER, tokenized for the target language."""
    if tokenize is None:
        tokenize = tokenizer_for(tgt_lang)
        if tokenize == "13a" and metrics.is_mostly_cjk(references[0]):
            logger.warning(
                "the references are mostly Han, Kana or Hangul, and BLEU's tokenizer 13a does "
                "not cut these: name the language (zh, ja, ko) with --tgt-lang"
            )
    check_tokenizer(tokenize)
    return Evaluation(
        len(hypotheses),
        metrics.bleu(hypotheses, references, tokenize=tokenize, lowercase=lowercase, interval=True),
        metrics.chrf(hypotheses, references, lowercase=lowercase, interval=True),
        metrics.ter(hypotheses, references, tokenize=tokenize, interval=True),
    )


def _check_length(path: Path, lines: list[str], references: list[list[str]]) -> None:
    if references and len(lines) != len(references[0]):
        raise UserError(
            f"{path} has {len(lines)} lines but the reference has {len(references[0])}: "
            "they must match line for line"
        )
