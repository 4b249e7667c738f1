"""Read and check configs.

1. yaml_reader   text -> a document: values, and where each was written
2. schema        the types and bounds of values; `advice` explains what is wrong
3. conflicts     settings that are valid by themselves, but not together
"""

import os
from pathlib import Path

from pydantic import ValidationError

from mtrain.config.advice import explain
from mtrain.config.conflicts import conflicts, new_conflicts
from mtrain.config.schema import Config
from mtrain.config.yaml_reader import Document, parse_document, read_text, set_value
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.log import logger

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
    may_be_shipped = path.parts[:1] == ("configs",) and not os.path.exists(path)
    if may_be_shipped and os.path.exists(shipped):
        logger.info("%s: no such file; using the one that mtrain ships: %s", path, shipped)
        path = shipped
    if os.path.exists(path / "config.yaml"):  # unlike Path.exists, never raises
        raise RefusedError(f"{path}: is a run; give its config, {path / 'config.yaml'}")
    if os.path.isdir(path):
        raise RefusedError(f"{path}: is a directory; give a config file")
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
        where = document.where(f"{section}.{key}")
        value = values.pop(key)
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
    tildes = [key for key in PATHS if document.raw.get(key) == "~"]
    if tildes and not is_stored:
        text = "YAML reads ~ as null; write ~/ for the home directory"
        raise RefusedError(*(f"{document.where(key)}: {key}: {text}" for key in tildes))
    try:
        config = Config.model_validate(document.value, context=is_stored)
    except ValidationError as error:
        raise RefusedError(*explain(document, error.errors(include_url=False))) from None
    found = list(conflicts(config))
    if not is_stored:
        found += new_conflicts(config)
    if found:
        raise RefusedError(*(f"{document.where(key)}: {key}: {text}" for key, text in found))
    return config
