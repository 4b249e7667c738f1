"""From YAML to a checked config. Everything wrong is refused with file and line, the key, what was
expected, and the nearest known key for a misspelt one.
"""

import difflib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mtrain.config.schema import (
    KINDS,
    REMOVED_KEYS,
    Config,
    Corpus,
    DataConfig,
    DecodeConfig,
    FileCorpus,
    FilterConfig,
    ModelConfig,
    Section,
    TokenizerConfig,
    TrainConfig,
    corpus_kind,
    expectation,
)
from mtrain.config.yaml_reader import (
    Document,
    Key,
    dotted,
    parse_document,
    read_document,
    read_text,
    set_value,
)
from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.log import logger


def load_config(path: Path, overrides: list[str] | None = None) -> Config:
    """Read, override (`a.b=value`) and check a config; raises `RefusedError`."""
    document = read_document(path)
    for override in overrides or []:
        set_value(document, override)
    return parse_config(document)


def load_stored_config(path: Path) -> Config:
    """Read the config that a run or a checkpoint keeps, whose paths are written out; raises
    `RefusedError`, also for a link or a pipe.
    """
    return parse_stored_config(read_text(path, partial(files.read, path)), str(path))


def parse_stored_config(text: str, name: str) -> Config:
    """Check the text of a config that a run or a checkpoint stores, possibly of an earlier version:
    a removed key is dropped if it asked for nothing; raises `RefusedError`.
    """
    document = parse_document(text, name)
    for (section, key), harmless in REMOVED_KEYS.items():
        values = document.value.get(section)
        if not isinstance(values, dict) or key not in values:
            continue
        where, value = document.where((section, key)), values.pop(key)
        if value != harmless:
            raise RefusedError(
                f"{where}: {section}.{key}: {value!r} is not supported any more; use the version "
                f"of mtrain that wrote it, or change it to {harmless!r} there"
            )
        logger.info("%s: %s is not used any more", where, f"{section}.{key}")
    return parse_config(document, is_stored=True)


def parse_config(document: Document, *, is_stored: bool = False) -> Config:
    """Check a parsed document; raises `RefusedError` with one line per violation. Paths of a stored
    config are not expanded: it may be somebody else's, and this machine's environment must not get
    into its text.
    """
    try:
        config = Config.model_validate(document.value, context=is_stored)
    except ValidationError as error:
        findings = dict.fromkeys(_explain(document, error.errors(include_url=False)))
        raise RefusedError(*findings) from None
    problems = [f"{document.where(key)}: {dotted(key)}: {text}" for key, text in _conflicts(config)]
    if problems:
        raise RefusedError(*problems)
    return config


def _conflicts(config: Config) -> Iterator[tuple[Key, str]]:
    """Yield violations between settings that are each valid."""
    model, train, data = config.model, config.train, config.data
    if model.d_model % model.num_heads:
        yield ("model", "num_heads"), f"{model.num_heads} does not divide d_model {model.d_model}"
    if model.positions == "sinusoidal" and model.d_model % 2:
        yield (
            ("model", "d_model"),
            f"sinusoidal positions need an even d_model, not {model.d_model}",
        )
    symbols = config.tokenizer.user_symbols
    for symbol in symbols:
        if symbol in ("<pad>", "<unk>", "<s>", "</s>"):
            yield ("tokenizer", "user_symbols"), f"{symbol} is a special piece already"
        elif symbols.count(symbol) > 1:
            yield ("tokenizer", "user_symbols"), f"{symbol} is listed twice"
    if train.max_tokens < data.max_length:
        yield (
            ("train", "max_tokens"),
            f"{train.max_tokens} is below data.max_length {data.max_length}: "
            "the longest pair would not fit into a batch",
        )
    if train.valid_every % train.save_every:
        yield (
            ("train", "valid_every"),
            f"{train.valid_every} is not a multiple of train.save_every {train.save_every}",
        )
    yield from _corpus_conflicts(data)
    yield from _learning_rate_conflicts(train)


def _corpus_conflicts(data: DataConfig) -> Iterator[tuple[Key, str]]:
    corpora: list[tuple[Key, Corpus]] = [
        *((("data", "train", number), corpus) for number, corpus in enumerate(data.train)),
        (("data", "valid"), data.valid),
        *((("data", "test", name), corpus) for name, corpus in data.test.items()),
    ]
    for key, corpus in corpora:
        if corpus.weight != 1 and key[1] != "train":
            yield (
                (*key, "weight"),
                "is for training corpora only; sets that are scored keep every line",
            )
        if not isinstance(corpus, FileCorpus):
            continue
        numbers = [isinstance(column, int) for column in (corpus.src, corpus.tgt)]
        if any(numbers) and corpus.kind == "tmx":
            yield (*key, "file"), "languages of a .tmx file are codes such as en, not numbers"
        elif corpus.kind == "tmx" and str(corpus.src).lower() == str(corpus.tgt).lower():
            yield (*key, "tgt"), f"{corpus.tgt} is the source's language, too"
        elif any(numbers) and corpus.kind != "tsv":
            yield (*key, "file"), f"fields of a .{corpus.kind} file have names, not numbers"
        elif numbers[0] != numbers[1]:
            yield (*key, "file"), "src and tgt are both numbers of columns, or both names"


