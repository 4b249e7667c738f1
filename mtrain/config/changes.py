"""Compare two configs, and list the settings that may change between the starts of a run."""

from mtrain.config.schema import SECTIONS, Config

# Sections and settings that may change between starts of a run; corpora are compared by content.
FREE_KEYS = (
    "run_dir",
    "data.root",
    "data.train",
    "data.valid",
    "data.test",
    "data.workers",
    "data.allow_swapped",
    "data.allow_overlap",
    "decode",
    "train.max_steps",
    "train.patience",
    "train.log_every",
    "train.tensorboard",
    "train.keep_checkpoints",
    "train.average_last",
)
# Settings of `train` that are compared after they are resolved for a machine, not as written.
# `compile` comes last: what its `auto` means depends on device and packing.
MACHINE_KEYS = ("device", "threads", "precision", "packing", "compile")
# Settings of `train` that are compared with the number of micro-batches per step in `run.json`.
STEP_KEYS = ("accum_steps", "step_batches")


def changed_keys(old: Config, new: Config) -> list[tuple[str, object, object]]:
    """List the settings that differ, as (dotted key, old value, new value); lists and named test
    sets count as one setting.
    """
    before, after = _flatten(old), _flatten(new)
    return [(key, before[key], after[key]) for key in after if before[key] != after[key]]


def fixed_changes(old: Config, new: Config) -> list[tuple[str, object, object]]:
    """List the settings that differ and may not change within a run, as `changed_keys` does."""
    free = {*FREE_KEYS, *(f"train.{key}" for key in (*MACHINE_KEYS, *STEP_KEYS))}
    # A config may name the tokenizer that the other takes from the language.
    if _tokenizers(old) == _tokenizers(new):
        free.add("data.bleu_tokenize")
    changes = changed_keys(old, new)
    return [each for each in changes if free.isdisjoint({each[0], each[0].partition(".")[0]})]


def _tokenizers(config: Config) -> set[str]:
    """Return sacreBLEU's tokenizers for the validation sets."""
    return {config.data.tokenizer_of(corpus) for corpus in config.data.valid_corpora}


def _flatten(config: Config) -> dict[str, object]:
    """Return the settings by dotted key."""
    values = config.model_dump()
    for section in SECTIONS:
        settings = values.pop(section)
        values |= {f"{section}.{key}": value for key, value in settings.items()}
    return values
