"""Read and check configs. An error names the file and line, the key, what was expected, and for a
misspelt key the most similar known one.
"""

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mtrain.config.corpora import (
    BRANCHES,
    KINDS,
    Corpus,
    FileCorpus,
    GeneratedCorpus,
    TextCorpus,
    table_kind,
)
from mtrain.config.languages import language_error
from mtrain.config.schema import (
    SECTIONS,
    AugmentConfig,
    Config,
    DataConfig,
    TrainConfig,
    expectation,
)
from mtrain.config.yaml_reader import (
    Document,
    parse_document,
    quote_text,
    read_text,
    set_value,
)
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.log import logger

SPECIAL = re.compile("<pad>|<unk>|</?s>|<0x[0-9A-F]{2}>")  # pieces of every vocabulary
GROUPED_DIGITS = re.compile(r"[1-9]\d{0,2}([.,]\d{3})+")  # as in 100.000 or 100,000
SPACED = "{!r} contains white space, which a piece cannot; write it without"  # of a tag or symbol
# Keys that were removed, with the value that had no effect.
REMOVED_KEYS: dict[tuple[str, str], object] = {("train", "shard_optimizer"): False}
PATHS = ("run_dir", "data.root", "tokenizer.path", "train.init_from")


def load_config(path: Path, overrides: list[str] | None = None) -> Config:
    """Read a config, apply overrides (`a.b=value`), and check it. For a path `configs/...`
    that does not exist, use the shipped config of that name. Raises `RefusedError`.
    """
    package = Path(__file__).parents[1]
    # in a clone, configs/ lies next to the package
    shipped = (package if (package / "configs").exists() else package.parent) / path
    if path.parts[:1] == ("configs",) and os.path.exists(shipped) and not os.path.exists(path):
        logger.info("%s: no such file; using the one that mtrain ships: %s", path, shipped)
        path = shipped
    if os.path.exists(path / "config.yaml"):  # unlike Path.exists, never raises
        raise RefusedError(f"{path}: is a run; give its config, {path / 'config.yaml'}")
    try:
        document = parse_document(read_text(path), str(path))
    except RefusedError as error:
        if path.suffix in (".yaml", ".yml") or not path.is_file():
            raise
        text = "is this a config? `mtrain init SRC TGT` makes one for two files of text"
        raise RefusedError(f"{error}; {text}") from None
    for override in overrides or []:
        set_value(document, override)
    return parse_config(document)


def load_stored_config(path: Path) -> Config:
    """Read the config in a run or checkpoint directory, whose paths are already expanded; raises
    `RefusedError`, also for a link or a pipe.
    """
    return parse_stored_config(read_text(path, is_stored=True), str(path))


def parse_stored_config(text: str, name: str) -> Config:
    """Check the text of a config in a run or checkpoint, possibly of an earlier version: a removed
    key is dropped if its value had no effect. Raises `RefusedError`.
    """
    document = parse_document(text, name)
    for (section, key), harmless in REMOVED_KEYS.items():
        values = document.value.get(section)
        if not isinstance(values, dict) or key not in values:
            continue
        where, value = document.where(f"{section}.{key}"), values.pop(key)
        if value != harmless:
            raise RefusedError(
                f"{where}: {section}.{key}: {value!r} is not supported any more; use the version "
                f"of mtrain that wrote this file, or change the value to {harmless!r}"
            )
        logger.info("%s: %s is not used any more", where, f"{section}.{key}")
    return parse_config(document, is_stored=True)


