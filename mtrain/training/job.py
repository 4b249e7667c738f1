"""A training job: its processes connect, lock the run directory, prepare the text and train. The
status of the run records how the job ended.
"""

import json
import os
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mtrain.config.changes import changed_keys
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.config.yaml_reader import quote_value
from mtrain.data.cache import cache_directory
from mtrain.data.prepare import (
    Preparation,
    Prepared,
    refuse_worthless_text,
    without_missing_init_from,
)
from mtrain.data.tokenizer import Tokenizer
from mtrain.data.vocabulary import existing_vocabulary, init_checkpoint
from mtrain.runs import compatibility, layout
from mtrain.runs.directory import RunDirectory, log_changes
from mtrain.runs.history import History
from mtrain.runs.records import Launch, State, Status
from mtrain.runs.synthetic import with_synthetic_text
from mtrain.runs.tensorboard import board_of
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.distributed import DisconnectedError, Ranks, connected_ranks
from mtrain.runtime.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
    UserError,
)
from mtrain.runtime.lock import ReplacedError
from mtrain.runtime.log import add_log_file, logger
from mtrain.runtime.stop import Stop
from mtrain.scoring.external import OPTION, ExternalMetric
from mtrain.training.gradients import Blocks
from mtrain.training.learner import MachineSettings
from mtrain.training.resume import Session
from mtrain.training.synthesis import synthesize, without_missing_text
from mtrain.training.trainer import Trainer

LACK_OF_MEMORY = "out of memory; free some, or start a smaller run"


def train(
    config: Config,
    stop: Stop,
    config_file: Path | None = None,
    metric: ExternalMetric | None = None,
) -> None:
    """Start or resume a run, or log that it is complete, on all ranks of the job. Raises
    `StoppedError` after a stop, once steps are saved, and `UserError` on failure. `config_file` is
    the user's file of this config, `metric` the metric of `train.metric: command`.
    """
    with connected_ranks() as ranks:
        Job(config, stop, ranks, config_file, metric).train()


def dry_run(
    config: Config, stop: Stop, config_file: Path | None, metric: ExternalMetric | None
) -> dict[str, Any] | None:
    """Load everything and log what training would do; only the cache of tokenized text is written.
    Return the forecast as figures on rank 0.
    """
    with connected_ranks() as ranks:
        job = Job(config, stop, ranks, config_file, metric)
        job.refuse_invalid_start()
        return ranks.on_rank_0(job.dry_run)


def build_data(config: Config, stop: Stop, config_file: Path | None) -> None:
    """Prepare the text of a config: synthetic text is stored in the run directory, other text in
    the cache.
    """
    run = RunDirectory(Path(config.run_dir))
    with connected_ranks() as ranks, ExitStack() as stack:
        if len(config.data.available_train) < len(config.data.train):
            ranks.on_rank_0(partial(compatibility.refuse_foreign_directory, run, config_file))
            ranks.on_rank_0(lambda: stack.enter_context(run.hold()))
            ranks.on_rank_0(partial(compatibility.check_settings, run, config, ranks.size))
            synthesize(config, run, stop, ranks)
        preparation = Preparation(with_synthetic_text(config), stop)
        ranks.on_rank_0(partial(refuse_worthless_text, preparation))
        ranks.on_rank_0(lambda: preparation.prepared)
        logger.info("prepared text is in %s; mtrain train finds it there", cache_directory())


