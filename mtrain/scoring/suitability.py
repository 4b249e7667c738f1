"""Warn of text that is too small to learn from or to score, or that BLEU or a vocabulary does not
suit.
"""

from collections.abc import Iterable, Iterator
from unicodedata import normalize

from mtrain.config.languages import is_unspaced, tokenizer_for
from mtrain.config.schema import DataConfig
from mtrain.runtime.errors import RefusedError
from mtrain.scoring.metrics import check_tokenizer, is_unsplit_by_13a

MIN_PAIRS = 5_000  # of training text
MIN_LINES = 200  # of a scored set
MAX_CHANGED = 0.1  # fraction of references that a normalization may change


def text_warnings(pairs: int, sets: dict[str, int], *, from_scratch: bool = True) -> Iterator[str]:
    """Yield warnings of too few training pairs for a start from scratch, and of scored sets with
    too few lines.
    """
    if from_scratch and 0 < pairs < MIN_PAIRS:
        advice = f"use {MIN_PAIRS:,} or more, or start from a model with train.init_from"
        yield f"data.train: too few pairs to learn to translate: {pairs:,}; {advice}"
    for key, lines in sets.items():
        if 0 < lines < MIN_LINES:
            advice = f"use {MIN_LINES} lines or more"
            yield f"{key}: scores on only {lines:,} lines vary by chance; {advice}"


def tokenizer_warnings(data: DataConfig, references: dict[str, list[str]]) -> Iterator[str]:
    """Yield warnings of scored sets whose sentences BLEU would not split into words, judged by
    their languages and, if `references` has their keys, by their text.
    """
    for key, corpus in data.scored_corpora.items():
        language = data.languages(corpus)[1]
        if data.bleu_tokenize is not None or tokenizer_for(language) != "13a":
            continue
        if is_unspaced(language) or is_unsplit_by_13a(references.get(key, [])):
            yield (
                f"{key}: BLEU would compare whole sentences, because its tokenizer for {language}, "
                "13a, finds no words in them; set data.bleu_tokenize: char, or the right language"
            )


def missing_tokenizers(names: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each BLEU tokenizer that cannot be loaded; training would refuse it."""
    for name in names:
        try:
            check_tokenizer(name)
        except RefusedError as error:
            yield f"mtrain train needs this: {error}"


def normalization_warnings(rules: str, references: dict[str, list[str]]) -> Iterator[str]:
    """Yield warnings of scored sets whose references often contain characters that the vocabulary's
    normalization replaces, so that no translation contains them.
    """
    if "nfkc" not in rules:
        return
    for key, lines in references.items():
        changed = [line for line in lines if _is_changed(line)]
        if len(changed) > MAX_CHANGED * len(lines):
            odd = next(filter(_is_changed, changed[0]))
            yield (
                f"{key}: the normalization of the vocabulary, {rules}, changes "
                f"{len(changed) / len(lines):.0%} of the references, such as {odd!r} to "
                f"{normalize('NFKC', odd)!r}: translations will differ from them and score lower; "
                "use tokenizer.normalization: identity, or normalize the references, too"
            )


def _is_changed(text: str) -> bool:
    """Whether NFKC replaces characters of a text other than accents and spaces, which do not change
    scores.
    """
    return not text.isascii() and any(
        normalize("NFKC", char).split() != normalize("NFC", char).split() for char in set(text)
    )
