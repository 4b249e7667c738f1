"""`mtrain eval`: a model's or a file's translations against references."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtrain import metrics
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


def translate(translator: "Translator", lines: list[str]) -> list[str]:
    """Translate lines to the best text of each."""
    with progress_bar(len(lines), "line", "translating") as bar:
        results, places = translator.translate(lines, bar.update)
    cut = Places()
    cut.add(place + 1 for place in places)
    cut.warn(translator.max_source_length)
    return [found[0].text for found in results]


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
