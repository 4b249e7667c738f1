"""The list of settings and the schema for editors: they hold what a config file holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from mtrain.config.advice import NO_SETTINGS, OTHER_NAMES
from mtrain.config.keys import SCHEMA, list_keys, make_schema
from mtrain.config.loading import parse_config
from mtrain.config.schema import SECTIONS, Config
from mtrain.config.yaml_reader import parse_document, quote_text, quote_value
from mtrain.runtime.errors import RefusedError

CONFIGS = Path(__file__).parents[2] / "configs"
ENTRY = {"src": "a.en", "tgt": "a.de"}
DATA: dict[str, Any] = {"src_lang": "en", "tgt_lang": "de", "train": [ENTRY], "valid": ENTRY}
SMALLEST: dict[str, Any] = {"run_dir": "run", "data": DATA}


def errors(value: object, schema: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """Validate as an editor does; the words of a schema that are used are all there is."""
    if "$ref" in schema:
        return errors(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    found = []
    for word in ("anyOf", "oneOf"):
        fits = [
            errors(value, {**each, "type": each.get("type")}, whole) == []
            for each in schema.get(word, [])
        ]
        if fits and (not any(fits) or (word == "oneOf" and sum(fits) > 1)):
            found.append(f"{word}: {value}")
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    types |= {"array": list, "object": dict, "null": type(None)}
    kind = schema.get("type")
    if kind and (
        not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return [*found, f"{value} is no {kind}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{value} is not {schema['const']}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{value} is not one of {schema['enum']}")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        found += [f"{key} is missing" for key in schema.get("required", []) if key not in value]
        for key, inner in value.items():
            named = [part for pattern, part in patterns.items() if re.search(pattern, key)]
            parts = [known[key]] if key in known else named
            if not parts and schema.get("additionalProperties") is False:
                found.append(f"{key} is unknown")
            found += [text for part in parts for text in errors(inner, part, whole)]
    if isinstance(value, list) and "items" in schema:
        found += [text for each in value for text in errors(each, schema["items"], whole)]
    return found


def check(config: object) -> list[str]:
    schema = make_schema()
    return errors(config, schema, schema)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_the_schema_takes_every_shipped_config(path: Path) -> None:
    config = parse_document(path.read_text(), path.name).value
    assert check(config) == []


ENTRIES = [
    ENTRY,
    {"src": "a.en", "model": "runs/x", "beam_size": 1, "weight": 2.0},
    {"tgt": "a.de", "model": ["runs/x", "runs/y"], "sample": True, "top_k": 5},
    {**ENTRY, "model": "runs/x", "keep": "best"},
    {"file": "a.tsv", "src": 0, "tgt": 1, "tag": "<2de>"},
    {"file": "a.jsonl", "src": "en", "model": "runs/x"},
    {"generated": "phrasebook", "split": "train", "pairs": 9},
    {"dataset": "wmt14", "name": "de-en", "split": "train", "src": "a.en", "tgt": "a.de"},
]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_the_schema_takes_what_a_config_takes(entry: dict[str, Any]) -> None:
    config = {**SMALLEST, "data": {**DATA, "train": [entry]}}
    parse_config(parse_document(yaml.safe_dump(config), "config"))
    assert check(config) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"src": "a.en"},
        {"model": "runs/x"},
        {**ENTRY, "fill": {"model": ["x"]}},
        {**ENTRY, "synthetic_side": "src"},
        {**ENTRY, "wieght": 1.0},
        {**ENTRY, "weight": "much"},
        {"generated": "phrasebook", "split": "train", "pairs": 9, "model": "x"},
    ],
    ids=str,
)
def test_the_schema_refuses_what_a_config_refuses(entry: dict[str, Any]) -> None:
    config = {**SMALLEST, "data": {**DATA, "train": [entry]}}
    with pytest.raises(RefusedError):
        parse_config(parse_document(yaml.safe_dump(config), "config"))
    assert check(config) != []


def test_the_schema_refuses_a_name_of_a_test_set_that_a_config_refuses() -> None:
    for name, is_allowed in (("test2016", True), ("news test", False)):
        assert (check({**SMALLEST, "data": {**DATA, "test": {name: ENTRY}}}) == []) == is_allowed


def test_the_schema_for_editors_is_that_of_the_code() -> None:
    """If not: mtrain config schema > mtrain/config/schema.json."""
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == make_schema()


def test_the_list_has_every_setting_with_its_sentence_and_default() -> None:
    keys = list_keys()
    assert len(set(keys)) == len(keys)
    listed = {key.name: key for key in keys}
    for name, section in SECTIONS.items():
        for field, info in section.model_fields.items():
            if isinstance(info.default, BaseModel):
                inner = {f"{name}.{field}.{each}" for each in type(info.default).model_fields}
                assert inner <= set(listed)
                continue
            key = listed[f"{name}.{field}"]
            assert key.text == info.description
            if info.is_required():
                assert (key.default, key.type.endswith(", required")) == ("", True)
            else:
                assert parse_document(f"a: {key.default}", "a").value == {"a": info.default}
    assert set(Config.model_fields) - set(SECTIONS) <= set(listed)
    assert listed["train.schedule"].type == "noam | inverse_sqrt | linear | cosine | constant"
    assert listed["train.threads"].type == "auto | integer from 1 to 4096"
    assert listed["model.dropout"].type == "number from 0 to below 1"
    assert listed["data.valid"].type == "corpus | list of corpus, required"
    assert listed["data.train.N.model"].type == "text | list of text"
    assert all(key.text for key in listed.values())


def test_descriptions_are_wrapped_between_words() -> None:
    for key in list_keys():
        setting, *wrapped = key.lines(40)
        assert setting == f"{key.name}: {key.default}  # {key.type}"
        assert all(len(line) <= 40 and line.startswith("    ") for line in wrapped)
        assert " ".join(line[4:] for line in wrapped) == key.text
    (key,) = list_keys("train.metric")
    assert len(key.lines(1000)) == 2
    assert key.lines(1) == key.lines(24)  # a terminal without room


def test_a_prefix_chooses_and_an_unknown_one_is_refused() -> None:
    assert {key.name.partition(".")[0] for key in list_keys("decode")} == {"decode"}
    assert [key.name for key in list_keys("warmup")] == ["train.warmup_steps"]
    for words in ("learning_rate", "Learning rate"):  # in descriptions only
        assert "train.peak_lr" in {key.name for key in list_keys(words)}
    with pytest.raises(RefusedError, match=r"did you mean train\.warmup_steps\?"):
        list_keys("warmpu_steps")


def test_names_of_other_programs_lead_to_keys() -> None:
    keys = {key.name for key in list_keys()}
    assert set(OTHER_NAMES.values()) <= keys
    assert not {*OTHER_NAMES, *NO_SETTINGS} & {key.rpartition(".")[2] for key in keys}


# a NUL character is refused
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@example("".join(map(chr, range(0x7F, 0xA1))) + "\u2028 \u2029\n\ufeff\ufffe\uffff\U0001f600")
def test_a_quoted_text_is_read_back_as_it_was(text: str) -> None:
    for value, quoted in ((text, quote_text(text)), ([text], quote_value([text]))):
        assert parse_document(f"key: {quoted}", "a.yaml").value["key"] == value
        assert "\n" not in quoted
