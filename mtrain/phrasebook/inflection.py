"""The forms of the phrasebook's words: nouns, adjectives, verbs, determiners and tenses.

The tables of the module lexicon are parsed once, at import, into tuples that hold every form
the grammar can ask for.
"""

from __future__ import annotations

from typing import NamedTuple

from mtrain.phrasebook.lexicon import (
    ADJECTIVE_TABLE,
    AFFIRMATIVE,
    AHEAD,
    ALREADY,
    BEFORE,
    HABIT,
    NAMES,
    NOUN_TABLE,
    NUMBERS,
    OFTEN,
    OFTEN_BEFORE,
    PLACE_TABLE,
    REPORT_TABLE,
    TENS,
    UNITS,
    VERB_TABLE,
)

NOM, ACC, DAT, GEN = range(4)
# Case digits of prepositions in the tables.
CASES = {"3": DAT, "4": ACC}
PLURAL = 3  # the fourth "gender" of the determiner tables


class Noun(NamedTuple):
    """A noun: English singular and plural, German forms by case (nom, acc, dat, gen)."""

    key: str
    group: str
    gender: int  # 0 masculine, 1 feminine, 2 neuter
    english: tuple[str, str]
    singular: tuple[str, str, str, str]
    plural: tuple[str, str, str, str]

    @property
    def mass(self) -> bool:
        """Whether the noun has no plural, such as water."""
        return not self.english[1]


class Adjective(NamedTuple):
    """An adjective: base form and the German stem that takes the endings."""

    key: str
    english: str
    stem: str
    comparative: tuple[str, str]  # English, German; empty where there is none
    nouns: tuple[str, ...]


