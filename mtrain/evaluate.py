"""`mtrain eval`: a model's or a file's translations against references."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrain import metrics
from mtrain.errors import UserError
from mtrain.log import Places, progress_bar
from mtrain.metrics import Score
from mtrain.parallel import choose_tokenizer

if TYPE_CHECKING:
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


def check_output(output: Path) -> None:
    """Raise `UserError`, before anything is translated, where a file cannot be written."""
    if output.is_dir():
        reason = errno.EISDIR
    elif not output.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(output if output.exists() else output.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise UserError(f"{output}: cannot write: {os.strerror(reason)}")


def translate(translator: "Translator", lines: list[str], output: Path | None) -> list[str]:
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
    tokenize = choose_tokenizer(tokenize, tgt_lang, references)
    return Evaluation(
        len(hypotheses),
        metrics.bleu(hypotheses, references, tokenize=tokenize, lowercase=lowercase, interval=True),
        metrics.chrf(hypotheses, references, lowercase=lowercase, interval=True),
        metrics.ter(hypotheses, references, tokenize=tokenize, interval=True),
    )
