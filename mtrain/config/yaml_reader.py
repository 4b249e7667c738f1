"""Strict YAML: plain values with the line of each.

PyYAML alone reads `5e-4` as a string, lets a duplicate key win silently, and takes `010` for 8 and
`1:30` for 90. Here scalars follow one small table, and everything else is refused with file and
line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from mtrain.runtime.errors import RefusedError

Key = tuple[str | int, ...]

MAX_NODES = 20_000
MAX_SIZE = 1_000_000

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TRUE, _FALSE, _NULL = {"true", "yes", "on"}, {"false", "no", "off"}, {"", "~", "null"}


@dataclass
class Document:
    """Plain Python values read from YAML, with the origin and the text of every value."""

    name: str
    value: Any = None
    lines: dict[Key, str] = field(default_factory=dict)
    raw: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """Return `file:line` of a key, or of the nearest key around it."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, self.name)

    def at(self, key: Key) -> Any:
        """Return the value at a key, or None."""
        value = self.value
        for part in key:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def has(self, key: Key) -> bool:
        """Whether a value is given at a key."""
        return key in self.lines


def dotted(key: Key) -> str:
    """Write a key as users do: `data.train.0.src`."""
    return ".".join(str(part) for part in key)


def read_document(path: Path) -> Document:
    """Read a YAML file; raises `RefusedError` with the line of whatever is not plain, strict
    YAML.
    """
    return parse_document(read_text(path, lambda: path.open("rb")), str(path))


def read_text(path: Path, open_file: Callable[[], IO[bytes]]) -> str:
    """Read the text of a YAML file, or no more than is needed to refuse one that is too long;
    raises `RefusedError`.
    """
    try:
        with open_file() as stream:
            data = stream.read(4 * MAX_SIZE + 4)
    except OSError as error:
        raise RefusedError(f"{path}: cannot read the config: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RefusedError(f"{path}:{line}: the config is not UTF-8") from None


def parse_document(text: str, name: str) -> Document:
    """Parse YAML text that came from a file `name`; raises `RefusedError`."""
    if len(text) > MAX_SIZE:
        raise RefusedError(f"{name}: over {MAX_SIZE:,} characters are too many for a config")
    document = Document(name)
    document.value = _parse(text, document, (), lambda line: f"{name}:{line + 1}")
    if not isinstance(document.value, dict):
        raise RefusedError(f"{name}: expected a mapping of settings such as `run_dir: ...`")
    return document


def set_value(document: Document, override: str) -> None:
    """Apply one `a.b=value`; the value is YAML."""
    name, equals, text = override.partition("=")
    place = f"--set {override[:60]}"
    parts = tuple(name.strip().split("."))
    if not equals or not all(parts):
        raise RefusedError(f"{place}: expected KEY=VALUE, such as --set train.max_steps=1000")
    target = document.value
    for depth, part in enumerate(parts[:-1], 1):
        if part not in target:
            target[part] = {}
            document.lines[parts[:depth]] = place
        target = target[part]
        if not isinstance(target, dict):
            raise RefusedError(f"{place}: {part} is not a group of settings; set it as a whole")
    for places in (document.lines, document.raw):
        for key in [key for key in places if key[: len(parts)] == parts]:
            del places[key]
    document.lines[parts] = place
    target[parts[-1]] = _parse(text, document, parts, lambda line: place)


def dump_document(value: object) -> str:
    """Return plain values as YAML that this and other readers read back to equal ones."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes every text that is not plainly a word: `1e-4`, `no` and the like stay text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    special = text.lower() in _TRUE | _FALSE | _NULL
    plain = re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", text) and not special
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def _parse(text: str, document: Document, key: Key, place: Callable[[int], str]) -> Any:
    """Parse YAML to plain values; `place` names a line counted from 0."""
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = place(mark.line if mark else 0)
        raise RefusedError(f"{where}: invalid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        where = place(text[: error.position].count("\n"))
        raise RefusedError(f"{where}: invalid YAML: a control character") from None
    except RecursionError:
        raise RefusedError(f"{place(0)}: nested too deeply for a config") from None
    except ValueError as error:  # `\U00110000`, or a version of thousands of digits
        raise RefusedError(f"{place(0)}: invalid YAML: {error}") from None
    return _Builder(document, place).build(node, key) if node is not None else None


class _Builder:
    """Turns YAML nodes into plain values and remembers where each stood."""

    def __init__(self, document: Document, place: Callable[[int], str]) -> None:
        self.document = document
        self.place = place
        self.count = 0

    def build(self, node: yaml.Node, key: Key) -> Any:
        where = self.place(node.start_mark.line)
        self.document.lines[key] = where
        self.count += 1
        if self.count > MAX_NODES or len(key) > 20:
            raise RefusedError(
                f"{where}: too large or too deeply nested for a config (aliases count too)"
            )
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.rsplit(":")[-1] not in (
            "str",
            "seq",
            "map",
        ):
            raise RefusedError(
                f"{where}: {dotted(key)}: the tag {node.tag} is not allowed in a config"
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*key, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, key, where)

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, value_node in node.value:
            where = self.place(name_node.start_mark.line)
            if not isinstance(name_node, yaml.ScalarNode):
                raise RefusedError(f"{where}: a key must be a word")
            name = name_node.value
            if name in result:
                first = self.document.where((*key, name))
                raise RefusedError(
                    f"{where}: {dotted((*key, name))}: duplicate key, first given at {first}; "
                    "keep one"
                )
            result[name] = self.build(value_node, (*key, name))
            self.document.lines[(*key, name)] = where
        return result

    def _scalar(self, node: yaml.ScalarNode, key: Key, where: str) -> Any:
        text = node.value
        if "\0" in text:
            raise RefusedError(f"{where}: {dotted(key)}: holds a NUL character")
        if node.style is not None:
            return text
        self.document.raw[key] = text
        if text.lower() in _NULL:
            return None
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        if len(text) > 40:  # no number of a config is longer, and int() of a huge one would be slow
            return text
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text
