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

MACHINE = TypeAdapter(tuple[str, Machine])  # with a name of its GPU
FINGERPRINTS = TypeAdapter(dict[str, Any])
LACK_OF_MEMORY = "out of memory; free some, or start a smaller run"


def train(config: Config, stop: Stop, config_file: Path | None = None) -> None:
    """Start, resume or confirm a run, on all ranks of the job; raises `StoppedError` once a stop is
    saved, `UserError` on failure. `config_file` is the user's own file of this config.
    """
    with joined() as ranks, ExitStack() as stack:
        _check_alike(config, ranks)  # refused before anything is written
        run = RunDirectory(Path(config.run_dir), board_of(config))

        def hold() -> None:
            check_board(config)
            run.check_place(config_file)
            stack.enter_context(run.hold())
            add_log_file(run.path / layout.LOG)

        ranks.first(hold)
        step = _train(config, run, stop, ranks)
        if ranks.is_first:
            run.set_status("complete", step, exit_code=EXIT_OK)


def dry_run(config: Config, stop: Stop, config_file: Path | None = None) -> None:
    """Load everything and log what training would do; nothing is written but the cache of tokenized
    text.
    """
    with joined() as ranks:
        _check_alike(config, ranks)
        ranks.first(partial(_announce, config, stop, ranks, config_file))


def _announce(config: Config, stop: Stop, ranks: Ranks, config_file: Path | None) -> None:
    check_board(config)
    run = RunDirectory(Path(config.run_dir))
    run.check_place(config_file)
    run.check_settings(config, ranks.size)
    run.check_not_lost(run.read(layout.STATUS, STATUS), config.train.save_every)
    with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
        preparation = Preparation(config, run.tokenizer, stop)
        run.check_data(preparation.fingerprints)
        prepared = preparation.finish()
        run.check_data(prepared.fingerprints)
        trainer = Trainer(config, prepared, run, stop, ranks)
    found = trainer.checkpoints.find_newest()
    if found is not None:
        trainer.progress.step = found.trainer.loop.step
        trainer.validation.load_history(trainer.progress.step)
    trainer.announce()
    logger.info("dry run: nothing was trained")


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


def _train(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks) -> int:
    """Train to the end and return the last step; an earlier end is kept in the status."""
    start = Start(config, run)
    trainer: Trainer | None = None
    try:
        ranks.first(partial(start.check, ranks))
        with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
            prepared = _prepare(config, run, stop, ranks, start)
            trainer = Trainer(config, prepared, run, stop, ranks)
            trainer.run()
    except (UserError, OSError) as error:
        failure = error if isinstance(error, UserError) else run.failure(error)
        if ranks.is_first:
            # on a full disk, or without the directory, only the message can be left
            with suppress(OSError, ReplacedError):
                start.record_end(failure, trainer.progress.step if trainer else 0)
        raise failure from None
    return trainer.progress.step


class Start:
    """One start of a run and the run's status. A start that is refused, or ends before settings and
    text are checked, leaves the status of an earlier one as it was.
    """

    def __init__(self, config: Config, run: RunDirectory) -> None:
        self.config, self.run = config, run
        self.before: Status | None = None  # the status that this start found
        self.step, self.has_begun, self.is_damaged = 0, False, False

    def check(self, ranks: Ranks) -> None:
        """Refuse what the run's own files show to be wrong."""
        try:
            self.before = self.run.read(layout.STATUS, STATUS)
        except UserError:
            self.is_damaged = True  # `begin` writes another
        present = layout.steps(self.run.checkpoints)
        self.step = layout.step_of(present[-1]) or 0 if present else 0
        self.run.check_settings(self.config, ranks.size)
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


def _prepare(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks, start: Start) -> Prepared:
    """Prepare the text on rank 0, then on the others, whose machines may have a cache of their own;
    all must read the same text.
    """
    preparation = Preparation(config, run.tokenizer, stop)

    def lead() -> Prepared:
        start.check_text(preparation.fingerprints)
        prepared = preparation.finish()
        run.check_data(prepared.fingerprints)
        return prepared

    first = ranks.first(lead)
    vocabulary = ranks.share(lambda: first.tokenizer.proto if first else b"", BYTES)
    if first is None:
        preparation.tokenizer = Tokenizer(vocabulary)
    prepared = ranks.together(lambda: first or preparation.finish())
    prints = ranks.gather(lambda: prepared.fingerprints, FINGERPRINTS)
    for rank, found in enumerate(prints):
        if found != prints[0]:
            text = f"data: rank {rank} reads other text than rank 0; give all ranks the same"
            raise ranks.as_one(UserError(text))
    return prepared
