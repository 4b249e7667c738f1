"""Processes that take tasks as they are free, and give results in the order of the tasks.

They share nothing, no queue and no lock: the death of one is an end of its pipe, and nobody waits
for ever.
"""

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import EXIT_CODES

Task = TypeVar("Task")
Result = TypeVar("Result")

# Called once in a process; returns what is then done with each task. Must be picklable, as a
# `partial` of a module's function is.
Setup = Callable[[], Callable[[Task], Result]]

# Tasks for each process that are begun before the first of all that are not done.
AHEAD = 4


class Workers(Generic[Task, Result]):
    """As many processes as there are setups; `death` is what to tell if one dies."""

    def __init__(self, setups: Iterable[Setup[Task, Result]], death: str) -> None:
        self.death = death
        self.crew = [_start(setup) for setup in setups]

    def map(self, tasks: Iterable[Task]) -> Generator[Result]:
        """Yield the result of each task, in order; tasks are read as they are wanted. Raises what
        `UserError` a process raised, or one about its death.
        """
        source, wanted = enumerate(tasks), 0
        idle, busy = [pipe for _, pipe in self.crew], dict[Connection, int]()
        done = dict[int, Result]()
        task = next(source, None)
        while task is not None or busy or done:
            while task is not None and idle and task[0] - wanted < AHEAD * len(self.crew):
                self._send(idle[-1], task[1])
                busy[idle.pop()] = task[0]
                task = next(source, None)
            if wanted in done:
                yield done.pop(wanted)
                wanted += 1
                continue
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                done[busy.pop(pipe)] = self._receive(pipe)
                idle.append(pipe)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for process, _ in self.crew:
            process.kill()
            process.join()

    def _send(self, pipe: Connection, task: Task) -> None:
        try:
            pipe.send(task)
        except OSError:
            raise UserError(self.death) from None

    def _receive(self, pipe: Connection) -> Result:
        try:
            result, error = pipe.recv()
        except (EOFError, OSError):  # between two messages, within one
            raise UserError(self.death) from None
        if error is not None:
            raise error
        return cast(Result, result)


def _start(setup: Setup[Any, Any]) -> tuple[BaseProcess, Connection]:
    """Start a process. Signals that ask a job to stop are blocked in it from its first moment on,
    for stopping is this process's to decide.
    """
    context = multiprocessing.get_context("spawn")  # forking a process with threads can deadlock
    resource_tracker.ensure_running()  # it would unblock signals when the first process starts
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, setup), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    there.close()  # else the worker's death would not be seen here
    return process, here


def _work(pipe: Connection, setup: Setup[Any, Any]) -> None:
    """Do tasks as they come, until nobody is left who wants more."""
    with suppress(EOFError, OSError):
        work, failure = None, None
        try:
            work = setup()
        except UserError as error:
            failure = error
        while True:
            task, result = pipe.recv(), None
            try:
                result = work(task) if work is not None else None
            except UserError as error:
                failure = error
            pipe.send((result, failure))