class English(NamedTuple):
    """The forms of an English verb, and the word that follows it ("up", "for")."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    tail: str
    movable: bool  # a pronoun object comes before the tail: "picks him up"


class German(NamedTuple):
    """The forms of a German verb."""

    infinitive: str  # with prefix
    prefix: str
    present: tuple[str, ...]  # ich du er wir ihr sie
    past: tuple[str, str]  # ich/er, wir/sie; the other two persons use the perfect
    participle: str
    imperative: str
    with_sein: bool


class Use(NamedTuple):
    """One way to use a verb: its complements and who may be the subject."""

    kind: str
    adjuncts: tuple[str, ...]
    preposition: tuple[str, str]  # German with case digit, English
    nouns: tuple[str, ...]  # keys of object nouns, or names of places
    subjects: tuple[str, ...]  # keys of nouns


class Verb(NamedTuple):
    """A verb in both languages with its uses."""

    key: str
    en: English
    de: German
    active: bool  # has a progressive and an imperative
    state: bool
    uses: tuple[Use, ...]


class Place(NamedTuple):
    """A preposition with the nouns it goes with: "in the garden", "to Berlin"."""

    german: str
    case: int
    english: str
    nouns: tuple[str, ...]
    towns: bool


def _rows(table: str) -> list[str]:
    """Return the lines of a table; a line that starts with ":" continues the one before."""
    rows: list[str] = []
    for line in table.strip().splitlines():
        if line.strip().startswith(":"):
            rows[-1] += " " + line.strip()
        else:
            rows.append(line.strip())
    return rows


def number_words(number: int) -> tuple[str, str]:
    """Spell a number from 1 to 99, except 13 to 19, in English and German."""
    if number <= len(UNITS):
        return UNITS[number - 1]
    english, german = TENS[number // 10 - 2]
    if number % 10 == 0:
        return english, german
    unit = UNITS[number % 10 - 1]
    return f"{english}-{unit[0]}", f"{unit[1]}und{german}"


def _plural(word: str) -> str:
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def _noun(group: str, row: str) -> Noun:
    german, english = (side.split() for side in row.split("="))
    gender, nominative, plural = german[0], german[1], german[-1]
    genitive = nominative if gender == "f" else german[2]
    weak = gender == "m" and genitive.endswith("n") and plural == genitive
    oblique = genitive if weak and not nominative.endswith("en") else nominative
    dative = plural if plural.endswith(("n", "s")) else plural + "n"
    mass = plural == "-"
    many = "" if mass else english[-1] if len(english) > 1 else _plural(english[0])
    return Noun(
        nominative,
        group,
        "mfn".index(gender),
        (english[0], many),
        (nominative, oblique, oblique, genitive),
        ("", "", "", "") if mass else (plural, plural, dative, plural),
    )


def _expand(words: list[str]) -> tuple[str, ...]:
    """Replace names of noun groups by the nouns of the group."""
    keys = (noun.key for word in words for noun in GROUPS.get(word, (NOUNS.get(word),)) if noun)
    return tuple(dict.fromkeys(keys))


def _adjective(row: str) -> Adjective:
    forms, nouns = row.split(":")
    german, english = (side.split() for side in forms.split("="))
    key, _, stem = german[0].partition("/")
    comparative = ("", "")
    if len(german) > 1:
        more = f"more {english[0]}" if english[1] == "more" else english[1]
        comparative = (more, german[1])
    return Adjective(key, english[0], stem or key, comparative, _expand(nouns.split()))


def _gerund(base: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and not base.endswith("ee"):
        return base[:-1] + "ing"
    closed = base[-1] not in "aeiouwxy" and base[-2] in "aeiou" and base[-3] not in "aeiou"
    doubled = closed and (len(base) <= 4 or base == "forget") and base != "open"
    return base + (base[-1] if doubled else "") + "ing"


def _third(base: str) -> str:
    if base == "have":
        return "has"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "x", "ch", "sh", "go")) else "s")


def _regular_past(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + ("d" if base.endswith("e") else "ed")


def _english(words: list[str]) -> English:
    forms = [word for word in words if word[0].isalpha()]
    tails = [word for word in words if word[0] in "+~"]
    base = forms[0]
    past, participle = forms[1:] if len(forms) == 3 else [_regular_past(base)] * 2
    tail = tails[0][1:] if tails else ""
    movable = bool(tails) and tails[0][0] == "+"
    return English(base, _third(base), past, participle, _gerund(base), tail, movable)


def _german(words: list[str]) -> German:
    prefix, _, plain = words[0].rpartition("|")
    he, past, participle = words[1], words[2], words[-1]
    stem = plain[:-2] if plain.endswith("en") else plain[:-1]
    soft = stem.endswith(("t", "d")) or he.endswith("et")
    you = he[:-1] + ("t" if he[-2] in "sßz" else "st")
    first, many = stem + "e", stem + ("et" if soft else "t")
    if plain == "wissen":
        first, you = "weiß", "weißt"
    elif plain == "haben":
        you = "hast"
    changed = he[:-1] not in (stem, stem + "e") and "ä" not in he
    long = soft or stem.endswith(("er", "rn", "g", "ß"))
    imperative = he[:-1] if changed else first if long else stem
    return German(
        prefix + plain,
        prefix,
        (first, you, he, plain, many, plain),
        (past, past + ("n" if past.endswith("e") else "en")),
        participle,
        imperative if plain != "haben" else "hab",
        words[3] == "ist",
    )


def _use(text: str) -> Use:
    complements, _, subjects = text.partition(" by ")
    (kind, *adjuncts), words = complements.split()[0].split("+"), complements.split()[1:]
    preposition = ("", "")
    if kind == "o":
        preposition, words = (words[0], words[1]), words[2:]
    nouns = tuple(words) if kind in "sm" else _expand(words)
    people = _expand((subjects or "person kin").split())
    return Use(kind, tuple(adjuncts), preposition, nouns, people)


def _verb(row: str, clause: bool = False) -> Verb:
    forms, _, uses = row.partition(" : ")
    german, english = (side.split() for side in forms.split("="))
    de = _german(german)
    parsed = () if clause else tuple(_use(use) for use in uses.split(";"))
    active = not {"*", "!"} & set(english)
    return Verb(de.infinitive, _english(english), de, active, "!" in english, parsed)


def _place(row: str) -> tuple[str, Place]:
    name, preposition, nouns = (part.strip() for part in row.split(":"))
    german, english = preposition.split()
    words = nouns.split()
    english = english.replace("_", " ")
    return name, Place(german[:-1], CASES[german[-1]], english, _expand(words), "town" in words)


GROUPS = {
    group: tuple(_noun(group, row) for row in _rows(table)) for group, table in NOUN_TABLE.items()
}
NOUNS = {noun.key: noun for group in GROUPS.values() for noun in group}
ADJECTIVES = tuple(_adjective(row) for row in _rows(ADJECTIVE_TABLE))
VERBS = tuple(_verb(row) for row in _rows(VERB_TABLE))
# Verbs with a clause: verb, German conjunction, English conjunction.
REPORTS = tuple(
    (_verb(row, clause=True), row.split()[-2], row.split()[-1]) for row in _rows(REPORT_TABLE)
)
PLACES: dict[str, tuple[Place, ...]] = {}
for _name, _entry in map(_place, _rows(PLACE_TABLE)):
    PLACES[_name] = (*PLACES.get(_name, ()), _entry)

# --- Determiners -----------------------------------------------------------------------------


class Determiner(NamedTuple):
    """A determiner: English singular and plural, German by gender (or plural) and case."""

    english: tuple[str, str]
    german: tuple[tuple[str, ...], ...]
    endings: int  # of a following adjective: 0 weak, 1 mixed, 2 strong
    definite: bool
    after: str = ""  # German genitive after the noun: "(der Hund) des Lehrers"


class Both(NamedTuple):
    """A fixed expression in both languages."""

    en: str
    de: str


NOTHING = Both("", "")
# Endings by masculine, feminine, neuter, plural, and in these by case; "-" is no ending.
DER_ENDINGS = "er en em es,e e er er,es es em es,e e en er"
EIN_ENDINGS = "- en em es,e e er er,- - em es,e e en er"
BARE = Determiner(("", ""), (("",) * 4,) * 4, 2, False)
# Endings of adjectives after weak (der), mixed (ein) and no (strong) determiners.
ADJECTIVE_ENDINGS = tuple(
    tuple(tuple(cases.split()) for cases in table.split(","))
    for table in (
        "e en en en,e e en en,e e en en,en en en en",
        "er en en en,e e en en,es es en en,en en en en",
        "er en em en,e e er er,es es em en,e e en er",
    )
)


def _declined(stem: str, table: str) -> tuple[tuple[str, ...], ...]:
    rows = [row.split() for row in table.split(",")]
    return tuple(tuple(stem + ending.strip("-") for ending in row) for row in rows)


def _possessive(english: str, stem: str) -> Determiner:
    return Determiner((english, english), _declined(stem, EIN_ENDINGS), 1, True)


THE = Determiner(
    ("the", "the"),
    (
        ("der", "den", "dem", "des"),
        ("die", "die", "der", "der"),
        ("das", "das", "dem", "des"),
        ("die", "die", "den", "der"),
    ),
    0,
    True,
)
A = Determiner(("a", ""), _declined("ein", EIN_ENDINGS), 1, False)
NO = Determiner(("no", "no"), _declined("kein", EIN_ENDINGS), 1, False)
THIS = Determiner(("this", "these"), _declined("dies", DER_ENDINGS), 0, True)
# Not "definite": nothing with them is negated.
EVERY = Determiner(("every", ""), _declined("jed", DER_ENDINGS), 0, False)
ALL = Determiner(("", "all"), _declined("all", DER_ENDINGS), 0, False)
WHICH = Determiner(("which", "which"), _declined("welch", DER_ENDINGS), 0, True)
MANY = Determiner(("", "many"), _declined("viel", DER_ENDINGS), 2, False)
HOW_MANY = Determiner(("", "how many"), _declined("wie viel", DER_ENDINGS), 2, False)
POSSESSIVES = tuple(
    _possessive(english, stem)
    for english, stem in (
        ("my", "mein"),
        ("your", "dein"),
        ("his", "sein"),
        ("her", "ihr"),
        ("our", "unser"),
        ("their", "ihr"),
    )
)
COUNTED = tuple(
    Determiner(("", english), ((german,) * 4,) * 4, 2, False)
    for english, german in map(number_words, NUMBERS)
)
NAMED_OWNERS = tuple(
    Determiner((f"{name}'s",) * 2, ((f"{name}s",) * 4,) * 4, 2, True) for name in NAMES
)
# "the teacher's (dog)", "(der Hund) des Lehrers", and the same with "my" for relatives.
OWNERS = tuple(
    Determiner(
        (f"{owner.english[0]} {noun.english[0]}'s",) * 2,
        THE.german,
        0,
        True,
        f" {owner.german[noun.gender][GEN]} {noun.singular[GEN]}",
    )
    for owner, group in ((THE, "person"), (POSSESSIVES[0], "kin"), (POSSESSIVES[3], "kin"))
    for noun in GROUPS[group]
)
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}

# --- Tenses and adverbs ----------------------------------------------------------------------


class Tense(NamedTuple):
    """How a tense or modal is put together in both languages.

    Tuples of six hold one form per person (I, you, he, we, you all, they). Without an
    auxiliary English takes the support "do" in questions and negations.
    """

    auxiliary: tuple[str, ...]
    support: tuple[str, ...]
    links: tuple[str, ...]  # between the English auxiliary and the main verb
    base_link: str  # the link after "do"
    form: int  # of the English main verb: base, third, past, participle, gerund
    finite: tuple[str, ...]  # German modal
    times: tuple[Both, ...]
    middle: tuple[Both, ...]


def _both(text: str) -> tuple[Both, ...]:
    """Parse "English=German" entries separated by commas."""
    entries = (entry.strip().partition("=") for entry in text.split(","))
    return tuple(Both(english, german) for english, _, german in entries)


def _six(text: str) -> tuple[str, ...]:
    """Give one form per person from one form, two (he, others) or all six."""
    forms = text.split(",")
    if len(forms) == 2:
        return (forms[1], forms[1], forms[0], forms[1], forms[1], forms[1])
    return tuple(forms * 6 if len(forms) == 1 else forms)


TIMES_HABIT, TIMES_BEFORE, TIMES_AHEAD = map(_both, (HABIT, BEFORE, AHEAD))
NO_NEGATION = _both(AFFIRMATIVE)
HOURS = tuple(
    Both(f"at {english} o'clock", f"um {german} Uhr")
    for english, german in map(number_words, range(1, 13))
)
DO, DID = _six("does,do"), _six("did")
AM, WAS = _six("am,are,is,are,are,are"), _six("was,were,was,were,were,were")
BIN, WAR = _six("bin,bist,ist,sind,seid,sind"), _six("war,warst,war,waren,wart,waren")
HABE = _six("habe,hast,hat,haben,habt,haben")
NONE = _six("")


def _modal(auxiliary: str, german: str, times: tuple[Both, ...], link: str = "") -> Tense:
    return Tense(_six(auxiliary), DO, _six(link), "", 0, _six(german), times, ())


def _semi_modal(english: str, base: str, german: str, past: bool = False) -> Tense:
    """Return an English full verb such as "wants to" that is a modal in German."""
    times = TIMES_BEFORE if past else TIMES_AHEAD
    return Tense((), DID if past else DO, _six(english), base, 0, _six(german), times, ())


PRESENT = Tense((), DO, NONE, "", 0, (), TIMES_HABIT, _both(OFTEN))
PAST = Tense((), DID, NONE, "", 2, (), TIMES_BEFORE, _both(OFTEN_BEFORE))
PROGRESSIVE = Tense(AM, DO, NONE, "", 4, (), (), ())
PERFECT = Tense(_six("has,have"), DO, NONE, "", 3, (), TIMES_HABIT[:1], _both(ALREADY))
FUTURE = _modal("will", "werde,wirst,wird,werden,werdet,werden", TIMES_AHEAD)
CAN = _modal("can", "kann,kannst,kann,können,könnt,können", TIMES_AHEAD)
COULD = _modal("could", "konnte,konntest,konnte,konnten,konntet,konnten", TIMES_BEFORE)
SHOULD = _modal("should", "sollte,solltest,sollte,sollten,solltet,sollten", TIMES_AHEAD)
MAY = _modal("may", "darf,darfst,darf,dürfen,dürft,dürfen", TIMES_AHEAD)
LIKE = _modal("would", "möchte,möchtest,möchte,möchten,möchtet,möchten", TIMES_AHEAD, "like to")
WANT = _semi_modal("wants to,want to", "want to", "will,willst,will,wollen,wollt,wollen")
MUST = _semi_modal("has to,have to", "have to", "muss,musst,muss,müssen,müsst,müssen")
WANTED = _semi_modal(
    "wanted to", "want to", "wollte,wolltest,wollte,wollten,wolltet,wollten", past=True
)
HAD = _semi_modal("had to", "have to", "musste,musstest,musste,mussten,musstet,mussten", past=True)
IMPERATIVE = Tense((), DO, NONE, "", 0, (), (), ())
LET_US = Tense(NONE, DO, NONE, "", 0, NONE, TIMES_AHEAD, ())
MODALS = (FUTURE, FUTURE, CAN, SHOULD, MAY, LIKE, WANT, MUST)
PAST_MODALS = (COULD, WANTED, HAD)
# What a clause about now, about the past, and about anything may choose from.
NOW = ((PRESENT,), (PRESENT,), (PROGRESSIVE,), (PERFECT,), MODALS)
THEN = ((PAST,), (PAST,), PAST_MODALS)
ANY = (*NOW, (PRESENT,), (PROGRESSIVE,), (PERFECT,), *THEN, MODALS)
# Questions without a question word begin with the finite verb, mostly an auxiliary.
ASKED = (*((PERFECT,), (PROGRESSIVE,), MODALS, PAST_MODALS) * 2, (PRESENT,), (PRESENT,), (PAST,))
