"""What a person reads about a wrong config: for each key what is wrong, what is expected, and what
was probably meant.
"""

import difflib
import math
import re
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from mtrain.config.corpora import BRANCHES, KINDS, TextCorpus, table_kind
from mtrain.config.schema import SECTIONS, AugmentConfig, Config, expectation
from mtrain.config.yaml_reader import Document, quote_text

GROUPED_DIGITS = re.compile(r"[1-9]\d{0,2}([.,]\d{3})+")  # as in 100.000 or 100,000


def explain(document: Document, errors: list[Any]) -> list[str]:
    """Describe pydantic's errors, one line per key, in the order of the document."""
    # For a value that fits no branch of a union, each branch gives an error.
    by_key: dict[str, list[Any]] = {}
    for error in errors:
        key = ".".join(str(part) for part in error["loc"] if part not in BRANCHES)
        if error["type"] not in ("extra_forbidden", "missing"):
            key = document.nearest_key(key)  # without the name of a union's branch
        by_key.setdefault(key, []).append(error)
    places = [*document.places.values(), document.name]
    keys = sorted(by_key, key=lambda key: places.index(document.where(key)))
    return [
        f"{document.where(key)}: {key or 'config'}: {_describe(document, key, by_key[key])}"
        for key in keys
    ]


def _describe(document: Document, key: str, errors: list[Any]) -> str:
    """Describe the errors of a key: what is expected, the value, and the purpose of the setting."""
    error = errors[-1]
    section = _section_of(error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key; {_advice(key, section)}"
    name = next((part for part in reversed(error["loc"]) if part in section.model_fields), "")
    meaning = section.model_fields[name].description if name else None  # None for a section
    purpose = f" ({meaning})" if meaning else ""
    if error["type"] == "missing":
        sides = (error["input"].get(side) for side in ("src", "tgt") if section is TextCorpus)
        advice = next(filter(None, map(_table_advice, sides)), "")
        return f"required, but missing{purpose}{advice}"
    expected = [expectation(each) for each in errors]
    if not expected[-1].startswith("should"):
        return expected[-1]
    others = [text.removeprefix("should be ") for text in expected[1:]]
    raw = document.raw.get(key)
    got = _shown(error["input"], raw, error["type"] == "string_type")
    advice = next(filter(None, (_number_advice(each, raw) for each in errors)), "")
    advice = advice or _list_advice(key, error["input"])
    on_table = _table_advice(error["input"])
    return f"{' or '.join([expected[0], *others])}, got {got}{advice}{purpose}{on_table}"


# Names in the configs of fairseq, OpenNMT-py, JoeyNMT and transformers that no key resembles.
OTHER_NAMES = {
    "accum_count": "train.accum_steps",
    "alpha": "decode.length_penalty",
    "batch_multiplier": "train.step_batches",
    "batch_size": "train.max_tokens",
    "beam_alpha": "decode.length_penalty",
    "bf16": "train.precision",
    "clip_grad_norm": "train.clip_norm",
    "decoder_layers": "model.num_decoder_layers",
    "dev": "data.valid",
    "early_stopping": "train.patience",
    "embedding_dim": "model.d_model",
    "encoder_attention_heads": "model.num_heads",
    "encoder_embed_dim": "model.d_model",
    "encoder_ffn_embed_dim": "model.d_ff",
    "encoder_layers": "model.num_encoder_layers",
    "epochs": "train.max_steps",
    "ff_size": "model.d_ff",
    "fp16": "train.precision",
    "gradient_accumulation_steps": "train.step_batches",
    "heads": "model.num_heads",
    "hidden_size": "model.d_model",
    "learning_rate": "train.peak_lr",
    "learning_rate_factor": "train.lr_factor",
    "lenpen": "decode.length_penalty",
    "logging_freq": "train.log_every",
    "max_grad_norm": "train.clip_norm",
    "max_output_length": "decode.max_len_b",
    "max_sent_length": "data.max_length",
    "max_update": "train.max_steps",
    "model_dir": "run_dir",
    "num_train_epochs": "train.max_steps",
    "random_seed": "seed",
    "report_every": "train.log_every",
    "save_dir": "run_dir",
    "scheduling": "train.schedule",
    "train_steps": "train.max_steps",
    "transformer_ff": "model.d_ff",
    "update_freq": "train.step_batches",
    "valid_steps": "train.valid_every",
    "validation_freq": "train.valid_every",
}

# Their settings that mtrain does not have.
NO_SETTINGS = ("arch", "criterion", "weight_decay")


def _advice(key: str, section: type[BaseModel]) -> str:
    """Suggest a known key instead of an unknown one of a section."""
    parent, _, name = key.rpartition(".")
    if parent and section is Config:
        return f"dotted names are for --set; write {name} below {parent}:"
    if name in OTHER_NAMES:
        return f"did you mean {OTHER_NAMES[name]}?"
    if name in NO_SETTINGS:
        return "mtrain has no such setting; remove it"
    known = [field for field in section.model_fields if field != "synthetic_side"]
    kinds = KINDS if section in KINDS.values() else {}
    if owners := [kind[1:-1] for kind, other in kinds.items() if name in other.model_fields]:
        return f"it is for entries with {' or '.join(owners)}; known here: {', '.join(known)}"
    meant = named_keys(name, parent)
    is_elsewhere = any(each.rpartition(".")[2] == name for each in meant)
    candidates = [*known, *(field for kind in kinds.values() for field in kind.model_fields)]
    similar = difflib.get_close_matches(name, candidates, n=1)
    if similar and not is_elsewhere:
        meant = [f"{parent}.{similar[0]}" if parent else similar[0]]
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    return f"known here: {', '.join(known)}"


def named_keys(name: str, parent: str = "") -> list[str]:
    """Return the keys that `name` may stand for, at most two, those of the section `parent` first:
    `lr` -> train.lr_factor and train.peak_lr.
    """
    if name in OTHER_NAMES:
        return [OTHER_NAMES[name]]
    keys = [(s, field) for s, section in SECTIONS.items() for field in section.model_fields]
    same = [f"{s}.{field}" for s, field in keys if field == name]
    same += [name] if name in Config.model_fields else []
    keys.sort(key=lambda key: key[0] != parent)
    longer = [f"{s}.{field}" for s, field in keys if name in field.split("_")]
    return same[:1] or longer[:2]


def _section_of(location: tuple[str | int, ...]) -> type[BaseModel]:
    """Return the section that holds the key of an error."""
    if location[:-1] == ("train", "augment"):
        return AugmentConfig
    kinds = [KINDS[str(part)] for part in location if part in KINDS]
    if kinds:
        return kinds[-1]
    return SECTIONS.get(str(location[0]), Config) if len(location) > 1 else Config


def table_entry(file: str) -> str:
    """Return an example of the entry that reads a table, with columns or languages to adapt; empty
    for the name of another file.
    """
    if file.endswith((".csv", ".json")):
        entry = "{dataset: FOLDER, split: train, src: en, tgt: de}"
        return f"{entry} (move the file to a FOLDER of its own)"
    kind = table_kind(file)
    columns = "src: 0, tgt: 1" if kind == "tsv" else "src: en, tgt: de"
    return kind and f"{{file: {quote_text(file)}, {columns}}}"


def _table_advice(file: object) -> str:
    """Return how to write the entry of a table; an empty text for another file."""
    entry = table_entry(file) if isinstance(file, str) else ""
    return f"; for a table, with its columns or languages: {entry}" if entry else ""


def _list_advice(key: str, value: object) -> str:
    """Return how to write one corpus where a list or named sets are expected; an empty text for
    other keys.
    """
    if key == "data.train" and isinstance(value, dict):
        return "; write it as an item of a list, after a dash or in brackets"
    if re.fullmatch(r"data\.test(\.(src|file|dataset|generated))?", key):
        return "; each set needs a name: {NAME: {...}}"
    return ""


def _number_advice(error: Any, raw: str | None) -> str:
    """Return how to write the number that is meant, if a number is expected; else an empty text."""
    written = raw or str(error["input"])
    if error["type"] == "int_type" and GROUPED_DIGITS.fullmatch(written):
        return f"; write {re.sub('[.,]', '', written)}, if these are thousands"
    with suppress(ValueError):
        if error["type"] in ("int_type", "float_type") and isinstance(error["input"], str | float):
            number = float(error["input"])
            if number.is_integer():
                return f"; write {int(number)}{'' if raw else ' without quotes'}"
            if error["type"] == "float_type" and math.isfinite(number):
                return f"; write {number} without quotes"
    return ""


def _shown(value: object, raw: str | None, is_text: bool) -> str:
    """Show a value as it was written, with advice if text is expected and YAML reads a boolean."""
    if isinstance(value, bool) and raw is not None and is_text:
        read = "" if raw.lower() in ("true", "false") else ", which YAML reads as a boolean"
        return f'{raw}{read}: write "{raw}" in quotes if the word is meant'
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    return repr(value)[:80] if isinstance(value, str) else str(raw or value)
