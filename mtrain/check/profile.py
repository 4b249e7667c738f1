"""What is normal on the two sides of a corpus, learned from a sample: scripts, words, lengths."""

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.characters import Words
from mtrain.check.findings import Chunk, Findings
from mtrain.config.schema import DataConfig
from mtrain.corpus.writing_systems import language_code, name_of, scripts_of

BITS = 18  # of the hash tables of words
ROUNDS = 4  # of telling pairs that are swapped and counting again
LEAST_TIMES = 4  # of a word that indicates a side
MOST_LEANING = 3.0  # nats of one word
LEAST_FREQUENT = 20  # words that indicate a language
LOWEST = 0.01  # fraction of a sample that may be freely translated or wrong
# Nats against a pair that does not belong together: a multiple of that quantile, bounded.
MISFIT_OF_LOWEST, LEAST_MISFIT, MOST_MISFIT = 3.3, 6.0, 12.0
LEAST_SAMPLE, MUCH_SAMPLE = 200, 2000  # pairs from which words are learned; that suffice for sure
LEAST_EVIDENCE = 0.5  # nats, on average, for words to be informative
LENGTH_FOR, LENGTH_AGAINST = 0.5, 2.0  # nats that the lengths of a pair may be worth
LEAST_PAIRS = 20  # from which scripts are learned
USUAL_SHARE = 0.05  # of a side's letters, for a script that is at home there

# Words that a text of a language is full of, and a text of the others here is not.
FREQUENT = {
    "cs": "je se na že jsou jako který pro",
    "da": "og er det af ikke som til på",
    "de": "der die und ist nicht das ein mit",
    "en": "the of and is to that with for",
    "es": "el los que las por una con para",
    "fi": "ja on ei että oli se mutta kuin",
    "fr": "les des est une que dans pour pas",
    "hu": "és az nem hogy egy volt meg van",
    "it": "il di che per è non sono della",
    "nl": "het een van niet zijn op dat met",
    "pl": "się nie jest na że do jak są",
    "pt": "não uma os com para do em mais",
    "ro": "și este nu pentru care din cu mai",
    "sv": "och är att det inte som på av",
    "tr": "bir ve bu için ile da olarak çok",
    "ru": "и в не на что с это как",
    "uk": "і в не на що з це та",
    "bg": "и на да се за от не е",
}


class Leaning:
    """To which side the words of a line belong, whatever the languages.

    Pairs whose words speak for the other side are counted the other way round, and so again: half
    the pairs may be swapped but for some.
    """

    def __init__(self, src: Words, tgt: Words) -> None:
        self.table = np.zeros(1 << BITS)
        is_swapped = np.zeros(len(src), bool)
        for _ in range(ROUNDS):
            self.table = _leanings(src, tgt, is_swapped)
            is_swapped = self.of(src) < self.of(tgt)

    def of(self, words: Words) -> NDArray[np.float64]:
        """Return the evidence for each line, in nats, that it is of the source side; below 0, of
        the target side.
        """
        worth = self.table[_buckets(words)]
        return np.bincount(words.lines, worth, len(words)).astype(np.float64)


def _buckets(words: Words) -> NDArray[np.int64]:
    return (words.hashes >> np.uint64(64 - BITS)).astype(np.int64)