class StartStatus:
    """The status of this start of a run in `status.json`, on rank 0.

    A start that is refused, or fails before settings and text are checked, does not change the
    status that an earlier start left.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.previous: Status | None = None  # the status before this start
        self.is_replaced = False  # whether the status is that of this start
        self.step = 0  # of the last complete checkpoint

    def read_previous(self) -> None:
        """Read the status that the last start left, unless it is damaged: a start replaces it."""
        with suppress(UserError):
            self.previous = self.run.read(layout.STATUS, Status)

    def refuse_restart(self, stop: Stop) -> None:
        """Raise `StoppedError` if torchrun restarts a job that is over. Otherwise count the time
        limit from the job's first start.
        """
        launch = self.run.launch
        if launch is None:
            return
        self.read_previous()
        for end in (self.previous.last_start, self.previous) if self.previous else ():
            if not (end and end.launch and end.launch.job == launch.job):
                continue
            launch.began = end.launch.began
            code = end.exit_code or EXIT_FAILED
            # when machines join a job, torchrun sends SIGTERM and starts it again, but does not
            # count that as a restart
            have_joined = code == EXIT_TERMINATED and launch.restarts <= end.launch.restarts
            if end.launch.is_over and not have_joined:
                raise StoppedError(f"not restarted: this job has ended with exit code {code}", code)
        stop.started -= time.time() - launch.began

    def record_refusal(self, error: RefusedError) -> None:
        """Record a refusal from before locking, if the directory has a run that no process uses."""
        if not self.run.has_begun:
            return
        if self.run.launch:
            self.run.launch.is_over = True
        with suppress(UserError, OSError), self.run.hold():
            if (status := self.run.read(layout.STATUS, Status)) is not None:
                add_log_file(self.run.path / layout.LOG)
                self.run.record_failed_start(status, "refused", error)

    def open(self) -> None:
        """Read how far the run is, or begin its status."""
        if (self.run.path / layout.STATUS).exists():
            self.read_previous()
            if self.previous and self.run.launch:  # so that torchrun restarts it after a kill
                status = {**self.previous.model_dump(), "launch": self.run.launch}
                self.run.write(layout.STATUS, status)
        else:
            self.replace()
        self.step = self.run.last_step

    def replace(self) -> None:
        """Replace the previous status by that of this start."""
        self.is_replaced = True
        self.run.set_status("preparing", self.step)

    def record_end(self, failure: UserError, step: int, ranks: Ranks) -> None:
        """Record that an error ended this start, after a step."""
        if self.run.launch:
            # torchrun sends SIGTERM to the other processes when one dies
            was_killed = isinstance(failure, StoppedError) and failure.exit_code == EXIT_TERMINATED
            was_killed |= isinstance(failure, DisconnectedError)
            self.run.launch.is_over = failure.is_shared or ranks.size == 1 or not was_killed
        state: State = "stopped" if isinstance(failure, StoppedError) else "failed"
        if isinstance(failure, RefusedError):
            state = "refused"
        if self.previous is not None and (state == "refused" or not self.is_replaced):
            self.run.record_failed_start(self.previous, state, failure)
        elif self.is_replaced:
            self.run.set_status(state, max(step, self.step), str(failure), failure.exit_code)


@dataclass
class Job:
    """One rank of a job."""

    config: Config
    stop: Stop
    ranks: Ranks
    config_file: Path | None
    metric: ExternalMetric | None

    def __post_init__(self) -> None:
        config, ranks = self.config, self.ranks
        self.command = self.metric.command if self.metric else None
        board = ranks.on_rank_0(partial(board_of, config))
        self.run = RunDirectory(Path(config.run_dir), board, _torchrun_launch())
        find_step_batches = partial(_find_step_batches, self.run, config, ranks)
        self.blocks = Blocks(ranks.from_rank_0(find_step_batches, int), ranks.size)
        self.status = StartStatus(self.run)

    def train(self) -> None:
        """Train to the end and record in the status how it ended."""
        with ExitStack() as stack:
            self._lock(stack)
            trainer: Trainer | None = None
            try:
                self.ranks.on_rank_0(self._open_run)
                with out_of_memory_as(LACK_OF_MEMORY):
                    trainer = self._trainer(self._prepare())
                    trainer.run()
            except (UserError, OSError) as error:
                raise self._end(error, trainer) from None
            if self.ranks.is_rank_0:
                self.run.set_status("complete", trainer.progress.step, exit_code=EXIT_OK)
            self._log_end(trainer, "complete")

    def dry_run(self) -> dict[str, Any]:
        """Log what training would do, on rank 0, and return it as figures."""
        compatibility.refuse_foreign_directory(self.run, self.config_file)
        self.status.read_previous()
        self.config, warnings = without_missing_init_from(self.config)
        for text in warnings:
            logger.warning("%s", text)
        self.status.step = self.run.last_step
        self._refuse_unfit_config()
        with out_of_memory_as(LACK_OF_MEMORY):
            available = without_missing_text(self.config, self.stop, timed=True)
            preparation = Preparation(available, self.stop)
            compatibility.check_data(self.run, preparation.fingerprints)
            if not self.run.has_begun:
                refuse_worthless_text(preparation)
            prepared = preparation.prepared
            compatibility.check_data(self.run, prepared.fingerprints)
            figures = self._trainer(prepared).preview()
        log_changes(self.run.path, self.config)
        logger.info("dry run: nothing was trained")
        return figures

    def _lock(self, stack: ExitStack) -> None:
        """Lock the run directory until `stack` closes; record a refusal in the run's status."""
        try:
            self.refuse_invalid_start()
            self.ranks.on_rank_0(partial(self._hold, stack))
        except RefusedError as error:
            if self.ranks.is_rank_0:
                self.status.record_refusal(error)
            raise

    def refuse_invalid_start(self) -> None:
        """Refuse ranks with different settings or machines, and a metric without its command;
        raises `StoppedError` if torchrun restarts a job that is over.
        """
        self.ranks.on_rank_0(partial(self.status.refuse_restart, self.stop))
        self.ranks.check_same(dump_config(self.config), "settings")
        _check_machines(self.config, self.ranks, self.blocks)
        self.ranks.check_same(json.dumps(self.command), OPTION)
        if refused := _metric_mismatch(self.config, self.command):
            raise self.ranks.mark_shared(RefusedError(refused))

    def _hold(self, stack: ExitStack) -> None:
        """Lock the run directory until `stack` closes, and log to it."""
        compatibility.refuse_foreign_directory(self.run, self.config_file)
        stack.enter_context(self.run.hold())
        add_log_file(self.run.path / layout.LOG)

    def _open_run(self) -> None:
        """Read how far the run is, or begin its status; refuse a config that does not fit it."""
        self.status.open()
        self._refuse_unfit_config()

    def _refuse_unfit_config(self) -> None:
        """Refuse a config that does not fit the run's files or the model that it starts from."""
        compatibility.check_settings(self.run, self.config, self.ranks.size)
        history = self.run.read(layout.BEST, History)
        if history and history.steps:  # until it has scored something, the command may change
            compatibility.check_data(self.run, {"metric_command": self.command})
        train = self.config.train
        compatibility.refuse_lost_checkpoints(self.run, self.status.previous, train.save_every)
        if not self.status.step and train.init_from is not None:
            _check_shape(self.config, init_checkpoint(train.init_from))

    def _check_new_run(self, preparation: Preparation) -> None:
        """Check the text of a run that has not begun: synthetic text, made next, takes hours."""
        if not self.run.has_begun:
            self.status.replace()
            existing_vocabulary(self.config)  # refuses one that does not fit
            compatibility.check_data(self.run, preparation.fingerprints)
            refuse_worthless_text(preparation)

    def _prepare(self) -> Prepared:
        """Prepare all text on rank 0, and afterwards on the other ranks, whose machines may lack
        rank 0's cache. Refuse ranks that read different text. Return the text with the fingerprints
        of all that must not change within the run.
        """
        ranks = self.ranks
        preparation, records = self._make_synthetic_text()
        vocabulary = ranks.from_rank_0(partial(self._prepare_vocabulary, preparation), bytes)
        if not ranks.is_rank_0:
            preparation.tokenizer = Tokenizer(vocabulary)
        prepared = ranks.on_all_ranks(lambda: preparation.prepared)
        ranks.check_same(json.dumps(prepared.fingerprints), "text")
        fingerprints = prepared.fingerprints | {"synthetic": records}
        if self.command:
            fingerprints["metric_command"] = self.command
        return replace(prepared, fingerprints=fingerprints)

    def _make_synthetic_text(self) -> tuple[Preparation, dict[str, Any]]:
        """Check a new run and make missing synthetic text. Return the preparation of all text, and
        the records of synthetic text.
        """
        config = self.config
        if self.run.has_begun:  # until then, its synthetic text may be replaced
            config = with_synthetic_text(config)
        preparation = Preparation(config, self.stop)
        self.ranks.on_rank_0(partial(self._check_new_run, preparation))
        if records := synthesize(self.config, self.run, self.stop, self.ranks):
            preparation = Preparation(with_synthetic_text(self.config), self.stop)
        return preparation, records

    def _prepare_vocabulary(self, preparation: Preparation) -> bytes:
        """Replace the previous status, prepare the text and return the vocabulary, on rank 0."""
        compatibility.check_data(self.run, preparation.fingerprints)
        self.status.replace()
        compatibility.check_data(self.run, preparation.prepared.fingerprints)
        return preparation.tokenizer.proto

    def _trainer(self, prepared: Prepared) -> Trainer:
        session = Session(
            self.config, prepared, self.run, self.stop, self.ranks, self.blocks, self.metric
        )
        return Trainer(session)

    def _log_end(self, trainer: Trainer, state: str) -> None:
        """Log the end of the run on rank 0, unless its files cannot be read."""
        if self.ranks.is_rank_0:
            with suppress(UserError, OSError):
                validation = trainer.validation
                validation.log.show_end(validation.history, state, trainer.progress.step)

    def _end(self, error: UserError | OSError, trainer: Trainer | None) -> UserError:
        """Record in the status that an error ended the run; return it as an error for the user."""
        step = trainer.progress.step if trainer else 0
        if trainer and step and isinstance(error, StoppedError):
            self._log_end(trainer, "saved and stopped")
        failure = error if isinstance(error, UserError) else self.run.failure(error)
        if self.ranks.is_rank_0:
            # on a full disk, or if the directory is gone, only the message reports the end
            with suppress(OSError, ReplacedError):
                self.status.record_end(failure, step, self.ranks)
        return failure


