"""Read strict YAML into plain values, with the line of each.

PyYAML alone reads `5e-4` as a string, `010` as 8 and `1:30` as 90, and the last of duplicate keys
silently wins. Here, `_scalar` decides the type of each scalar; duplicate keys and tags are refused
with file and line.
"""

import codecs
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, reason_not_opened

# Limits of a document; each use of an alias counts again.
MAX_NODES, MAX_DEPTH = 20_000, 20
MAX_SIZE = 1_000_000  # characters

_SYNTAX = "check indentation (no tabs), spaces after colons, quotes and brackets up to here"
_UTF16_STARTS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TRUE, _FALSE, _NULL = {"true", "yes", "on"}, {"false", "no", "off"}, {"", "~", "null"}


@dataclass
class Document:
    """Plain Python values read from YAML. By dotted key (`data.train.0.src`), `places` holds the
    place of each value, such as `file:line`, and `raw` the text of each unquoted scalar.
    """

    name: str
    value: Any = None
    places: dict[str, str] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)
    num_nodes: int = 0

    def nearest_key(self, key: str) -> str:
        """Return the dotted key, or its nearest parent that the document contains."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return key

    def where(self, key: str) -> str:
        """Return the place of a dotted key, or of its nearest parent."""
        return self.places.get(self.nearest_key(key), self.name)


def read_text(path: Path, *, is_stored: bool = False) -> str:
    """Read the text of a YAML file; of one that is too long, only enough to refuse it. Raises
    `RefusedError`; for a file of a run or checkpoint (`is_stored`), also if it is a link or a pipe.
    """
    try:
        with files.read(path) if is_stored else path.open("rb") as stream:
            data = stream.read(4 * MAX_SIZE + 4)
    except OSError as error:
        reason = reason_not_opened(path, error)
        raise RefusedError(f"{path}: cannot read the config: {reason}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        encoding = "UTF-16" if data.startswith(_UTF16_STARTS) else "ENCODING"
        text = f"the config is not UTF-8; convert the file: iconv -f {encoding} -t UTF-8"
        raise RefusedError(f"{path}:{line}: {text}") from None


def parse_document(text: str, name: str) -> Document:
    """Parse the YAML text of a file `name`; raises `RefusedError` with the line of anything but
    plain, strict YAML.
    """
    if len(text) > MAX_SIZE:
        raise RefusedError(
            f"{name}: too long for a config: over {MAX_SIZE:,} characters; name another file"
        )
    document = Document(name)
    document.value = _parse(text, document)
    if not isinstance(document.value, dict):
        raise RefusedError(f"{name}: expected a mapping of settings such as `run_dir: ...`")
    return document


def set_value(document: Document, override: str) -> None:
    """Apply an override `a.b=value`, whose value is YAML."""
    name, equals, text = override.partition("=")
    place = f"--set {override[:60]}{'...' * (len(override) > 60)}"
    name = name.strip()
    *parents, last = name.split(".")
    if not equals or not all((*parents, last)):
        raise RefusedError(f"{place}: expected KEY=VALUE, such as --set train.max_steps=1000")
    target = document.value
    for depth, part in enumerate(parents, 1):
        if part not in target:
            target[part] = {}
            document.places[".".join(parents[:depth])] = place
        target = target[part]
        if not isinstance(target, dict):
            what = f"{'.'.join(parents[:depth])} is not a group of settings"
            raise RefusedError(f"{place}: {what}; set it as a whole")
    for by_key in (document.places, document.raw):
        for key in [key for key in by_key if key == name or key.startswith(f"{name}.")]:
            del by_key[key]
    document.places[name] = place
    target[last] = _parse(text, document, name, place)


def dump_document(value: object) -> str:
    """Return YAML that this and other readers read back to an equal value."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def quote_text(text: str) -> str:
    """Return a text as a YAML value in one line, in quotes if it needs them."""
    return text if _is_word(text) else _as_json(text)


