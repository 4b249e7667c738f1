"""Find the existing vocabulary of a config: from its run, `train.init_from` or `tokenizer.path`."""

from collections.abc import Set
from pathlib import Path

from mtrain.config.schema import Config, TokenizerConfig
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import layout, reader
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.errors import RefusedError, UserError

# Keys of `tokenizer` that an existing vocabulary must match, if `path` does not name one.
MATCHED_KEYS = {"vocab_size", "model_type", "normalization"}
NEW_MATCHED_KEYS = {"byte_fallback", "split_digits"}  # for new runs: older ones lack this check


def existing_vocabulary(config: Config) -> Tokenizer | None:
    """Load the vocabulary of the run, else of `train.init_from` (if `init_vocabulary: theirs`),
    else of `tokenizer.path`; None if there is none. Raises `RefusedError` if it does not match
    the config, if a tag or symbol is not one of its user symbols, or if it has no merges, which
    `train.subword_sampling` needs.
    """
    settings = config.tokenizer
    init_from = config.train.init_from if config.train.init_vocabulary == "theirs" else None
    run = RunDirectory(Path(config.run_dir))
    keys = MATCHED_KEYS if run.has_begun else MATCHED_KEYS | NEW_MATCHED_KEYS
    if settings.path:
        keys = {"path"}
    other = "a vocabulary trained with it in tokenizer.user_symbols"
    if run.tokenizer.exists():
        file = run.tokenizer
        tokenizer = _load_of_run(file)
        if init_from is None:
            advice = "restore the settings that it was made with, or choose another run_dir"
            _check_settings(tokenizer, file, settings, keys, advice)
    elif init_from is not None:
        file = init_checkpoint(init_from) / layout.TOKENIZER
        tokenizer = Tokenizer.load(file)
        given = keys & settings.model_fields_set
        names = ", ".join(f"tokenizer.{key}" for key in sorted(given))
        advice = f"remove {names}, or set train.init_vocabulary: own"
        _check_settings(tokenizer, file, settings, given, advice)
        other = "train a new vocabulary (train.init_vocabulary: own)"
    elif settings.path is not None:
        file = Path(settings.path)
        tokenizer = _load_named(file)
    else:
        return None
    _check_symbols(tokenizer, file, config, other)
    if config.train.subword_sampling is not None and not tokenizer.is_bpe:
        raise RefusedError(
            f"train.subword_sampling: the vocabulary {file} has no merges to drop; use one of "
            "tokenizer.model_type: bpe, or remove train.subword_sampling"
        )
    return tokenizer


def init_checkpoint(init_from: str) -> Path:
    """Return the checkpoint that `train.init_from` names; raises `UserError`."""
    try:
        return reader.resolve(Path(init_from))
    except UserError as error:
        raise UserError(f"train.init_from: {error}") from None


def _load_of_run(file: Path) -> Tokenizer:
    """Load the vocabulary of a run; the error for a damaged one says where its copies are."""
    try:
        return Tokenizer.load(file)
    except UserError as error:
        raise UserError(f"{error}; restore it: each checkpoint of the run has a copy") from None


def _load_named(file: Path) -> Tokenizer:
    """Load the vocabulary that `tokenizer.path` names."""
    try:
        return Tokenizer.load(file)
    except UserError as error:
        raise UserError(f"tokenizer.path: {error}") from None


def _check_settings(
    tokenizer: Tokenizer, file: Path, settings: TokenizerConfig, keys: Set[str], advice: str
) -> None:
    """Raise `RefusedError` unless a vocabulary has the settings with these names."""
    if "path" in keys:
        is_same = tokenizer.fingerprint == _load_named(Path(settings.path or "")).fingerprint
        different = [] if is_same else ["tokenizer.path"]
    else:
        actual = tokenizer.settings
        changed = (key for key in sorted(keys) if getattr(settings, key) != actual[key])
        different = [f"tokenizer.{key}" for key in changed]
    if different:
        raise RefusedError(
            f"{file}: this vocabulary of {tokenizer.vocab_size:,} pieces is not the one that "
            f"the config describes ({', '.join(different)}); {advice}"
        )


def _check_symbols(tokenizer: Tokenizer, file: Path, config: Config, other: str) -> None:
    """Raise `RefusedError` for a tag or symbol of the config that a vocabulary does not have;
    `other` names another vocabulary to use.
    """
    corpora = config.data.corpora.items()
    symbols = [(f"{key}.tag", corpus.tag) for key, corpus in corpora if corpus.tag]
    if not RunDirectory(Path(config.run_dir)).has_begun:  # older runs lack this check
        symbols += [("tokenizer.user_symbols", each) for each in config.tokenizer.user_symbols]
    for key, symbol in symbols:
        if symbol not in tokenizer.user_symbols:
            raise RefusedError(
                f"{key}: {symbol} is not a user symbol of {file}; use one that is, or {other}"
            )
