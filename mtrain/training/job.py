"""A training job: its processes connect, hold the run directory, prepare the text and train; its
status says how it ended.
"""

from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.data.prepare import Preparation, Prepared
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import checkpoint, layout
from mtrain.runs.directory import RunDirectory
from mtrain.runs.records import STATUS, State, Status
from mtrain.runs.tensorboard import board_of, check_board
from mtrain.runtime.device import telling_lack_of_memory
from mtrain.runtime.distributed import BYTES, Ranks, device_of, joined
from mtrain.runtime.errors import EXIT_OK, RefusedError, StoppedError, UserError
from mtrain.runtime.lock import ReplacedError
from mtrain.runtime.log import add_log_file, logger
from mtrain.runtime.stop import Stop
from mtrain.training.learner import Machine
from mtrain.training.trainer import Trainer

MACHINE = TypeAdapter(tuple[str, Machine])  # with the UUID of its GPU
FINGERPRINTS = TypeAdapter(dict[str, Any])
LACK_OF_MEMORY = "out of memory; free some, or start a smaller run"


def train(config: Config, stop: Stop, config_file: Path | None = None) -> None:
    """Start, resume or confirm a run, on all ranks of the job; raises `StoppedError` once a stop is
    saved, `UserError` on failure. `config_file` is the user's own file of this config.
    """
    with joined() as ranks:
        Job(config, stop, ranks, config_file).train()


def dry_run(config: Config, stop: Stop, config_file: Path | None = None) -> None:
    """Load everything and log what training would do; nothing is written but the cache of tokenized
    text.
    """
    with joined() as ranks:
        job = Job(config, stop, ranks, config_file)
        ranks.first(job.dry_run)


class Job:
    """The part of one rank in a job. Refuses ranks that do not fit together, before anything is
    written.
    """

    def __init__(
        self, config: Config, stop: Stop, ranks: Ranks, config_file: Path | None = None
    ) -> None:
        _check_alike(config, ranks)
        self.config, self.stop, self.ranks, self.config_file = config, stop, ranks, config_file
        self.run = RunDirectory(Path(config.run_dir), board_of(config))
        self.start = Start(config, self.run)

    def train(self) -> None:
        """Train to the end; the status says how it ended."""
        with ExitStack() as stack:
            self.ranks.first(partial(self._hold, stack))
            trainer: Trainer | None = None
            try:
                self.ranks.first(partial(self.start.check, self.ranks.size))
                with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
                    prepared = self._prepare()
                    trainer = Trainer(self.config, prepared, self.run, self.stop, self.ranks)
                    trainer.run()
            except (UserError, OSError) as error:
                raise self._end(error, trainer.progress.step if trainer else 0) from None
            if self.ranks.is_first:
                self.run.set_status("complete", trainer.progress.step, exit_code=EXIT_OK)

    def _check_place(self) -> None:
        check_board(self.config)
        self.run.check_place(self.config_file)

    def _hold(self, stack: ExitStack) -> None:
        """Lock the run directory until `stack` closes, and log to it."""
        self._check_place()
        stack.enter_context(self.run.hold())
        add_log_file(self.run.path / layout.LOG)

    def _prepare(self) -> Prepared:
        """Prepare the text on rank 0, then on the others, whose machines may have a cache of their
        own; all must read the same text.
        """
        ranks, preparation = self.ranks, Preparation(self.config, self.run.tokenizer, self.stop)

        def lead() -> bytes:
            self.start.check_text(preparation.fingerprints)
            self.run.check_data(preparation.prepared.fingerprints)
            return preparation.tokenizer.proto

        vocabulary = ranks.share(lead, BYTES)
        if not ranks.is_first:
            preparation.tokenizer = Tokenizer(vocabulary)
        prepared = ranks.together(lambda: preparation.prepared)
        prints = ranks.gather(lambda: prepared.fingerprints, FINGERPRINTS)
        for rank, found in enumerate(prints):
            if found != prints[0]:
                text = f"data: rank {rank} reads other text than rank 0; give all ranks the same"
                raise ranks.as_one(UserError(text))
        return prepared

    def _end(self, error: UserError | OSError, step: int) -> UserError:
        """Record an early end after a step in the status; return it as an error for the user."""
        failure = error if isinstance(error, UserError) else self.run.failure(error)
        if self.ranks.is_first:
            # on a full disk, or without the directory, only the message can be left
            with suppress(OSError, ReplacedError):
                self.start.record_end(failure, step)
        return failure

    def dry_run(self) -> None:
        """Log what training would do, on rank 0."""
        self._check_place()
        self.run.check_settings(self.config, self.ranks.size)
        self.run.check_not_lost(self.run.read(layout.STATUS, STATUS), self.config.train.save_every)
        with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
            preparation = Preparation(self.config, self.run.tokenizer, self.stop)
            self.run.check_data(preparation.fingerprints)
            prepared = preparation.prepared
            self.run.check_data(prepared.fingerprints)
            trainer = Trainer(self.config, prepared, self.run, self.stop, self.ranks)
        trainer.preview()
        logger.info("dry run: nothing was trained")


