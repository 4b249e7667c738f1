"""What looks wrong about translations, given their references: why a score may be low.

These checks compare strings in any language. What is normal is learned from the references of the
same set, and no check needs spaces between words.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mtrain.corpus.lines import is_blank
from mtrain.corpus.markup import ENTITIES, HYPHENS, SUBWORDS
from mtrain.corpus.writing_systems import script_of, scripts_of

MOST_NAMED = 5  # lines that a note names

FEWEST = 10  # lines or letters; with fewer, nothing counts as normal
COPIED = 0.02  # fraction of lines from which on it is reported
NEARLY = 0.9  # likeness of a copy
SAME, MOST_SOURCES = (
    0.02,
    4,
)  # fraction of lines with the text of others; sources that may share one
SHORT, LONG = 0.8, 1.25  # of all translations against all references, in characters
RARE = 0.1  # fraction of a reference's letters below which a script is foreign
OTHER_SCRIPT = 0.02  # share of lines
LOOPS, LONGEST = 0.005, 2000  # fraction of lines; characters to check
MARKED, TIMES = 0.03, 5  # fraction of lines with a mark, and how much more than on the other side
CASE = 0.2  # capitals that are left, of those expected
KEPT, LOST = 0.9, 0.02  # fraction of elements; fraction of lines from which on a loss is reported
WINDOW, FURTHEST = 50, 3  # lines in a window, and the largest shift
BETTER, ADVANTAGE = 1.5, 0.05  # similarity of shifted lines, relative to unshifted ones

HAN_OR_KANA = dict.fromkeys(scripts_of("ja"), "han or kana")  # which Japanese mixes
UNKNOWN = re.compile(r"⁇|<unk>|\[UNK\]|\ufffd")
# A phrase of letters three times in a row, or a short one four times.
LOOP = re.compile(r"([^\W\d_].{7,79}?)\1{2,}|([^\W\d_].{1,6}?)\2{3,}")

_TOKENIZED = r" [,.](?=\s|$)| [,。、，]|\w (?:n't|'(?:s|re|ve|ll|m|d))\b|[぀-ヿ㐀-鿿] [぀-ヿ㐀-鿿]"
# Marks of text that was prepared for a model, and what to do about them.
MARKS: tuple[tuple[str, str, "re.Pattern[str]", str], ...] = (
    ("subword", "marks of subwords (@@, ▁)", SUBWORDS, "join the pieces before scoring"),
    ("hyphens", "tokens such as @-@", HYPHENS, "undo the tokenization before scoring"),
    (
        "escapes",
        "escaped characters such as &quot;",
        ENTITIES,
        "turn them back into characters before scoring",
    ),
    (
        "tokenized",
        "spaces where tokenization puts them (do n't, a comma by itself)",
        re.compile(_TOKENIZED),
        "undo the tokenization before scoring",
    ),
)

# Elements that a translation keeps.
ELEMENTS: tuple[tuple[str, str, "re.Pattern[str]"], ...] = (
    ("urls", "URLs", re.compile(r"(?:https?://|ftp://|www\.)[!-~]*[A-Za-z0-9/]")),
    (
        "emails",
        "e-mail addresses",
        re.compile(r"(?a)(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ),
    (
        "placeholders",
        "placeholders and tags",
        re.compile(
            r"\$?\{[^{}\s]{0,40}\}|%\([A-Za-z_]\w*\)[a-z]|%(?:\d{1,3}\$)?[-+#0]{0,4}\d{0,4}(?:\.\d{1,4})?"
            r"(?:hh|h|ll|l|z)?[diouxXeEfgGcs@](?![A-Za-z])|%\d\b|</?[A-Za-z][^<>]{0,80}>"
            r"|__[A-Za-z0-9_]+?__"
        ),
    ),
    ("numbers", "numbers", re.compile(r"\d+(?:[.,'’\u00a0\u202f]\d+)*")),
)


@dataclass(frozen=True)
class Note:
    """Something that looks wrong: what, in how many of how many lines, the first of these, and what
    to do.
    """

    kind: str
    what: str
    lines: int
    of: int
    first: list[int]  # numbers of lines, from 1
    advice: str

    def as_json(self) -> dict[str, Any]:
        """An item of `notes` in `mtrain eval --json`."""
        return asdict(self)

    def __str__(self) -> str:
        places = ", ".join(map(str, self.first)) + (", ..." if self.lines > len(self.first) else "")
        where = f" (line {places})" if places else ""
        return f"{self.what}: {self.lines:,} of {self.of:,} lines{where}; {self.advice}"


@dataclass(frozen=True)
class Texts:
    """Translations, the references of each line, and the sources, if known."""

    hypotheses: list[str]
    references: list[tuple[str, ...]]
    sources: list[str]

    def __len__(self) -> int:
        return len(self.hypotheses)

    def note(self, kind: str, what: str, places: list[int], advice: str) -> Note:
        """Make a note on lines, which are counted from 0."""
        first = [place + 1 for place in places[:MOST_NAMED]]
        return Note(kind, what, len(places), len(self), first, advice)


def explain(
    hypotheses: list[str], references: list[list[str]], sources: list[str], lowercase: bool = False
) -> list[Note]:
    """Return what looks wrong about translations; for those of a good system, nothing."""
    texts = Texts(hypotheses, list(zip(*references, strict=True)), sources)
    checks: list[Callable[[Texts], Iterator[Note]]] = [
        _empty,
        _copied,
        _same,
        _unknown,
        _loops,
        _marks,
    ]
    if not lowercase:
        checks.append(_case)
    slipped = list(_slipped(texts))
    if not slipped:
        checks += [_other_script, _length, _elements]
    return slipped + [note for check in checks for note in check(texts)]


def _empty(texts: Texts) -> Iterator[Note]:
    """Find translations or references without text."""
    lines = list(enumerate(zip(texts.hypotheses, texts.references, strict=True)))
    empty = [i for i, (text, of) in lines if is_blank(text) and not all(map(is_blank, of))]
    if empty:
        advice = "the model ends at once there, or the lines were lost on the way"
        yield texts.note("empty", "empty translations", empty, advice)
    bare = [i for i, (text, of) in lines if not is_blank(text) and all(map(is_blank, of))]
    if bare:
        advice = "leave these lines out of the test set, on both sides"
        yield texts.note("no reference", "empty references", bare, advice)


def _copied(texts: Texts) -> Iterator[Note]:
    """Translations that are the source, where the references are not."""
    places = []
    for i, source in enumerate(texts.sources):
        if sum(map(str.isalpha, source)) < FEWEST:
            continue
        own = _grams(source)
        if _likeness(own, _grams(texts.hypotheses[i])) >= NEARLY and not any(
            _likeness(own, _grams(text)) >= NEARLY for text in texts.references[i]
        ):
            places.append(i)
    if len(places) > max(1, COPIED * len(texts)):
        advice = "check file and language; if they are right, look for untranslated training pairs"
        yield texts.note("copied", "translations copied from the source", places, advice)


def _same(texts: Texts) -> Iterator[Note]:
    """Find one translation of many sources; references stand for unknown sources."""
    sources = texts.sources or [" ".join(of) for of in texts.references]
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    for i, text in enumerate(texts.hypotheses):
        if not is_blank(text):
            by_text[text.strip()].append(i)
    places = []
    for text, found in by_text.items():
        distinct = {sources[i].strip() for i in found if text not in texts.references[i]}
        if len(distinct) > MOST_SOURCES:
            places += found
    if len(places) > SAME * len(texts):
        most = max(by_text, key=lambda text: len(by_text[text]))
        what = f"the same translation of different sources (most often: {most[:60]})"
        advice = "the model has hardly learned, or ignores the source"
        yield texts.note("same", what, sorted(places), advice)


def _unknown(texts: Texts) -> Iterator[Note]:
    """Find the marks of unknown pieces."""
    places, signs = [], 0
    for i, text in enumerate(texts.hypotheses):
        found = UNKNOWN.findall(text)
        if found and not any(UNKNOWN.search(of) for of in texts.references[i]):
            places.append(i)
            signs += len(found)
    if places:
        what = f"unknown pieces ({signs:,} of ⁇, <unk> or U+FFFD)"
        advice = "train a vocabulary with byte_fallback: true, or on text with these characters"
        yield texts.note("unknown", what, places, advice)


def _scripts(*texts: str) -> Counter[str]:
    """Count the letters of each script."""
    scripts = map(script_of, filter(str.isalpha, "".join(texts)))
    return Counter(HAN_OR_KANA.get(script, script.lower()) for script in scripts if script)


def _other_script(texts: Texts) -> Iterator[Note]:
    """Lines mostly in a script that their references hardly have."""
    places, names, usual = [], Counter[str](), Counter[str]()
    for i, text in enumerate(texts.hypotheses):
        own, theirs = _scripts(text), _scripts(*texts.references[i])
        usual.update(theirs)
        for script, count in own.most_common(1):
            if count > max(2, own.total() / 2) and theirs[script] < RARE * theirs.total():
                places.append(i)
                names[script] += 1
    if len(places) > max(1, OTHER_SCRIPT * len(texts)):
        script, expected = (count.most_common(1)[0][0] for count in (names, usual))
        what = f"written in {script} letters, where the references are mostly {expected}"
        yield texts.note("script", what, places, "is this the right file and language?")


def _loops(texts: Texts) -> Iterator[Note]:
    """Phrases that are repeated over and over."""
    places = [
        i
        for i, text in enumerate(texts.hypotheses)
        if _loops_in(text) and not any(map(_loops_in, texts.references[i]))
    ]
    if len(places) > LOOPS * len(texts):
        advice = "train for longer, use a beam, or lower decode.max_len_a and max_len_b"
        yield texts.note("loops", "a phrase repeated over and over", places, advice)


def _loops_in(text: str) -> bool:
    """Whether the end of a text repeats itself."""
    return LOOP.search(text[-LONGEST:]) is not None


def _marks(texts: Texts) -> Iterator[Note]:
    """Find text that is tokenized, escaped or segmented on one side only."""
    for kind, name, pattern, advice in MARKS:
        ours = [i for i, text in enumerate(texts.hypotheses) if pattern.search(text)]
        theirs = [i for i, of in enumerate(texts.references) if any(map(pattern.search, of))]
        least = max(1, MARKED * len(texts))
        if len(ours) > max(least, TIMES * len(theirs)):
            what = f"{name} in the translations, not in the references"
            yield texts.note(kind, what, ours, advice)
        elif len(theirs) > max(least, TIMES * len(ours)):
            what = f"{name} in the references, not in the translations"
            yield texts.note(kind, what, theirs, "score against references as they were written")


def _case(texts: Texts) -> Iterator[Note]:
    """Find lower case on one side only."""
    references = [text for of in texts.references for text in of]
    ours, theirs = _capitals(texts.hypotheses), _capitals(references)
    letters = [sum(map(len, lines)) + 1 for lines in (texts.hypotheses, references)]
    if max(ours, theirs) < FEWEST:
        return
    share, expected = ours / letters[0], theirs / letters[1]
    advice = "score without case (--lowercase), or bring the capitals back"
    own = [(text,) for text in texts.hypotheses]
    for name, low, high, small, large in (
        ("translations", share, expected, own, texts.references),
        ("references", expected, share, texts.references, own),
    ):
        if low < CASE * high and high > 0.005:
            # lines without letters, or of letters that have no case, are not in lower case
            places = [
                i
                for i, (a, b) in enumerate(zip(small, large, strict=True))
                if any(text != text.upper() for text in a)
                and any(text != text.lower() for text in b)
            ]
            if places:
                yield texts.note("case", f"the {name} are in lower case", places, advice)


def _capitals(lines: Iterable[str]) -> int:
    return sum(character.isupper() for line in lines for character in line)


def _length(texts: Texts) -> Iterator[Note]:
    """Translations much shorter or longer than the references, those without text aside."""
    lengths = []
    for i, text in enumerate(texts.hypotheses):
        if not is_blank(text) and not all(map(is_blank, texts.references[i])):
            own, *others = (len("".join(t.split())) for t in (text, *texts.references[i]))
            lengths.append((i, own, min(others, key=lambda length: abs(length - own))))
    expected = sum(length for _, _, length in lengths)
    if len(lengths) < FEWEST or not expected:
        return
    ratio = sum(length for _, length, _ in lengths) / expected
    if ratio < SHORT:
        places = [i for i, own, of in lengths if own < SHORT * of]
        advice = "raise decode.length_penalty, and check whether lines were cut"
        yield texts.note(
            "short", f"too short, {ratio:.2f} of the references' length", places, advice
        )
    elif ratio > LONG:
        places = [i for i, own, of in lengths if own > LONG * of]
        advice = "lower decode.length_penalty, and look for repeated phrases"
        yield texts.note("long", f"too long, {ratio:.2f} of the references' length", places, advice)


def _elements(texts: Texts) -> Iterator[Note]:
    """Find numbers and other elements that source and references share and the translation lost."""
    expected: Counter[str] = Counter()
    lost: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for i, text in enumerate(texts.hypotheses):
        if is_blank(text):
            continue
        wanted = [_elements_of(of) for of in (*texts.references[i], *texts.sources[i : i + 1])]
        own = _elements_of(text)
        for kind, _, _ in ELEMENTS:
            shared = set.intersection(*(found[kind] for found in wanted))
            expected[kind] += len(shared)
            lost[kind] += [(i, element) for element in sorted(shared - own[kind])]
    for kind, name, _ in ELEMENTS:
        places = list(dict.fromkeys(i for i, _ in lost[kind]))
        kept = expected[kind] - len(lost[kind])
        if len(places) <= max(1, LOST * len(texts)) or kept >= KEPT * expected[kind]:
            continue
        examples = ", ".join(f"{element} in line {i + 1}" for i, element in lost[kind][:3])
        what = f"{name} kept: {kept:,} of {expected[kind]:,} ({kept / expected[kind]:.0%}); lost"
        advice = f"such as {examples}; check whether the training text keeps them"
        yield texts.note(kind, what, places, advice)


def _elements_of(text: str) -> dict[str, set[str]]:
    """Return elements that should be kept; numbers by their digits, since separators depend on the
    language.
    """
    found = {}
    for kind, _, pattern in ELEMENTS:
        found[kind] = {
            _digits(item) if kind == "numbers" else item for item in pattern.findall(text)
        }
        text = pattern.sub(" ", text)
    return found


def _digits(number: str) -> str:
    return "".join(str(unicodedata.digit(c)) for c in number if c.isdigit())


def _slipped(texts: Texts) -> Iterator[Note]:
    """Translations that are more like the references some lines further up or down."""
    found: dict[int, int] = {}
    places: list[int] = []
    for start in range(0, len(texts), WINDOW):
        window = range(start, min(start + WINDOW, len(texts)))
        if len(window) >= FEWEST and (offset := _offset(texts, window)):
            found[start] = offset
            places += window
    if found:
        start, offset = next(iter(found.items()))
        count = f"{abs(offset)} line{'s' if abs(offset) > 1 else ''}"
        where = f"{count} further {'down' if offset > 0 else 'up'}, from about line {start + 1} on"
        what = f"the translations go with the references {where}"
        advice = "a line was lost or added on one side: compare the files from there"
        yield texts.note("slipped", what, places, advice)


def _offset(texts: Texts, window: range) -> int:
    """How many lines further down the references are that the translations of a window go with."""
    near = range(max(0, window.start - FURTHEST), min(len(texts), window.stop + FURTHEST))
    theirs = {i: _grams(texts.references[i][0]) for i in near}
    ours = {i: _grams(texts.hypotheses[i]) for i in window}
    likeness = {}
    for offset in range(-FURTHEST, FURTHEST + 1):
        pairs = [(ours[i], theirs[i + offset]) for i in window if i + offset in theirs]
        likeness[offset] = sum(_likeness(*pair) for pair in pairs) / max(1, len(pairs))
    best = max(likeness, key=lambda offset: likeness[offset])
    return best if likeness[best] > BETTER * likeness[0] + ADVANTAGE else 0


def _grams(text: str) -> set[str]:
    """Cut a text into all its threes of characters, spaces and case aside."""
    joined = "".join(text.lower().split())
    return {joined[i : i + 3] for i in range(max(1, len(joined) - 2))}


def _likeness(one: set[str], other: set[str]) -> float:
    """Share of threes that two texts have in common, from 0 to 1."""
    return 2 * len(one & other) / (len(one) + len(other))
