"""`mtrain eval`: a model's or a file's translations against references."""

from typing import Any

from mtrain.runtime.log import progress_bar
from mtrain.scoring import metrics
from mtrain.scoring.metrics import METRICS, Score
from mtrain.scoring.references import choose_tokenizer


def score(
    hypotheses: list[str],
    references: list[list[str]],
    tgt_lang: str | None,
    tokenize: str | None,
    lowercase: bool,
) -> dict[str, Score]:
    """Score with each of `METRICS`, tokenized for the target language."""
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
    return scores