def parse_config(document: Document, *, is_stored: bool = False) -> Config:
    """Check a parsed document; raises `RefusedError` with one line per problem. Paths of a stored
    config are not expanded: it may come from another person, and must not contain values of this
    machine's environment.
    """
    if not is_stored and (tildes := [key for key in PATHS if document.raw.get(key) == "~"]):
        text = "YAML reads ~ as null; write ~/ for the home directory"
        raise RefusedError(*(f"{document.where(key)}: {key}: {text}" for key in tildes))
    try:
        config = Config.model_validate(document.value, context=is_stored)
    except ValidationError as error:
        raise RefusedError(*_explain(document, error.errors(include_url=False))) from None
    conflicts = list(_conflicts(config))
    if not is_stored:  # earlier versions allowed these settings, and their runs must load
        conflicts += _language_conflicts(config.data)
        if config.train.consistency is None and config.train.cutoff != TrainConfig().cutoff:
            text = "is for train.consistency, which is off; set that, too, or remove train.cutoff"
            conflicts.append(("train.cutoff", text))
        for key, corpus in config.data.corpora.items():
            if corpus.tag and corpus.tag.isalnum():
                text = "%s.tag: %s becomes a piece wherever text contains it; did you mean <%s>?"
                logger.warning(text, key, corpus.tag, corpus.tag)
        for symbol in config.tokenizer.user_symbols:
            if len(symbol.split()) != 1:
                conflicts.append(("tokenizer.user_symbols", SPACED.format(symbol)))
    problems = [f"{document.where(key)}: {key}: {text}" for key, text in conflicts]
    if problems:
        raise RefusedError(*problems)
    return config


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield key and message of each conflict between settings that are valid by themselves."""
    model, train, data = config.model, config.train, config.data
    if model.d_model % model.num_heads:
        text = f"{model.num_heads} does not divide d_model {model.d_model}; change one of the two"
        yield "model.num_heads", text
    if model.positions == "sinusoidal" and model.d_model % 2:
        text = f"{model.d_model} is odd, but sinusoidal positions need an even d_model; change it"
        yield "model.d_model", text
    for symbol, times in Counter(config.tokenizer.user_symbols).items():
        if SPECIAL.fullmatch(symbol):
            yield "tokenizer.user_symbols", f"{symbol} is a special piece already; remove it"
        elif times > 1:
            yield "tokenizer.user_symbols", f"{symbol} is listed twice; remove one"
    if train.max_tokens < data.max_length:
        yield (
            "train.max_tokens",
            f"{train.max_tokens} is below data.max_length {data.max_length}: "
            "the longest pair would not fit into a batch; raise train.max_tokens, or lower "
            "data.max_length",
        )
    if train.valid_every % train.save_every:
        text = f"{train.valid_every} is not a multiple of train.save_every {train.save_every}"
        yield "train.valid_every", f"{text}; change one of the two"
    if train.init_vocabulary == "own" and train.init_from is None:
        yield "train.init_vocabulary", "own needs a model to start from; set train.init_from"
    if (total := sum(train.augment.model_dump().values())) > 1 + 1e-9:
        yield "train.augment", f"fractions add up to {total:.4g}; their sum may be at most 1"
    yield from _corpus_conflicts(data)
    yield from _learning_rate_conflicts(train)


def _corpus_conflicts(data: DataConfig) -> Iterator[tuple[str, str]]:
    for key, corpus in data.corpora.items():
        if SPECIAL.fullmatch(corpus.tag or ""):
            yield f"{key}.tag", f"{corpus.tag} is a special piece already; use another tag"
        elif re.search(r"[\s\u2581]", corpus.tag or ""):
            yield f"{key}.tag", SPACED.format(corpus.tag)
        if corpus.weight != 1 and not key.startswith("data.train."):
            yield f"{key}.weight", "works in data.train only; scored sets keep every line"
        if corpus.model:
            yield from _synthesis_conflicts(key, corpus)
            continue
        if isinstance(corpus, FileCorpus) and (conflict := column_conflict(corpus)):
            yield f"{key}.{conflict[0]}", conflict[1]


def column_conflict(corpus: FileCorpus) -> tuple[str, str] | None:
    """Return a key of a table's entry, and why its columns do not fit the format."""
    numbers = [isinstance(column, int) for column in (corpus.src, corpus.tgt)]
    if any(numbers) and corpus.kind == "tmx":
        return "file", "languages of a .tmx file are codes such as en, not numbers"
    if corpus.kind == "tmx" and str(corpus.src).lower() == str(corpus.tgt).lower():
        return "tgt", f"{corpus.tgt} is the source's language as well"
    if any(numbers) and corpus.kind != "tsv":
        return "file", f"fields of a .{corpus.kind} file have names, not numbers"
    if numbers[0] != numbers[1]:
        return "file", "src and tgt must both be column numbers, or both names"
    return None


