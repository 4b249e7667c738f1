"""A training job: its processes met, its run directory held, its text prepared, its model trained,
its end told.
"""

import json
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from mtrain import checkpoint, layout
from mtrain.config import Config, dump_config, load_config
from mtrain.device import telling_lack_of_memory
from mtrain.distributed import Ranks, joined
from mtrain.errors import EXIT_FAILED, EXIT_OK, RefusedError, StoppedError, UserError
from mtrain.log import add_log_file, logger
from mtrain.machine import Machine, device_of
from mtrain.prepare import Prepared, prepare
from mtrain.rundir import RunDirectory
from mtrain.stop import Stop
from mtrain.tensorboard import board_of, check_board
from mtrain.tokenizer import Tokenizer
from mtrain.train import Trainer

LACK_OF_MEMORY = "out of memory; free some, or start a smaller run"


def train(config: Config, stop: Stop) -> None:
    """Start, resume or confirm a run, by as many processes as the job has; raises `StoppedError`
    once a stop is saved, `UserError` on failure.
    """
    with joined() as ranks, ExitStack() as stack:
        _check_alike(config, ranks)  # refused before anything is written
        run = RunDirectory(Path(config.run_dir), board_of(config))

        def hold() -> None:
            check_board(config)
            stack.enter_context(run.hold())
            add_log_file(run.path / "train.log")

        ranks.first(hold)
        if ranks.is_first:
            ranks.before_leaving = partial(_tell_end, run)
        step = _train_or_tell(config, run, stop, ranks)
        if ranks.is_first:
            run.set_status("complete", step, exit_code=EXIT_OK)


def _tell_end(run: RunDirectory, text: str) -> None:
    """Leave word of a run that ends because another process of the job has gone."""
    run.set_status("failed", _last_step(run), text, EXIT_FAILED)


def _last_step(run: RunDirectory) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    present = layout.steps(run.checkpoints)
    return layout.step_of(present[-1]) or 0 if present else 0


def _check_alike(config: Config, ranks: Ranks) -> None:
    """Refuse devices that are not there or not free, and processes that would not compute alike."""

    def find() -> bytes:
        machine, device = Machine.of(config, ranks), device_of(config.train.device, ranks)
        gpu = torch.cuda.get_device_properties(device).uuid if device.type == "cuda" else ranks.rank
        alike = {**asdict(machine), "threads": 0}
        return json.dumps([str(gpu), alike]).encode()

    ranks.check_same(dump_config(config), "settings")
    gpus, machines = zip(*map(json.loads, ranks.gather(find)), strict=True)
    if len(set(gpus)) < len(gpus):
        raise ranks.as_one(
            RefusedError("train.device: two processes have the same GPU; start one for each GPU")
        )
    for rank, machine in enumerate(machines):
        for key, value in machine.items():
            if value != machines[0][key]:
                raise ranks.as_one(
                    RefusedError(
                        f"train.{key}: comes to {machines[0][key]} on rank 0 and {value} on rank "
                        f"{rank}; set it to what all of them have"
                    )
                )


def _train_or_tell(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks) -> int:
    """Train to the end and return the last step; whatever ends it earlier is told in the status."""
    trainer, step = None, 0
    try:
        step = _last_step(run)

        def begin() -> None:
            run.check_settings(config, ranks.size)
            if not step and config.train.init_from is not None:
                _check_beginning(config, Path(config.train.init_from))
            run.set_status("preparing", step)

        ranks.first(begin)
        with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
            prepared = _prepare(config, run, stop, ranks)
            trainer = Trainer(config, prepared, run, stop, ranks)
            trainer.run()
    except (UserError, OSError) as error:
        failure = error if isinstance(error, UserError) else run.failure(error)
        state = "stopped" if isinstance(error, StoppedError) else "failed"
        if isinstance(error, RefusedError):
            state = "refused"
        step = max(step, trainer.position.step) if trainer else step
        if ranks.is_first:
            with suppress(OSError):  # on a full disk the message is all that can be left
                run.set_status(state, step, str(failure), failure.exit_code)
        raise failure from None
    return trainer.position.step


def _check_beginning(config: Config, path: Path) -> None:
    """Refuse a model to begin with that is of another shape, before all text is prepared."""
    directory = checkpoint.resolve(path)
    other = load_config(directory / layout.CONFIG).model.model_dump()
    odd = [
        f"model.{key}: {other[key]!r} there, {value!r} here"
        for key, value in config.model.model_dump().items()
        if value != other[key] and not key.endswith("dropout")
    ]
    if odd:
        raise RefusedError(
            f"train.init_from: {directory} holds a model of another shape: {', '.join(odd)}"
        )


def _prepare(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks) -> Prepared:
    """Prepare the text on the first rank, then on the others, who may be on machines with a cache
    of their own; all must come to the same.
    """
    found: list[Prepared] = []

    def lead() -> bytes:
        found.append(prepare(config, run.tokenizer, stop))
        run.check_data(found[0].fingerprints)
        return found[0].tokenizer.proto

    vocabulary = ranks.share(lead)

    def follow() -> bytes:
        if not found:
            found.append(prepare(config, run.tokenizer, stop, Tokenizer(vocabulary)))
        return json.dumps(found[0].fingerprints).encode()

    prints = ranks.gather(follow)
    for rank, text in enumerate(prints):
        if text != prints[0]:
            raise ranks.as_one(
                UserError(f"data: rank {rank} reads other text than rank 0; give all the same")
            )
    return found[0]


def dry_run(config: Config, stop: Stop) -> None:
    """Load everything and say what training would do; nothing is written but the cache of tokenized
    text.
    """
    with joined() as ranks:
        _check_alike(config, ranks)
        ranks.first(partial(_tell_plan, config, stop, ranks))


def _tell_plan(config: Config, stop: Stop, ranks: Ranks) -> None:
    check_board(config)
    run = RunDirectory(Path(config.run_dir))
    run.check_settings(config, ranks.size)
    with telling_lack_of_memory(lambda: LACK_OF_MEMORY):
        prepared = prepare(config, run.tokenizer, stop)
        run.check_data(prepared.fingerprints)
        trainer = Trainer(config, prepared, run, stop, ranks)
    found, _ = trainer.look_back()
    if found is not None:
        trainer.position.step = found.trainer.loop.step
        trainer.validation.look_back(trainer.position.step)
    trainer.announce()
    logger.info("dry run: nothing was trained")
