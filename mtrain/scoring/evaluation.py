"""`mtrain eval`: a model's or a file's translations against references."""

from dataclasses import dataclass
from typing import Any

from mtrain.runtime.log import progress_bar
from mtrain.scoring import metrics
from mtrain.scoring.metrics import METRICS, Score
from mtrain.scoring.references import choose_tokenizer


@dataclass(frozen=True)
class Evaluation:
    """The scores of translations, by the keys of `METRICS`."""

    lines: int
    scores: dict[str, Score]

    def as_json(self) -> dict[str, Any]:
        """Return the object of `--json`, without notes."""
        scores = {metric: score.as_json() for metric, score in self.scores.items()}
        return {"lines": self.lines, **scores}

    def __str__(self) -> str:
        return "\n".join(map(str, self.scores.values()))


def score(
    hypotheses: list[str],
    references: list[list[str]],
    tgt_lang: str | None,
    tokenize: str | None,
    lowercase: bool,
) -> Evaluation:
    """Score with all metrics, tokenized for the target language."""
    options: dict[str, Any] = {
        "tokenize": choose_tokenizer(tokenize, tgt_lang, references),
        "lowercase": lowercase,
        "interval": True,
    }
    scores = {}
    with progress_bar(len(METRICS), "metric", "scoring") as bar:
        for metric in METRICS:
            scores[metric] = metrics.score(metric, hypotheses, references, **options)
            bar.update()
    return Evaluation(len(hypotheses), scores)
