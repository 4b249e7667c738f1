"""The types of a run's JSON files, which are checked before their content is used."""

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat

from mtrain.runs.layout import AVERAGE, BEST, STEP
from mtrain.runs.tensorboard import TensorBoard
from mtrain.runtime import files
from mtrain.runtime.errors import UserError
from mtrain.runtime.json_reader import MAX_JSON_BYTES, Content, adapter_of, read_json
from mtrain.runtime.log import first_numbers, logger
from mtrain.runtime.stop import format_duration

# Bounds keep arithmetic and formatting safe, whoever wrote the file.
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | float
Score = Annotated[FiniteFloat, Field(ge=0, le=101)]  # at most 100, and some rounding
CheckpointName = Annotated[str, Field(pattern=rf"^({AVERAGE}|{STEP.pattern})\z")]
ExitCode = Annotated[int, Field(ge=0, le=255)]
State = Literal["preparing", "running", "complete", "stopped", "failed", "refused"]

TIME = "%Y-%m-%dT%H:%M:%S%z"
MAX_TEXT_BYTES = 256 << 20  # of `metrics.jsonl` or a file of translations
MAX_RECORDS = 2_000_000  # lines of `metrics.jsonl`
MAX_BROKEN = 10_000  # invalid lines of `metrics.jsonl`
MAX_RECORD_BYTES = 1 << 16  # of a line of `metrics.jsonl`
ADVICE = "restore the run's own file, or name another run or a checkpoint"


def with_fields_of(model: type[BaseModel]) -> AfterValidator:
    """Return a validator that checks the fields of a model and returns the content unchanged."""

    def check(content: dict[str, Any]) -> dict[str, Any]:
        model.model_validate(content, strict=True)
        return content

    return AfterValidator(check)


class Launch(BaseModel):
    """A start by torchrun, which restarts all processes of a job, however they ended."""

    job: str  # the same for all starts of a job
    restarts: Count
    began: FiniteFloat  # first start of the job, in seconds since 1970
    is_over: bool = False  # the job must not be restarted


class LastStart(BaseModel):
    """The end of a failed start that left the run unchanged."""

    state: State
    exit_code: ExitCode
    reason: str
    time: str
    launch: Launch | None = None


class Status(BaseModel):
    """`status.json`: the state of a run, and how it ended."""

    state: State
    exit_code: ExitCode | None = None
    reason: str = ""
    step: Count
    pid: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    host: str | None = None
    launch: Launch | None = None
    last_start: LastStart | None = None


@dataclass(frozen=True)
class SyntheticText:
    """`synthetic.json`, also stored in `run.json`: the origin and size of a synthetic text."""

    settings: dict[str, Any]
    models: dict[str, str]  # SHA-256 by the path of the model
    given: str  # SHA-256 of the text that the models read
    key: str  # hash of everything that the pairs depend on
    lines: Count
    pairs: Count
    dropped: dict[str, Count]  # pairs by reason


class Provenance(BaseModel):
    """`run.json`: what a run is made of, with SHA-256 of its corpora, settings, vocabulary and
    initial weights.
    """

    train: list[str]
    weights: list[Number]
    pairs: list[Count]  # of each corpus, that pass the filters
    valid: str | list[str]
    test: dict[str, str]
    tokenizer: str
    config: str
    init_from: str | None = None
    metric_command: str | None = None
    synthetic: dict[Annotated[str, Field(pattern=r"^data\.train\.\d{1,9}\z")], SyntheticText]
    seed: Count
    ranks: Annotated[Count, Field(ge=1)]
    accum_steps: Annotated[Count, Field(ge=1)]
    step_batches: Annotated[Count, Field(ge=1, le=1 << 20)]
    command: str
    versions: dict[str, str]
    host: str
    created: str


class Fingerprints(TypedDict, total=False):
    """Fields of `Provenance` that a start finds out, as far as it knows them; most are hashes."""

    train: list[str]
    weights: list[float]
    pairs: list[int]
    valid: str | list[str]
    test: dict[str, str]
    tokenizer: str
    init_from: str | None
    metric_command: str | None
    synthetic: dict[str, dict[str, Any]]  # fields of `SyntheticText` by the key of the entry


