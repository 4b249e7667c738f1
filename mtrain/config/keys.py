"""Documentation of the settings: a JSON schema for editors, and a list of all keys."""

import difflib
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrain.config.corpora import INT_LIMIT, KINDS, GeneratedCorpus, Synthesis
from mtrain.config.schema import SECTIONS, Config
from mtrain.runtime.errors import RefusedError

SCHEMA = Path(__file__).absolute().with_name("schema.json")  # output of `mtrain config schema`
ENTRY = "data.train.N"  # the name of a corpus of the list
BOUND_WORDS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("exclusiveMaximum", "to below"),
)
TYPE_WORDS = {"string": "text", "boolean": "true | false"}


@dataclass(frozen=True)
class Key:
    """A setting: dotted name, default, type in words and description."""

    name: str
    default: str
    type: str
    text: str

    def lines(self, width: int) -> list[str]:
        """Return the setting with its default as in a config, and its wrapped description."""
        wrapped = textwrap.wrap(self.text, max(20, width - 4), break_on_hyphens=False)
        return [f"{self.name}: {self.default}  # {self.type}", *(f"    {line}" for line in wrapped)]


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of a config file, in which a corpus with `model` may have one side."""
    schema = Config.model_json_schema()
    for kind in KINDS.values():
        entry = schema["$defs"][kind.__name__]
        settings = entry["properties"]
        del settings["synthetic_side"]  # not a key: the loader derives it
        if kind is GeneratedCorpus:  # has both sides without a model
            for name in settings.keys() & Synthesis.model_fields:
                del settings[name]
            continue
        model = settings["model"]
        settings["model"] = {
            "description": model.pop("description"),
            "anyOf": [model["items"], model],
        }
        entry["required"] = [key for key in entry["required"] if key not in ("src", "tgt")]
        sides = ("src", "tgt"), ("src", "model"), ("tgt", "model")
        entry["anyOf"] = [{"required": list(names)} for names in sides]
    schema["$defs"]["DataConfig"]["properties"]["test"]["additionalProperties"] = False
    for name in SECTIONS:
        schema["properties"][name].pop("default", None)  # each setting has its own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def list_keys(prefix: str = "") -> list[Key]:
    """Return the settings whose names begin with `prefix`, or if there are none, those whose names
    contain it, or else those whose descriptions do, in the order of the manual; raises
    `RefusedError` if none do.
    """
    schema = make_schema()
    keys = list(dict.fromkeys(_keys(schema, schema["$defs"])))
    found = [key for key in keys if key.name.startswith(prefix)]
    found = found or [key for key in keys if prefix in key.name]
    words = prefix.replace("_", " ").lower()
    found = found or [key for key in keys if words in key.text.lower()]
    if not found:
        similar = difflib.get_close_matches(prefix, [*SECTIONS, *(key.name for key in keys)], n=1)
        advice = f"did you mean {similar[0]}?" if similar else "`mtrain config keys` lists all"
        raise RefusedError(f"{prefix}: no setting has this in its name or description; {advice}")
    return found


def _keys(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> Iterator[Key]:
    """Yield the settings of a section, and those of the sections in it."""
    for name, setting in schema["properties"].items():
        if "$ref" in setting:
            section = definitions[setting["$ref"].rpartition("/")[2]]
            yield from _keys(section, definitions, f"{prefix}{name}.")
            continue
        default = setting.get("default", "")
        shown = default if isinstance(default, str) else json.dumps(default)
        type_ = _type(setting) + ", required" * (name in schema.get("required", ()))
        yield Key(prefix + name, shown, type_, setting["description"])
        if f"{prefix}{name}.N" == ENTRY:
            for kind in KINDS.values():
                yield from _keys(definitions[kind.__name__], definitions, f"{ENTRY}.")


def _type(setting: dict[str, Any]) -> str:
    """Describe the type of a setting in words, given its schema."""
    if "$ref" in setting:
        return "corpus"
    if "const" in setting or "enum" in setting:
        return " | ".join(setting.get("enum", [setting.get("const")]))
    for union in ("anyOf", "oneOf"):
        if union in setting:
            return " | ".join(dict.fromkeys(map(_type, setting[union])))
    if setting["type"] == "array":
        return f"list of {_type(setting['items'])}"
    if setting["type"] == "object":
        return "corpora by name"
    bounds = [
        f"{word} {setting[key]}"
        for key, word in BOUND_WORDS
        if setting.get(key, INT_LIMIT) != INT_LIMIT
    ]
    return " ".join([TYPE_WORDS.get(setting["type"], setting["type"]), *bounds])