def _language_conflicts(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield a conflict for each unknown target language, on which BLEU depends, unless
    `data.bleu_tokenize` is set; warn of unknown source languages.
    """
    if data.src_lang == data.tgt_lang and (data.src_lang, data.tgt_lang) in data.directions:
        logger.warning(
            "data.tgt_lang: %s is the source language, too; change one unless this is intended",
            data.tgt_lang,
        )
    targets = {data.tgt_lang, *(data.languages(each)[1] for each in data.scored_corpora.values())}
    for key, section in {"data": data, **data.corpora}.items():
        for side in ("src_lang", "tgt_lang"):
            code = getattr(section, side)
            if not code or (text := language_error(code)) is None:
                continue
            if code not in targets:
                logger.warning("%s.%s: %s", key, side, text)
            elif data.bleu_tokenize is None:
                advice = "(BLEU depends on it; to keep it, set data.bleu_tokenize: 13a)"
                yield f"{key}.{side}", f"{text} {advice}"


def _synthesis_conflicts(key: str, corpus: Corpus) -> Iterator[tuple[str, str]]:
    if not key.startswith("data.train.") or isinstance(corpus, GeneratedCorpus):
        yield f"{key}.model", "is for files and datasets of data.train only"
    elif isinstance(corpus, FileCorpus) and corpus.kind == "tmx":
        yield f"{key}.file", "a .tmx file has both sides; give a .tsv, .jsonl or .parquet file"
    elif corpus.src == corpus.tgt and corpus.keep is not None:
        yield f"{key}.keep", "compares hypotheses with a reference; give src and tgt"
    elif corpus.src != corpus.tgt and corpus.keep is None:
        yield f"{key}.model", "makes the other side, but src and tgt are given; set keep: best"
    elif corpus.sample and corpus.keep is not None:
        yield f"{key}.keep", "chooses among the hypotheses of a beam; remove sample"
    if corpus.top_k and not corpus.sample:
        yield f"{key}.top_k", "is for sampling; set sample: true"


def _learning_rate_conflicts(train: TrainConfig) -> Iterator[tuple[str, str]]:
    schedule, warmup_steps = train.schedule, train.warmup_steps
    if train.lr_factor is not None and train.peak_lr is not None:
        yield "train.peak_lr", "give either lr_factor or peak_lr, not both"
    elif schedule != "noam" and train.lr_factor is not None:
        yield "train.lr_factor", f"is for schedule noam; {schedule} takes peak_lr"
    elif schedule != "noam" and train.peak_lr is None:
        yield "train.schedule", f"{schedule} needs train.peak_lr, the highest learning rate"
    if schedule in ("noam", "inverse_sqrt") and warmup_steps < 1:
        yield "train.warmup_steps", f"schedule {schedule} needs at least 1 warm-up step"
    if schedule in ("linear", "cosine") and warmup_steps >= train.max_steps:
        text = f"{warmup_steps} is not below train.max_steps {train.max_steps}; lower it"
        yield "train.warmup_steps", f"{text}, or raise train.max_steps"


def _explain(document: Document, errors: list[Any]) -> list[str]:
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
    is_text = any(each["type"] == "string_type" for each in errors)
    got = _shown(error["input"], raw, is_text)
    advice = next(filter(None, (_number_advice(each, raw) for each in errors)), "")
    advice = advice or _list_advice(key, error["input"])
    advice_on_file = _table_advice(error["input"]) if name == "file" else ""
    return f"{' or '.join([expected[0], *others])}, got {got}{advice}{purpose}{advice_on_file}"


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
    candidates = [*known, *(field for kind in kinds.values() for field in kind.model_fields)]
    if similar := difflib.get_close_matches(name, candidates, n=1, cutoff=0.6):
        return f"did you mean {f'{parent}.{similar[0]}' if parent else similar[0]}?"
    if meant := named_keys(name, parent):
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
    if "augment" in location[:-1]:
        return AugmentConfig
    kinds = [KINDS[str(part)] for part in location if part in KINDS]
    if kinds:
        return kinds[-1]
    return SECTIONS.get(str(location[0]), Config) if len(location) > 1 else Config


def table_entry(file: str) -> str:
    """Return an example of the entry that reads a table, with columns or languages to adapt; empty
    for the name of another file.
    """
    if file.endswith(".csv"):
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
    return repr(value)[:80] if isinstance(value, str) else str(raw or value)[:80]
