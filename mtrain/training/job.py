"""A training job, from joining its ranks and locking the run directory to its last status."""

from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.data.prepare import Prepared, prepare
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

MACHINE = TypeAdapter(tuple[str, Machine])  # with an identifier of the GPU
FINGERPRINTS = TypeAdapter(dict[str, Any])
LACK_OF_MEMORY = "out of memory; free some, or start a smaller run"


def train(config: Config, stop: Stop, config_file: Path | None = None) -> None:
    """Start, resume or confirm a run, by as many processes as the job has; raises `StoppedError`
    once a stop is saved, `UserError` on failure. `config_file` is where the user keeps the config.
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
        step = _train_or_tell(config, run, stop, ranks)
        if ranks.is_first:
            run.set_status("complete", step, exit_code=EXIT_OK)


def _last_step(run: RunDirectory) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    present = layout.steps(run.checkpoints)
    return layout.step_of(present[-1]) or 0 if present else 0


def _check_alike(config: Config, ranks: Ranks) -> None:
    """Refuse devices that are missing or used twice, and ranks that would not compute the same."""

    def find() -> tuple[str, Machine]:
        machine, device = Machine.of(config, ranks), device_of(config.train.device, ranks)
        gpu = torch.cuda.get_device_properties(device).uuid if device.type == "cuda" else ranks.rank
        return str(gpu), replace(machine, threads=0)  # which may differ

    ranks.check_same(dump_config(config), "settings")
    gpus, machines = zip(*ranks.gather(find, MACHINE), strict=True)
    if len(set(gpus)) < len(gpus):
        raise ranks.as_one(
            RefusedError("train.device: two processes have the same GPU; start one for each GPU")
        )
    first = asdict(machines[0])
    for rank, machine in enumerate(machines):
        for key, value in asdict(machine).items():
            if value != first[key]:
                raise ranks.as_one(
                    RefusedError(
                        f"train.{key}: resolves to {first[key]} on rank 0 and {value} on rank "
                        f"{rank}; set it to what all of them have"
                    )
                )


def _train_or_tell(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks) -> int:
    """Train to the end and return the last step; whatever ends it earlier is kept in the status."""
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
            # on a full disk, or where the directory is gone, the message is all that can be left
            with suppress(OSError, ReplacedError):
                start.keep_end(failure, trainer.position.step if trainer else 0)
        raise failure from None
    return trainer.position.step


class Start:
    """One start of a run, and its effect on the run's status: a start that is refused, or that ends
    before settings and text were checked, leaves the status of an earlier run as it was.
    """

    def __init__(self, config: Config, run: RunDirectory) -> None:
        self.config, self.run = config, run
        self.before: Status | None = None  # the status that this start found
        self.step, self.has_begun, self.is_damaged = 0, False, False

    def check(self, ranks: Ranks) -> None:
        """Refuse what the run's own files already show to be wrong."""
        try:
            self.before = self.run.read(layout.STATUS, STATUS)
        except UserError:
            self.is_damaged = True  # replaced when this start begins
        self.step = _last_step(self.run)
        self.run.check_settings(self.config, ranks.size)
        self.run.check_not_lost(self.before, self.config.train.save_every)
        if not self.step and self.config.train.init_from is not None:
            _check_beginning(self.config, Path(self.config.train.init_from))
        if self.before is None and not self.is_damaged:
            self.begin()

    def begin(self) -> None:
        """Let the status be of this start from here on."""
        self.has_begun = True
        self.run.set_status("preparing", self.step)

    def check_text(self, fingerprints: dict[str, Any]) -> None:
        """Refuse text that differs from the run's; otherwise this start has begun."""
        self.run.check_data(fingerprints)
        self.begin()

    def keep_end(self, failure: UserError, step: int) -> None:
        """Keep why this start ended early."""
        state: State = "stopped" if isinstance(failure, StoppedError) else "failed"
        is_refused = isinstance(failure, RefusedError)
        if is_refused:
            state = "refused"
        if self.before is not None and (is_refused or not self.has_begun):
            self.run.keep_start(self.before, state, failure)
        elif self.has_begun or not self.is_damaged:
            self.run.set_status(state, max(step, self.step), str(failure), failure.exit_code)


def _check_beginning(config: Config, path: Path) -> None:
    """Refuse a model in `train.init_from` of another shape, before all text is prepared."""
    directory = checkpoint.resolve(path)
    other = load_stored_config(directory / layout.CONFIG).model.model_dump()
    odd = [
        f"model.{key}: {other[key]!r} there, {value!r} here"
        for key, value in config.model.model_dump().items()
        if value != other[key] and not key.endswith("dropout")
    ]
    if odd:
        raise RefusedError(
            f"train.init_from: {directory} holds a model of another shape: {', '.join(odd)}"
        )


def _prepare(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks, start: Start) -> Prepared:
    """Prepare the text on rank 0, then on the others, which may be on machines with a cache of
    their own; all must read the same text.
    """

    def lead() -> Prepared:
        prepared = prepare(config, run.tokenizer, stop, begin=start.check_text)
        run.check_data(prepared.fingerprints)
        return prepared

    def follow() -> Prepared:
        return first or prepare(config, run.tokenizer, stop, Tokenizer(vocabulary))

    first = ranks.first(lead)
    vocabulary = ranks.share(lambda: first.tokenizer.proto if first else b"", BYTES)
    prepared = ranks.together(follow)
    prints = ranks.gather(lambda: prepared.fingerprints, FINGERPRINTS)
    for rank, found in enumerate(prints):
        if found != prints[0]:
            raise ranks.as_one(
                UserError(f"data: rank {rank} reads other text than rank 0; give all the same")
            )
    return prepared


def dry_run(config: Config, stop: Stop, config_file: Path | None = None) -> None:
    """Read everything and log what training would do; only the cache is written."""
    with joined() as ranks:
        _check_alike(config, ranks)
        ranks.first(partial(_tell_plan, config, stop, ranks, config_file))


def _tell_plan(config: Config, stop: Stop, ranks: Ranks, config_file: Path | None) -> None:
    check_board(config)
    run = RunDirectory(Path(config.run_dir))
    run.check_place(config_file)
    run.check_settings(config, ranks.size)
    run.check_not_lost(run.read(layout.STATUS, STATUS), config.train.save_every)
    with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
        prepared = prepare(config, run.tokenizer, stop, begin=run.check_data)
        run.check_data(prepared.fingerprints)
        trainer = Trainer(config, prepared, run, stop, ranks)
    found, _ = trainer.checkpoints.find_newest()
    if found is not None:
        trainer.position.step = found.trainer.loop.step
        trainer.validation.look_back(trainer.position.step)
    trainer.announce()
    logger.info("dry run: nothing was trained")
