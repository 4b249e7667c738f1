"""Jobs of several processes, as torchrun would start them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mtrain.cli import app as cli
from mtrain.config.schema import Config
from mtrain.data.prepare import Preparation, Prepared
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.stop import Stop
from mtrain.training.gradients import Blocks
from mtrain.training.resume import Session
from mtrain.training.trainer import Trainer

Hook = Callable[[], None]


@dataclass
class Done:
    """How the processes of a job ended, in the order of ranks."""

    codes: list[int]
    stderr: list[str]


def trainer_of(config: Config, run: Path, prepared: Prepared | None = None) -> Trainer:
    """Return the trainer of a new run on this process alone; by default its text is prepared."""
    prepared = prepared or Preparation(config, Stop()).prepared
    blocks = Blocks(config.train.micro_batches(1))
    return Trainer(Session(config, prepared, RunDirectory(run), Stop(), Ranks(), blocks))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def as_torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    numbers = {name: str(number) for name, number in {**names, "MASTER_PORT": port}.items()}
    return {**numbers, "MASTER_ADDR": "127.0.0.1"}


def work(environment: dict[str, str], output: Path, body: Hook) -> None:
    """Run `body` as one process of a job, its stderr in `output`."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    body()


def command(arguments: list[str], hook: Hook | None) -> None:
    """Call `hook`, then run the command `mtrain` with these arguments."""
    sys.argv = ["mtrain", *arguments]
    if hook is not None:
        hook()
    cli.main()


def start(directory: Path, bodies: list[Hook]) -> Done:
    """Run a job of several processes to its end, forked from a process that has loaded torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mtrain.cli.app", "mtrain.training.job", "conftest", "ranks"])
    port = free_port()
    outputs = [directory / f"rank{rank}.txt" for rank in range(len(bodies))]
    processes = []
    for rank, body in enumerate(bodies):
        environment = {**os.environ, **as_torchrun(rank, len(bodies), port)}
        process = context.Process(target=work, args=(environment, outputs[rank], body))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert None not in codes, [output.read_text() for output in outputs]
    texts = [output.read_text() for output in outputs]
    return Done([code or 0 for code in codes], texts)


def train_by(
    size: int, config: Path, run: Path, *overrides: str, hooks: dict[int, Hook] | None = None
) -> Done:
    """Train on `size` ranks; the `hooks`, by rank, are called first."""
    arguments = ["train", "-c", str(config)]
    for override in (f"run_dir={run}", *overrides):
        arguments += ["--set", override]
    bodies = [partial(command, arguments, (hooks or {}).get(rank)) for rank in range(size)]
    return start(run.parent, bodies)


def at_step(step: int, action: Hook) -> None:
    """Call `action` in the middle of a step."""
    sum_gradients = Trainer._sum_own_gradients

    def struck(self: Trainer, *arguments: Any) -> None:
        if self.progress.step + 1 == step:
            action()
        sum_gradients(self, *arguments)

    Trainer._sum_own_gradients = struck  # type: ignore[method-assign]
