"""Pairs from translation memories: TMX 1.1 to 1.4, read as a stream in bounded memory.

The parser is expat, not ElementTree, because it can bound attributes and open tags and refuse
entities.

The text of a language is the unit's variant with exactly this code, or else its first variant in
that language: `en` matches `EN`, or else `en-US`; `en-US` does not match `en`. If both languages of
a pair match one variant, the longer code gets it.

Inline codes (`<bpt>`, `<ept>`, `<it>`, `<ph>`, `<ut>`, with any `<sub>` in them) are dropped; the
text of other elements is kept. A line break in a segment, with the blanks around it, becomes a
space.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from mtrain.config.corpora import FileCorpus
from mtrain.corpus.lines import (
    DROPPED,
    MAX_LINE_LENGTH,
    Reading,
    join_names,
    open_bytes,
    reading_from,
)
from mtrain.runtime.errors import UserError

SEVERAL_TEXTS = "units with several texts in a language; only the first is used"
INLINE_CODES = "units with inline codes (such as <ph>), which are left out of the text"
CODES = {"bpt", "ept", "it", "ph", "ut"}
MAX_DEPTH = 200  # of nested elements; ordinary files have about ten
MAX_NAMES = 1000  # of elements and attributes, which the parser keeps; TMX has about sixty
MAX_LANGUAGES = 20  # listed in an error
MAX_UNIT_LENGTH = 4 * MAX_LINE_LENGTH  # characters of all variants, plus 100 for each variant
_BLOCK = 1 << 20
# With the blanks around them. A match starts where blanks do: else this would take quadratic time.
_LINE_BREAKS = re.compile(r"(?<![ \t])[ \t]*[\r\n][ \t\r\n]*")


class Variant(NamedTuple):
    """The text of a unit in a language, and whether inline codes are left out of it."""

    language: str
    text: str
    has_codes: bool


Unit = list[Variant]
TOO_LARGE: Unit = []  # replaces a unit over MAX_UNIT_LENGTH


def read_tmx(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[tuple[int, str, str]]:
    """Yield the pairs of two languages with the numbers of their units, from 1; count units that
    lack a language. Raises `UserError` if the file is not TMX or has no such pair.
    """
    src, tgt = str(corpus.src), str(corpus.tgt)
    languages = dict[str, None]()
    has_pairs = False
    for number, unit in enumerate(_read_units(path, reading.check_stop), 1):
        if pair := _find_pair(unit, src, tgt):
            has_pairs = True
            of_unit = [variant.language for variant in unit]
            if any(of_unit.count(variant.language) > 1 for variant in pair):
                reading.counts[SEVERAL_TEXTS] += 1
            if any(variant.has_codes for variant in pair):
                reading.counts[INLINE_CODES] += 1
            yield number, pair[0].text, pair[1].text
        elif unit is TOO_LARGE:
            has_pairs = True
            reading.drop_long(f"{path}: unit ", number)
        else:
            reading.counts[f"{DROPPED}no {src} or no {tgt} in the unit"] += 1
            if len(languages) < MAX_LANGUAGES:
                languages.update(dict.fromkeys(variant.language for variant in unit))
    if not has_pairs:
        names = join_names(languages)
        raise UserError(f"{path}: no unit has both {src} and {tgt}; its languages are {names}")


def count_tmx(corpus: FileCorpus, path: Path, reading: Reading, lines: int) -> int:
    """Return the number of units of a file; raises `UserError` as `read_tmx` does."""
    count_reading = Reading(check_stop=reading.check_stop)
    pairs = sum(1 for _ in read_tmx(corpus, path, count_reading))
    counts = count_reading.counts.items()
    return pairs + sum(count for reason, count in counts if reason.startswith(DROPPED))


def _find_pair(unit: Unit, src: str, tgt: str) -> tuple[Variant, Variant] | None:
    """Return the variants of a unit for two languages: the variant of the exact code, or else
    the first unused variant of the language; the longer code chooses first.
    """
    names = (src, tgt, *(variant.language for variant in unit))
    src, tgt, *variants = (name.strip().replace("_", "-").lower() for name in names)
    indices = {code: variants.index(code) for code in (src, tgt) if code in variants}
    for code in sorted((src, tgt), key=len, reverse=True):
        for index, variant in enumerate(variants):
            is_unused = index not in indices.values()
            if code not in indices and is_unused and variant.startswith(code + "-"):
                indices[code] = index
    return (unit[indices[src]], unit[indices[tgt]]) if len(indices) == 2 else None


def _read_units(path: Path, check_stop: Callable[[], None]) -> Iterator[Unit]:
    """Yield the units of a file; raises `UserError` with the line where it is not well-formed, is
    not TMX, or declares entities, which can make small files huge.
    """
    parser = _UnitParser(path)
    block = b" "
    with open_bytes(path) as stream:
        while block:
            check_stop()
            with reading_from(path):
                block = stream.read(_BLOCK)
            parser.feed(block)
            yield from parser.units
            parser.units.clear()


class _UnitParser:
    """A parser of TMX that collects complete units."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: list[Unit] = []  # complete units
        self.count = self.fed = 0  # units begun, bytes parsed
        self.depth = self.codes = 0  # open elements: all, and those in an inline code
        self.unit: Unit | None = None  # the open unit
        self.size = 0  # of the open unit, as for MAX_UNIT_LENGTH
        self.language = ""  # of the variant
        self.names: set[str] = set()  # of elements and attributes
        self.parts: list[str] | None = None  # of the open segment
        self.has_codes = False  # whether it has inline codes
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = self._entity
        parser.SkippedEntityHandler = self._skipped

    def feed(self, block: bytes) -> None:
        """Parse the next block; an empty block is the end of the file."""
        self.fed += len(block)
        try:
            self.parser.Parse(block, not block)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise self._failure(f"not well-formed XML: {reason}; fix the file") from None
        except (ValueError, LookupError) as error:
            advice = 'convert the file to UTF-8, and write encoding="UTF-8" in its first line'
            raise UserError(f"{self.path}: cannot be decoded: {error}; {advice}") from None
        # the parser keeps an open tag in memory, and parses it again with each block
        if self.fed - self.parser.CurrentByteIndex > 4 * MAX_LINE_LENGTH:
            raise self._failure("a tag or a comment is too long; fix the file")

    def _failure(self, reason: str) -> UserError:
        unit = f"unit {self.count}: " if self.count else ""
        return UserError(f"{self.path}:{self.parser.CurrentLineNumber}: {unit}{reason}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.names.update((name, *attributes))
        if len(self.names) > MAX_NAMES:
            text = f"more than {MAX_NAMES:,} names of elements and attributes; give a .tmx file"
            raise self._failure(text)
        name = name.rpartition(":")[2]
        self.depth += 1
        if self.depth == 1 and name != "tmx":
            raise self._failure(f"not TMX: its root is <{name}>; give a .tmx file")
        if self.depth > MAX_DEPTH:
            raise self._failure(f"elements nested more than {MAX_DEPTH} deep; fix the file")
        if self.parts is not None:
            if name == "seg":
                raise self._failure("<seg> within <seg>; fix the file")
            if self.codes or name in CODES:  # elements within a code are part of it
                self.codes += 1
                self.has_codes = True
        elif name == "tu" and self.unit is not None:
            raise self._failure("<tu> within <tu>; fix the file")
        elif name == "tu":
            self.count += 1
            self.unit = []
            self.size = 0
        elif name == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self.parts = []
            self.has_codes = False

    def _end(self, name: str) -> None:
        name = name.rpartition(":")[2]
        self.depth -= 1
        if self.codes:
            self.codes -= 1
        elif name == "seg" and self.parts is not None:
            self.size += 100 + len(self.language)
            if self.unit is not None and self.size <= MAX_UNIT_LENGTH:
                lines = _LINE_BREAKS.split("".join(self.parts))
                text = " ".join(filter(None, lines))
                self.unit.append(Variant(self.language, text, self.has_codes))
            self.parts = None
        elif name == "tu" and self.unit is not None:
            unit = self.unit if self.size <= MAX_UNIT_LENGTH else TOO_LARGE
            self.units.append(unit)
            self.unit = None

    def _text(self, text: str) -> None:
        if self.parts is not None and not self.codes:
            self.size += len(text)
            if self.size <= MAX_UNIT_LENGTH:
                self.parts.append(text)

    def _entity(self, name: str, *rest: object) -> None:
        raise self._failure(
            f"declares the entity {name}, which is not supported; write its text where it is used"
        )

    def _skipped(self, name: str, is_parameter: bool) -> None:
        sign = "%" if is_parameter else "&"
        raise self._failure(f"unknown entity {sign}{name}; write its text instead")
