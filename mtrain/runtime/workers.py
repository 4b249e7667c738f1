"""Processes that take tasks as they are free, and give results in the order of the tasks.

Each process has a pipe of its own, whose end reports its death. The processes of a
`concurrent.futures.ProcessPoolExecutor` share one pipe and its lock: when one of them is killed
while it sends a result, the executor waits for ever (seen with Python 3.11). It also ends processes
by SIGTERM, which these must not receive.
"""

import ctypes
import math
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from mtrain.runtime.errors import UserError, as_user_error
from mtrain.runtime.stop import EXIT_CODES

Task = TypeVar("Task")
Result = TypeVar("Result")

# Called once in a process; returns the function for its tasks. Must be picklable, as a `partial` of
# a module's function is, unless the process is forked.
Setup = Callable[[], Callable[[Task], Result]]

Member = tuple[BaseProcess, Connection]  # a process, and the pipe to it

CGROUP = Path("/sys/fs/cgroup")
AHEAD = 4  # tasks of each process that may begin before the next result in order
CAN_FORK = sys.platform == "linux"  # libraries of macOS may fail in a forked process
NO_PROCESS = "cannot start a process"
LIMITS = "close other programs, or raise the limits of this one (ulimit -u, ulimit -n)"
PR_SET_PDEATHSIG = 1  # prctl: the signal that a process gets when the one that started it dies


def available_threads() -> int:
    """Return how many cores this process may use: of the machine or its affinity, and of a
    container's quota, with which more threads would be paused in turn.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return math.ceil(min(cores, _quota()))


def _quota() -> float:
    """Return the cores' worth of time that a container may use, by version 2 or 1 of cgroups."""
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
        allowed, each = (int((CGROUP / "cpu" / name).read_text()) for name in names)
        return math.inf if allowed < 0 else allowed / each
    return math.inf


def map_tasks(
    setup: Setup[Task, Result],
    tasks: Iterable[Task],
    number: int,
    death: str,
    *,
    forked: bool = False,
) -> Generator[Result]:
    """Yield the result of each task, in order, from up to `number` processes, which start as tasks
    wait for one; tasks are read as they are needed. Closing the generator ends the processes.
    Raises the `UserError` of a process, or one with the message `death` if a process dies.

    Processes that are `forked` start in some milliseconds and share the memory of this one. They
    must not wait for another of its threads: with torch, `setup` sets the number of threads to 1.
    """
    crew: list[Member] = []
    source, done, wanted = enumerate(tasks), dict[int, Result](), 0
    try:
        idle, busy = list[Connection](), dict[Connection, int]()
        task = next(source, None)
        while task is not None or busy or done:
            while task is not None and task[0] - wanted < AHEAD * number:
                if not idle and len(crew) < number:
                    if _add(crew, setup, forked=forked):
                        idle.append(crew[-1][1])
                    else:
                        number = len(crew)  # those that have started do all tasks
                if not idle:
                    break
                pipe = idle.pop()
                with _reporting(death):
                    pipe.send(task[1])
                busy[pipe], task = task[0], next(source, None)
            if wanted in done:
                yield done.pop(wanted)
                wanted += 1
                continue
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                with _reporting(death):
                    done[busy.pop(ready)], error = ready.recv()
                if error is not None:
                    raise error
                idle.append(ready)
    finally:
        for process, _ in crew:
            process.kill()
            process.join()


@contextmanager
def _reporting(death: str) -> Iterator[None]:
    """Turn the end of a pipe, between two messages or within one, into a `UserError`."""
    try:
        yield
    except (EOFError, OSError):
        raise UserError(death) from None


def _add(crew: list[Member], setup: Setup[Any, Any], *, forked: bool) -> bool:
    """Start a process; return whether that was possible. Raises `UserError` if it is the first."""
    try:
        crew.append(_start(setup, [pipe for _, pipe in crew], forked=forked))
    except OSError as error:  # too many processes or open files, or no memory
        if not crew:
            raise UserError(f"{NO_PROCESS}: {error.strerror}; {LIMITS}") from None
        return False
    return True


def _start(setup: Setup[Any, Any], pipes: list[Connection], *, forked: bool) -> Member:
    """Start a process, after those with these pipes. Signals that ask a job to stop are blocked in
    it from the start, since only this process acts on them.
    """
    # forking a process with threads can deadlock: see `map_tasks`
    context: Any = multiprocessing.get_context("fork" if forked else "spawn")
    here, there = context.Pipe()
    work: Callable[[], None] = partial(_work, there, setup)
    if forked:
        work = partial(_work_forked, os.getpid(), [*pipes, here], work)
    else:
        resource_tracker.ensure_running()  # it would unblock signals when the first process starts
    process = context.Process(target=work, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, about threads
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    there.close()  # the pipe ends only when nobody else holds this end
    return process, here


def _work_forked(parent: int, pipes: list[Connection], work: Callable[[], None]) -> None:
    """Do the work of a forked process, which gets all files of its parent: it closes the parent's
    ends of pipes, and dies with the parent, as it would keep the parent's locks.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for pipe in pipes:
        pipe.close()
    if os.getppid() == parent:
        work()


def _work(pipe: Connection, setup: Setup[Any, Any]) -> None:
    """Do tasks as they come, until the other end of the pipe is gone."""
    work = None
    with suppress(EOFError, OSError):
        while True:
            task, result, failure = pipe.recv(), None, None
            try:
                work = work or setup()
                result = work(task)
            except (UserError, OSError, MemoryError) as error:
                failure = as_user_error(error)
            pipe.send((result, failure))
