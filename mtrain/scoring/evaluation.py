"""`mtrain eval`: a model's or a file's translations against references."""

from dataclasses import dataclass
from typing import Any

from mtrain.runtime.log import progress_bar
from mtrain.scoring import metrics
from mtrain.scoring.metrics import Score
from mtrain.scoring.references import choose_tokenizer


@dataclass(frozen=True)
class Evaluation:
    """The result of `mtrain eval`."""

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


def score(
    hypotheses: list[str],
    references: list[list[str]],
    tgt_lang: str | None,
    tokenize: str | None,
    lowercase: bool,
) -> Evaluation:
    """Score with BLEU, chrF and TER, tokenized for the target language."""
    tokenize = choose_tokenizer(tokenize, tgt_lang, references)
    with progress_bar(3, "metric", "scoring") as bar:
        bleu = metrics.bleu(
            hypotheses, references, tokenize=tokenize, lowercase=lowercase, interval=True
        )
        bar.update()
        chrf = metrics.chrf(hypotheses, references, lowercase=lowercase, interval=True)
        bar.update()
        ter = metrics.ter(hypotheses, references, tokenize=tokenize, interval=True)
    return Evaluation(len(hypotheses), bleu, chrf, ter)