def quote_value(value: object) -> str:
    """Return a value as YAML in one line, as a config or `--set` may have it."""
    return quote_text(value) if isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    """Return a value as JSON that is YAML, too: YAML has no control characters such as U+007F in
    quotes, and reads U+0085, U+2028 and U+2029 as ends of lines.
    """
    text = json.dumps(value, ensure_ascii=False)
    odd = "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
    return re.sub(odd, lambda char: f"\\u{ord(char[0]):04x}", text)


def _is_word(text: str) -> bool:
    """Whether YAML reads a text as itself without quotes."""
    special = text.lower() in _TRUE | _FALSE | _NULL
    return not special and re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", text) is not None


class _Dumper(yaml.SafeDumper):
    """Quotes every text that is not clearly a word, so that `1e-4`, `no` and the like stay text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _is_word(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _parse(text: str, document: Document, key: str = "", place: str = "") -> Any:
    """Parse YAML to the value of a dotted key; errors name `place`, or the line if it is empty."""
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return _value(document, node, key, place) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line, reason = _syntax_error(error)
    except yaml.reader.ReaderError as error:
        line, reason = text[: error.position].count("\n"), "a control character"
    except RecursionError:
        line, reason = 0, "nested too deeply for a config"
    except ValueError as error:  # `\U00110000`, or a YAML version of thousands of digits
        line, reason = 0, str(error)
    where = place or f"{document.name}:{line + 1}"
    raise RefusedError(f"{where}: invalid YAML: {reason}")


def _syntax_error(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Return the line, from 0, and the reason of a syntax error."""
    line = error.problem_mark.line if error.problem_mark else 0
    if isinstance(error, yaml.composer.ComposerError):  # an unknown alias, or a second document
        return line, ", ".join(filter(None, (error.context, error.problem)))
    reason = str(error.problem)
    if error.context_mark and error.context_mark.line < line:
        reason += f" ({error.context} that begins in line {error.context_mark.line + 1})"
    return line, f"{reason}; {_SYNTAX}"


def _value(document: Document, node: yaml.Node, key: str, place: str, depth: int = 0) -> Any:
    """Return the plain value of a YAML node, and record its place."""
    where = place or f"{document.name}:{node.start_mark.line + 1}"
    document.places[key] = where
    document.num_nodes += 1
    if document.num_nodes > MAX_NODES or depth > MAX_DEPTH:
        raise RefusedError(
            f"{where}: too large or too deeply nested for a config (aliases count too)"
        )
    if node.tag not in _TAGS:
        raise RefusedError(f"{where}: {key}: the tag {node.tag} is not allowed; remove it")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(document, node, key)
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(document, item, f"{key}.{i}", place, depth + 1)
            for i, item in enumerate(node.value)
        ]
    result: dict[str, Any] = {}
    for name_node, value_node in node.value:
        where = place or f"{document.name}:{name_node.start_mark.line + 1}"
        if not isinstance(name_node, yaml.ScalarNode):
            raise RefusedError(f"{where}: a key must be a word; write KEY: VALUE")
        name = name_node.value
        inner = f"{key}.{name}" if key else name
        if name == "<<":
            text = "merge keys are not supported; write the settings themselves"
            raise RefusedError(f"{where}: {inner}: {text}")
        if name in result:
            first = document.places[inner]
            raise RefusedError(f"{where}: {inner}: duplicate key, first given at {first}; keep one")
        result[name] = _value(document, value_node, inner, place, depth + 1)
        # the line of the key, not that of the value
        document.places[inner] = where
    return result


def _scalar(document: Document, node: yaml.ScalarNode, key: str) -> Any:
    """Return the value of a scalar: text, null, a boolean or a number."""
    text: str = node.value
    if "\0" in text:
        raise RefusedError(f"{document.places[key]}: {key}: contains a NUL character; remove it")
    if node.style is not None:
        return text
    document.raw[key] = text
    if text.lower() in _NULL:
        return None
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if len(text) > 40:  # no number of a config is that long, and int() of a huge one is slow
        return text
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text