def _learning_rate_conflicts(train: TrainConfig) -> Iterator[tuple[Key, str]]:
    if train.lr_factor is not None and train.peak_lr is not None:
        yield ("train", "peak_lr"), "give either lr_factor or peak_lr, not both"
    elif train.schedule != "noam" and train.lr_factor is not None:
        yield ("train", "lr_factor"), f"is for schedule noam; {train.schedule} takes peak_lr"
    elif train.schedule != "noam" and train.peak_lr is None:
        yield (
            ("train", "schedule"),
            f"{train.schedule} needs train.peak_lr, the highest learning rate",
        )
    if train.schedule in ("noam", "inverse_sqrt") and train.warmup_steps < 1:
        yield ("train", "warmup_steps"), f"schedule {train.schedule} needs at least 1 warm-up step"
    if train.schedule in ("linear", "cosine") and train.warmup_steps >= train.max_steps:
        yield (
            ("train", "warmup_steps"),
            f"{train.warmup_steps} is not below max_steps {train.max_steps}",
        )


def _explain(document: Document, errors: list[Any]) -> Iterator[str]:
    """Turn pydantic's errors into lines for people; those of a union's branches become one line."""
    wrong: dict[Key, list[str]] = {}
    for error in errors:
        key: Key = tuple(part for part in error["loc"] if part not in KINDS)
        kind = error["type"]
        if kind == "extra_forbidden":
            yield _explain_unknown(document, key)
        elif kind == "missing":
            place = document.where(key[:-1])
            yield f"{place}: {dotted(key)}: required, but missing{_hint(key)}"
        else:
            while key and not document.has(key):  # it ends in the name of a union's branch
                key = key[:-1]
            wrong.setdefault(key, []).append(_expectation(error))
    for key, found in wrong.items():
        first, *others = dict.fromkeys(found)
        text = " or ".join((first, *(other.removeprefix("should be ") for other in others)))
        if text.startswith("should"):
            text += f", got {_shown(document, key)}{_purpose(key)}"
        yield f"{document.where(key)}: {dotted(key) or 'config'}: {text}"


def _expectation(error: Any) -> str:
    if error["type"] == "value_error":
        return expectation(str(error["ctx"]["error"]))
    if error["type"] in ("model_type", "model_attributes_type", "dict_type", "union_tag_not_found"):
        return "should be a mapping of settings"
    return expectation(error["msg"])


def _explain_unknown(document: Document, key: Key) -> str:
    section = _section_at(key[:-1], document.at(key[:-1]))
    known = list(section.model_fields) if section else []
    near = difflib.get_close_matches(str(key[-1]), known, n=1, cutoff=0.6)
    elsewhere = [f"{s}.{key[-1]}" for s, m in _sections().items() if key[-1] in m.model_fields]
    if near:
        advice = f"did you mean {dotted((*key[:-1], near[0]))}?"
    elif elsewhere:
        advice = f"did you mean {elsewhere[0]}?"
    else:
        advice = f"known here: {', '.join(known)}"
    return f"{document.where(key)}: {dotted(key)}: unknown key; {advice}"


def _hint(key: Key) -> str:
    """Describe what is missing at a key."""
    if key[:1] == ("data",) and len(key) > 2:
        return (
            "; a corpus is {src, tgt} or {file, src, tgt} or {dataset, split, src, tgt} or "
            "{generated, split, pairs}"
        )
    return _purpose(key)


def _purpose(key: Key) -> str:
    """Return in brackets what a setting is for."""
    section = _section_at(key[:-1], None) if len(key) in (1, 2) else None
    field = section.model_fields.get(str(key[-1])) if section else None
    return f" ({field.description})" if field is not None and field.description else ""


def _shown(document: Document, key: Key) -> str:
    """Show a value as it was written, with advice for YAML's boolean words."""
    value, raw = document.at(key), document.raw.get(key)
    if isinstance(value, bool) and raw is not None and raw.lower() not in ("true", "false"):
        return f'{raw}, which YAML reads as {str(value).lower()}: write "{raw}" in quotes'
    if isinstance(value, bool) and raw is not None:
        return f'{raw}: write "{raw}" in quotes if the word is meant'
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    return (
        f"{value!r}"[:80] if isinstance(value, str) else str(raw if raw is not None else value)[:80]
    )


def _sections() -> dict[str, type[Section]]:
    return {
        "data": DataConfig,
        "filter": FilterConfig,
        "tokenizer": TokenizerConfig,
        "model": ModelConfig,
        "train": TrainConfig,
        "decode": DecodeConfig,
    }


def _section_at(key: Key, value: object) -> type[Section] | None:
    """Return the section with the keys at `key`."""
    if not key:
        return Config
    if len(key) == 1:
        return _sections().get(str(key[0]))
    return KINDS.get(corpus_kind(value) or "")
