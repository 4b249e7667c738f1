"""Synthetic text: pairs that models made, sealed in the run directory before training begins.

synthetic/1/   pairs.jsonl synthetic.json manifest.json    for entry 1 of `data.train`
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from mtrain.config.corpora import Corpus, CorpusEntry, Synthesis, SyntheticCorpus
from mtrain.config.schema import Config
from mtrain.runs import layout, manifest
from mtrain.runs.records import SyntheticText, read_record
from mtrain.runtime.errors import RefusedError

PAIRS, RECORD = "pairs.jsonl", "synthetic.json"


def directory(run_dir: Path, number: int) -> Path:
    """Return the directory of the synthetic text of entry `number` of `data.train`."""
    return run_dir / layout.SYNTHETIC / str(number)


def settings_of(entry: Corpus) -> dict[str, Any]:
    """Return the settings that the text depends on, except for files, which have hashes."""
    names = ["src_lang", "tgt_lang", *Synthesis.model_fields]
    return {name: getattr(entry, name) for name in names if name != "model"}


def read(run_dir: Path, number: int) -> SyntheticText | None:
    """Read the record of an entry's synthetic text; None if there is no such text. Raises
    `DamagedError` unless the text is intact.
    """
    path = directory(run_dir, number)
    if not path.exists():
        return None
    manifest.verify(path, PAIRS, RECORD)
    return read_record(path / RECORD, SyntheticText)


def check(key: str, entry: Corpus, before: dict[str, Any]) -> None:
    """Refuse an entry whose synthetic text was made with other settings, those in `before`."""
    now = settings_of(entry)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise RefusedError(
                f"{key}.{name}: the synthetic text of this run was made with {before.get(name)!r}, "
                f"not {now.get(name)!r}; restore the setting, or choose another run_dir"
            )


def with_synthetic_text(
    config: Config, run_dir: Path | None = None, skip: Collection[int] = ()
) -> Config:
    """Return the config in which complete synthetic texts replace the entries of `data.train` that
    they were made for, except for entries with the numbers in `skip`.
    """
    run_dir = (run_dir or Path(config.run_dir)).absolute()
    train = list(config.data.train)
    for number, entry in enumerate(train):
        path = directory(run_dir, number)
        if entry.model and number not in skip and manifest.is_complete(path):
            fields = entry.model_dump(
                include={*CorpusEntry.model_fields} - {*Synthesis.model_fields}
            )
            columns = {"file": str(path / PAIRS), "src": "src", "tgt": "tgt"}
            fields |= columns | {"synthetic_side": entry.synthetic_side}
            train[number] = SyntheticCorpus.model_construct(**fields)
    return config.model_copy(update={"data": config.data.model_copy(update={"train": train})})
