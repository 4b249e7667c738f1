"""What differs between two configs, and which settings may differ between the starts of a run."""

from mtrain.config.schema import Config

# Settings that may differ between the starts of one run; corpora are compared by content instead.
FREE_KEYS = (
    "run_dir",
    "data.root",
    "data.train",
    "data.valid",
    "data.test",
    "data.workers",
    "decode",
    "train.max_steps",
    "train.patience",
    "train.log_every",
    "train.tensorboard",
    "train.keep_checkpoints",
    "train.average_last",
)
# Compared by what they resolve to on a machine, not as written.
MACHINE_KEYS = ("train.device", "train.threads", "train.precision", "train.compile")


def changed_keys(old: Config, new: Config) -> list[tuple[str, object, object]]:
    """List the settings that differ, as (dotted key, old value, new value); lists and named test
    sets count as one setting.
    """
    before, after = _flatten(old), _flatten(new)
    return [(key, before[key], after[key]) for key in after if before[key] != after[key]]


def fixed_changes(old: Config, new: Config) -> list[tuple[str, object, object]]:
    """List the settings that differ and may not change within a run, as `changed_keys` does."""
    free = (*FREE_KEYS, *MACHINE_KEYS, "train.accum_steps")
    below = tuple(f"{key}." for key in free)
    changes = changed_keys(old, new)
    return [each for each in changes if each[0] not in free and not each[0].startswith(below)]


def _flatten(config: Config) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in config.model_dump().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": item for key, item in value.items()})
        else:
            flat[name] = value
    return flat