def _leanings(src: Words, tgt: Words, is_swapped: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compare how often each word comes on the two sides."""
    counts = np.zeros((2, 1 << BITS))
    for side, words in enumerate((src, tgt)):
        others = is_swapped[words.lines]
        for chosen, place in ((~others, side), (others, 1 - side)):
            counts[place] += np.bincount(_buckets(words)[chosen], minlength=1 << BITS)
    shares = (counts + 0.5) / (counts.sum(1, keepdims=True) + 1)
    table = np.clip(np.log(shares[0] / shares[1]), -MOST_LEANING, MOST_LEANING)
    return np.where(counts.sum(0) >= LEAST_TIMES, table, 0.0)


class LengthRatio:
    """The normal ratio of the sides' lengths, and its variance by length."""

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        lengths = lengths[lengths.min(1) > 0]
        self.profile = float(np.median(_ratios(lengths))) if len(lengths) else 0.0
        bins, far = _bins(lengths), np.abs(_ratios(lengths) - self.profile)
        spread = np.zeros(64)
        self.apart = max(
            0.1, float(np.sqrt(np.log(lengths + 1.0).var(0).sum())) if len(lengths) else 1
        )
        for number in np.unique(bins):
            some = far[bins == number]
            if len(some) >= 50:
                spread[number] = max(0.1, 1.4826 * float(np.median(some)))
        known = np.flatnonzero(spread)
        near = known[np.abs(np.arange(64)[:, None] - known).argmin(1)] if len(known) else None
        self.spread = np.full(64, 0.5) if near is None else spread[near]

    def distance(
        self, lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how far the ratio of each pair is from the normal one: as a logarithm, and in
        standard deviations.
        """
        far = np.abs(_ratios(lengths) - self.profile)
        return far, far / self.spread[_bins(lengths)]

    def evidence(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the evidence of lengths for each pair, in nats, that the sides belong together."""
        far, spreads = self.distance(lengths)
        gain = np.log(self.apart / self.spread[_bins(lengths)])
        worth = gain - 0.5 * spreads**2 + 0.5 * (far / self.apart) ** 2
        return np.clip(worth, -LENGTH_AGAINST, LENGTH_FOR)


def _ratios(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.log((lengths[:, 1] + 1) / (lengths[:, 0] + 1))


def _bins(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort pairs by the logarithm of the mean of their lengths."""
    product = (lengths[:, 0] + 1.0) * (lengths[:, 1] + 1.0)
    return np.log2(product).astype(np.int64).clip(0, 63)


class Profile:
    """What is normal for pairs, learned from a sample of the training text."""

    def __init__(self, parts: list[Chunk]) -> None:
        src, tgt = (Words.join([part.words[side] for part in parts]) for side in (0, 1))
        lengths = [part.lengths for part in parts]
        self.pairs = len(src)
        self.associations = Associations(src, tgt)
        evidence = self.associations.evidence(src, tgt)
        self.mean = float(evidence.mean()) if len(evidence) else 0.0
        lowest = float(np.quantile(evidence, LOWEST)) if len(evidence) else 0.0
        self.misfit = min(MOST_MISFIT, max(LEAST_MISFIT, -MISFIT_OF_LOWEST * lowest))
        self.leaning = Leaning(src, tgt)
        self.ratio = LengthRatio(np.concatenate([np.zeros((0, 2), np.int64), *lengths]))
        letters = [sum_letters(parts, side) for side in (0, 1)]
        few = self.pairs < LEAST_PAIRS  # uninformative of the native scripts
        self.scripts = [few | (count >= USUAL_SHARE * count.sum()) for count in letters]

    @property
    def has_associations(self) -> bool:
        """Whether words are associated enough to judge pairs by them."""
        return self.pairs >= LEAST_SAMPLE and self.mean >= LEAST_EVIDENCE

    def compare(self, data: DataConfig, parts: list[Chunk], found: Findings) -> None:
        """Report a side of the sample that is not in the language of the config."""
        if not self.pairs:
            return
        if self.pairs >= MUCH_SAMPLE and self.mean < LEAST_EVIDENCE:
            found.tell(
                "unrelated", "no words come together in pairs much more often than by chance"
            )
        languages = data.src_lang, data.tgt_lang
        for side, language in enumerate(languages):
            _compare_scripts(parts, side, language, found)
        codes = [language_code(language) for language in languages]
        if all(code in FREQUENT for code in codes) and codes[0] != codes[1]:
            _compare_words(parts, codes, found)


def _compare_scripts(parts: list[Chunk], side: int, language: str, found: Findings) -> None:
    """Compare the scripts of a side's letters with those of its language, if known."""
    own = scripts_of(language)
    letters, names = sum_letters(parts, side), parts[0].characters.scripts
    share = sum(int(letters[names.index(name)]) for name in own if name in names)
    if own and letters.sum() and share < 0.5 * letters.sum():
        main = int(letters.argmax())
        side_name, key = (("source", "src_lang"), ("target", "tgt_lang"))[side]
        found.tell(
            "language",
            f"data.{key} is {language}, but {letters[main] / letters.sum():.0%} of the "
            f"{side_name}'s letters are {name_of(names[main])}: are the sides swapped?",
            side,
        )


def _compare_words(parts: list[Chunk], codes: list[str], found: Findings) -> None:
    """Find the most frequent words of each language on the other side."""
    characters = parts[0].characters
    lists = [characters.words(characters.read([FREQUENT[code]])).hashes for code in codes]
    only = [np.setdiff1d(lists[0], lists[1]), np.setdiff1d(lists[1], lists[0])]
    counts = np.zeros((2, 2))  # side, language
    for side in (0, 1):
        for part in parts:
            for language in (0, 1):
                counts[side, language] += np.isin(part.words[side].hashes, only[language]).sum()
    crossed = counts[0, 1] > 3 * counts[0, 0] and counts[1, 0] > 3 * counts[1, 1]
    if crossed and min(counts[0, 1], counts[1, 0]) >= LEAST_FREQUENT:
        found.tell(
            "language",
            f"most sources look like data.tgt_lang ({codes[1]}) and most targets like "
            f"data.src_lang ({codes[0]}): swap src and tgt, or the languages",
        )


def sum_letters(parts: list[Chunk], side: int) -> NDArray[np.int64]:
    """Count a side's letters by script."""
    total = np.zeros(256, np.int64)
    for part in parts:
        counts = part.letters[side]
        total[: len(counts)] += counts
    return total