class Start:
    """The status of a run during one start. A start that is refused, or ends before settings and
    text are checked, leaves the status of an earlier one as it was.
    """

    def __init__(self, config: Config, run: RunDirectory) -> None:
        self.config, self.run = config, run
        self.before: Status | None = None  # the status that this start found
        self.step, self.has_begun, self.is_damaged = 0, False, False

    def check(self, ranks: int) -> None:
        """Refuse what the run's own files show to be wrong."""
        try:
            self.before = self.run.read(layout.STATUS, STATUS)
        except UserError:
            self.is_damaged = True  # `begin` writes another
        present = layout.steps(self.run.checkpoints)
        self.step = layout.step_of(present[-1]) or 0 if present else 0
        self.run.check_settings(self.config, ranks)
        self.run.check_not_lost(self.before, self.config.train.save_every)
        if not self.step and self.config.train.init_from is not None:
            _check_shape(self.config, Path(self.config.train.init_from))
        if self.before is None and not self.is_damaged:
            self.begin()

    def begin(self) -> None:
        """Write the status of this start from here on."""
        self.has_begun = True
        self.run.set_status("preparing", self.step)

    def check_text(self, fingerprints: dict[str, Any]) -> None:
        """Refuse text of other content than the run's, or begin."""
        self.run.check_data(fingerprints)
        self.begin()

    def record_end(self, failure: UserError, step: int) -> None:
        """Write why this start ended early."""
        state: State = "stopped" if isinstance(failure, StoppedError) else "failed"
        if isinstance(failure, RefusedError):
            state = "refused"
        if self.before is not None and (state == "refused" or not self.has_begun):
            self.run.keep_start(self.before, state, failure)
        elif self.has_begun or not self.is_damaged:
            self.run.set_status(state, max(step, self.step), str(failure), failure.exit_code)


def _check_alike(config: Config, ranks: Ranks) -> None:
    """Refuse devices that do not exist or are shared, and ranks that would compute differently."""

    def find() -> tuple[str, Machine]:
        machine, device = Machine.of(config, ranks), device_of(config.train.device, ranks)
        gpu = torch.cuda.get_device_properties(device).uuid if device.type == "cuda" else ranks.rank
        return str(gpu), replace(machine, threads=0)  # which may differ

    ranks.check_same(dump_config(config), "settings")
    gpus, machines = zip(*ranks.gather(find, MACHINE), strict=True)
    if len(set(gpus)) < len(gpus):
        text = "train.device: two processes have the same GPU; start one for each GPU"
        raise ranks.as_one(RefusedError(text))
    first = asdict(machines[0])
    for rank, machine in enumerate(machines):
        for key, value in asdict(machine).items():
            if value != first[key]:
                text = (
                    f"train.{key}: resolves to {first[key]} on rank 0 and to {value} on rank "
                    f"{rank}; set it to a value that all of them support"
                )
                raise ranks.as_one(RefusedError(text))


def _check_shape(config: Config, path: Path) -> None:
    """Refuse initial weights of another shape, before all text is prepared."""
    directory = checkpoint.resolve(path)
    other = load_stored_config(directory / layout.CONFIG).model.model_dump()
    different = [
        f"model.{key}: {other[key]!r} there, {value!r} here"
        for key, value in config.model.model_dump().items()
        if value != other[key] and not key.endswith("dropout")
    ]
    if different:
        raise RefusedError(
            f"train.init_from: {directory} holds a model of another shape: {', '.join(different)}"
        )
