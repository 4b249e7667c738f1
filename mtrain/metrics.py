"""Scores of translations by sacreBLEU, strings against strings: values, confidence intervals,
signatures.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mtrain.errors import RefusedError, UserError

TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """One metric's value with a 95 % bootstrap confidence interval (if asked for) and its
    signature.
    """

    name: str
    score: float
    ci: tuple[float, float] | None
    signature: str

    def as_json(self) -> dict[str, Any]:
        """The object of `mtrain eval --json`."""
        return {"score": self.score, "ci": self.ci and list(self.ci), "signature": self.signature}

    def __str__(self) -> str:
        interval = f" [{self.ci[0]:.2f}, {self.ci[1]:.2f}]" if self.ci else ""
        return f"{self.name} {self.score:.2f}{interval} {self.signature}"


def tokenizer_for(language: str | None) -> str:
    """Name sacreBLEU's tokenizer for a target language; 13a where none of its own is needed or
    known.
    """
    code = (language or "").replace("_", "-").lower().split("-")[0]
    return {"zho": "zh", "cmn": "zh", "jpn": "ja-mecab", "kor": "ko-mecab"}.get(
        code, TOKENIZERS.get(code, "13a")
    )


def check_tokenizer(name: str) -> None:
    """Raise `RefusedError` unless sacreBLEU has a tokenizer of that name and what it needs."""
    from sacrebleu.metrics.bleu import BLEU

    if name not in BLEU.TOKENIZERS:
        known = ", ".join(BLEU.TOKENIZERS)
        raise RefusedError(f"--tokenize {name}: unknown; sacreBLEU has {known}")
    try:
        BLEU(tokenize=name)
    except OSError as error:
        raise RefusedError(f"the tokenizer {name} cannot be loaded: {error}") from None
    except (ImportError, RuntimeError):
        extra = name.split("-")[0]
        raise RefusedError(
            f"the tokenizer {name} needs an extra: pip install 'mtrain[{extra}]' (in a clone: "
            f"'.[{extra}]'); mtrain eval can use another one, by --tokenize"
        ) from None


def is_mostly_cjk(texts: Iterable[str]) -> bool:
    """Tell whether most letters are Han, Kana or Hangul, which the 13a tokenizer does not cut."""
    letters = cjk = 0
    for text in texts:
        for character in text:
            if character.isalpha():
                letters += 1
                cjk += unicodedata.name(character, "").startswith(
                    ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
                )
    return 2 * cjk > letters


def bleu(
    hypotheses: list[str],
    references: list[list[str]],
    *,
    tokenize: str,
    lowercase: bool = False,
    interval: bool = False,
) -> Score:
    """Corpus BLEU against one or more reference lists of the same length."""
    from sacrebleu.metrics.bleu import BLEU

    return _score(
        "BLEU",
        BLEU(tokenize=tokenize, lowercase=lowercase),
        hypotheses,
        references,
        interval,
    )


def chrf(
    hypotheses: list[str],
    references: list[list[str]],
    *,
    lowercase: bool = False,
    interval: bool = False,
) -> Score:
    """Corpus chrF2."""
    from sacrebleu.metrics.chrf import CHRF

    return _score("chrF2", CHRF(lowercase=lowercase), hypotheses, references, interval)


def ter(
    hypotheses: list[str],
    references: list[list[str]],
    *,
    tokenize: str,
    interval: bool = False,
) -> Score:
    """Corpus TER without case, as sacreBLEU has it; lower is better.

    Chinese and Japanese are cut into characters.
    """
    from sacrebleu.metrics.ter import TER

    asian = tokenize in ("zh", "ja-mecab", "char")
    metric = TER(normalized=asian, asian_support=asian)
    return _score("TER", metric, hypotheses, references, interval)


def _score(
    name: str, metric: Any, hypotheses: list[str], references: list[list[str]], interval: bool
) -> Score:
    """Score with sacreBLEU, whose own interface cuts lists of unequal length without a word."""
    for reference in references:
        if len(reference) != len(hypotheses):
            raise UserError(
                f"{len(hypotheses)} hypotheses but {len(reference)} references: "
                "they must match line for line"
            )
    if not hypotheses:
        raise UserError("there are no lines to score")
    compute = metric._compute_score_from_stats

    def compute_as_float(stats: Any) -> Any:
        """Leave one kind of float: of a mixture, which resamples without text give, sacreBLEU's
        mean fails.
        """
        computed = compute(stats)
        computed.score = float(computed.score)
        return computed

    metric._compute_score_from_stats = compute_as_float
    result = metric.corpus_score(hypotheses, references, n_bootstrap=_RESAMPLES if interval else 1)
    ci = None
    if interval:
        ci = float(result._mean - result._ci), float(result._mean + result._ci)
    return Score(name, float(result.score), ci, metric.get_signature().format())