def _torchrun_launch() -> Launch | None:
    """Return this start of a job by torchrun; None if torchrun did not start this process."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if not restarts.isdecimal() or len(restarts) > 9:  # torchrun counts to no such number
        return None
    # a directory that torchrun makes for each job, and keeps over restarts
    directory = os.environ.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")[0]
    job = f"{os.environ.get('TORCHELASTIC_RUN_ID')} {socket.gethostname()} {directory}"
    return Launch(job=job, restarts=int(restarts), began=time.time())


def _find_step_batches(run: RunDirectory, config: Config, ranks: Ranks) -> int:
    """Return the number of micro-batches per step."""
    try:
        return run.step_batches(config, ranks.size)
    except UserError:  # raised again after the run directory is checked
        return config.train.micro_batches(ranks.size)


def _metric_mismatch(config: Config, command: str | None) -> str | None:
    """Return why the metric contradicts `--metric-command`, or None."""
    metric = config.train.metric
    if metric == "command" and command is None:
        return (
            "train.metric: command: the program is named on the command line, never in a config; "
            f"add {OPTION} 'PROGRAM ARGUMENTS' to the command"
        )
    if metric != "command" and command is not None:
        text = f"{OPTION}: the metric of this config is {metric}"
        return f"{text}; add --set train.metric=command, or remove the option"
    return None


def _check_shape(config: Config, directory: Path) -> None:
    """Refuse initial weights of another shape before all text is prepared."""
    changes = changed_keys(load_stored_config(directory / layout.CONFIG), config)
    different = [
        f"{key}: {quote_value(old)} there, {quote_value(new)} here"
        for key, old, new in changes
        if (key.startswith("model.") and "dropout" not in key)
        or (key == "data.max_length" and config.model.positions == "learned")
    ]
    if different:
        raise RefusedError(
            f"train.init_from: {directory} holds a model of another shape; give the config its "
            "values of these settings",
            *(f"  {each}" for each in different),
        )


def _check_machines(config: Config, ranks: Ranks, blocks: Blocks) -> None:
    """Refuse devices that do not exist, and ranks whose settings resolve differently."""
    machine_of = partial(MachineSettings.of, config, ranks, blocks)
    machines = [asdict(machine) for machine in ranks.gather(machine_of, MachineSettings)]
    for rank, machine in enumerate(machines):
        for key, value in machine.items():
            # of the numbers of threads, only that of one operation matters
            if key == "threads" or value == machines[0][key]:
                continue
            setting = "threads" if key == "openmp" else key
            text = (
                f"train.{setting}: resolves to {machines[0][setting]} on rank 0 and to "
                f"{machine[setting]} on rank {rank}; set it to a value that all ranks support"
            )
            raise ranks.mark_shared(RefusedError(text))