@dataclass(frozen=True)
class Loop:
    """`state.json` of a checkpoint: position of the training loop, loss sums since the last record,
    and the machine.
    """

    step: Count
    epoch: Count
    pool: Count
    batch: Count
    sums: Annotated[list[FiniteFloat], Field(min_length=2, max_length=3)]
    sum_tokens: Count
    machine: dict[str, Count | str | bool | None]


class StepRecord(BaseModel):
    """Fields of a record of `metrics.jsonl` that are read by name."""

    step: Count
    time: FiniteFloat = 0.0
    bleu: Number = Field(0.0, alias="valid/bleu")


Record = Annotated[dict[str, Number | str | bool | None], with_fields_of(StepRecord)]


def read_bytes(path: Path, max_bytes: int) -> bytes | None:
    """Return the content of a run's file, or None if it is missing; raises `UserError`."""
    try:
        return files.read_whole(path, max_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}, which no run writes; {ADVICE}") from None


def read_record(path: Path, type_: type[Content]) -> Content | None:
    """Read one of the small JSON files, or return None if it is missing; raises `UserError`."""
    data = read_bytes(path, MAX_JSON_BYTES)
    try:
        return None if data is None else read_json(data, type_)
    except ValueError as error:
        rebuilt = "remove it, and train will read its scores from metrics.jsonl, or "
        advice = (rebuilt if path.name == BEST else "") + ADVICE
        raise UserError(f"{path}: damaged: {error}; {advice}") from None


def duration(provenance: Provenance | None, records: list[dict[str, Any]]) -> str | None:
    """Return the time from the start of a run to its last record, including pauses; None if it is
    unknown.
    """
    if provenance is None:
        return None
    try:
        start = datetime.strptime(provenance.created, TIME).timestamp()
    except ValueError:
        return None
    seconds = max((record.get("time", 0) for record in records), default=0) - start
    return format_duration(seconds) if seconds > 0 else None


@dataclass
class MetricsFile:
    """`metrics.jsonl`: one JSON object per record, in the order of steps; `board` gets the same
    records. `check` is called before each write and raises an error to prevent it.
    """

    path: Path
    board: TensorBoard | None = None
    check: Callable[[], None] = lambda: None

    def append(self, record: dict[str, Any]) -> None:
        """Add a record."""
        self.check()
        with files.append(self.path) as out:
            out.write(json.dumps(record).encode() + b"\n")
        if self.board is not None:
            self.board.add(record)

    def sync(self) -> None:
        """Flush the records to the disk; call this before writing a file after which a resume does
        not repeat them. Raises `OSError`.
        """
        with suppress(FileNotFoundError), files.read(self.path) as records:
            os.fsync(records.fileno())

    def cut(self, step: int, repeated: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Drop what a run that resumes at a step writes again: the records after the step, and
        those of the step with a key that begins with one of `repeated`. Also drop invalid lines;
        warn of them, except of a last line that a crash truncated. Return the records that stay.
        """
        records, broken = self.parse()
        if broken:
            logger.warning("%s: damaged lines were removed: %s", self.path, first_numbers(broken))
        kept = [
            record
            for record in records
            if record["step"] < step
            or (record["step"] == step and not any(key.startswith(repeated) for key in record))
        ]
        self.check()
        if self.path.exists() or kept:
            files.write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        if self.board is not None:
            self.board.begin(kept)
        return kept

    def parse(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the records, and the numbers of invalid lines except for one that a crash
        truncated. Raises `UserError` if the file is not a regular file, or too large.
        """
        records = []
        broken = list[int]()
        adapter = adapter_of(Record)
        data = read_bytes(self.path, MAX_TEXT_BYTES) or b""
        for number, line in enumerate(io.BytesIO(data), 1):
            try:
                if len(line) > MAX_RECORD_BYTES:
                    raise ValueError("longer than any record")
                records.append(adapter.validate_json(line, strict=True))
            except ValueError:
                if line.endswith(b"\n"):
                    broken.append(number)
            if number > MAX_RECORDS or len(broken) > MAX_BROKEN:
                raise UserError(
                    f"{self.path}:{number}: more lines, or more invalid ones, than a run writes; "
                    "remove the file or restore the run's own"
                )
        return records, broken
