"""Worker processes: each gets a task when it is free; results come in the order of the tasks.

Each process has its own pipe, which closes when the process dies. In a
`concurrent.futures.ProcessPoolExecutor` all processes share one pipe and its lock: if a process is
killed while it sends a result, the executor waits forever (seen with Python 3.11). The executor
also ends processes with SIGTERM, which is blocked here.
"""

import ctypes
import math
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeVar

from mtrain.runtime.errors import UserError, as_user_error
from mtrain.runtime.stop import EXIT_CODES

Task = TypeVar("Task")
Result = TypeVar("Result")

# The function that does a task. Unless the process is forked, it must be picklable, as is a
# `partial` of a module's function.
Work = Callable[[Task], Result]

Worker = tuple[BaseProcess, Connection]  # a process, and this process's end of its pipe

CGROUP, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
AHEAD = 4  # tasks per process that may begin before the next result is known
CHECK_SECONDS = 0.2  # seconds between checks for a request to stop
CAN_FORK = sys.platform == "linux"  # on macOS, system libraries may fail in a forked process
LIMITS = "close other programs, or raise the limits of this one (ulimit -u, ulimit -n)"
PR_SET_PDEATHSIG = 1  # option of prctl: a signal for this process when its parent dies


def available_threads() -> int:
    """Return the number of cores that this process may use, by its affinity and by the CPU quotas
    of its container, job or user: beyond a quota, the system would pause the threads.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return math.ceil(min(cores, *map(_quota, _cgroups())))


def worker_count(setting: int | Literal["auto"]) -> int:
    """Return the number of worker processes for a setting; `auto` is one per core."""
    return available_threads() if setting == "auto" else setting


def _cgroups() -> Iterator[Path]:
    """Yield the cgroup of this process and those around it, of versions 2 and 1."""
    own = ""
    with suppress(OSError):
        own = OWN_CGROUPS.read_text()
    for root, controllers in ((CGROUP, ""), (CGROUP / "cpu", "(?:.*,)?cpu(?:,.*)?")):
        match = re.search(rf"^\d+:{controllers}:/(.*)$", own, re.MULTILINE)
        path = root / (match[1] if match else "")
        yield from (path, *path.parents[: len(path.parts) - len(root.parts)])


def _quota(cgroup: Path) -> float:
    """Return the number of cores that a cgroup of version 2 or 1 may keep busy."""
    with suppress(OSError, ValueError):  # the quota may be "max"
        quota, period = (cgroup / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
        quota_us, period_us = (int((cgroup / name).read_text()) for name in names)
        return math.inf if quota_us < 0 else quota_us / period_us
    return math.inf


def map_tasks(
    work: Work[Task, Result],
    tasks: Iterable[Task],
    number: int,
    died_message: str,
    *,
    forked: bool = False,
    check_stop: Callable[[], object] = lambda: None,
) -> Generator[Result]:
    """Yield the result of `work` for each task, in order, from up to `number` processes. A process
    starts when a task waits for one, and tasks are read when needed. Closing the generator
    ends the processes. Raises the `UserError` of a process, or one with `died_message` if a process
    dies. `check_stop` is called regularly while results are awaited, and may raise.

    If `forked`, processes start in some milliseconds and share the memory of this one. They must
    not wait for its other threads: with torch, `work` sets the number of threads to 1.
    """
    workers: list[Worker] = []
    numbered = enumerate(tasks)
    results = dict[int, Result]()
    next_result = 0
    try:
        idle = list[Connection]()
        busy = dict[Connection, int]()  # with task numbers
        task = next(numbered, None)
        while task is not None or busy or results:
            while task is not None and task[0] - next_result < AHEAD * number:
                if not idle and len(workers) < number:
                    if _add(workers, work, forked=forked):
                        idle.append(workers[-1][1])
                    else:
                        number = len(workers)  # continue with the processes that have started
                if not idle:
                    break
                pipe = idle.pop()
                with _reporting(died_message):
                    pipe.send(task[1])
                busy[pipe] = task[0]
                task = next(numbered, None)
            if next_result in results:
                yield results.pop(next_result)
                next_result += 1
                continue
            check_stop()
            for ready in wait(list(busy), CHECK_SECONDS):
                assert isinstance(ready, Connection)
                with _reporting(died_message):
                    results[busy.pop(ready)], error = ready.recv()
                if error is not None:
                    raise error
                idle.append(ready)
    finally:
        _kill(workers)


def _kill(workers: list[Worker]) -> None:
    for process, _ in workers:
        process.kill()
    for process, _ in workers:  # releasing their memory takes milliseconds
        process.join()


@contextmanager
def _reporting(died_message: str) -> Iterator[None]:
    """Turn a pipe that closes, between two messages or within one, into a `UserError`."""
    try:
        yield
    except (EOFError, OSError):
        raise UserError(died_message) from None


def _add(workers: list[Worker], work: Work[Any, Any], *, forked: bool) -> bool:
    """Start another process, if the system can; raises `UserError` if it cannot start the first."""
    try:
        workers.append(_start(work, forked=forked))
    except OSError as error:  # too many processes or open files, or no memory
        if not workers:
            raise UserError(f"cannot start a process: {error.strerror}; {LIMITS}") from None
        return False
    return True


def _start(work: Work[Any, Any], *, forked: bool) -> Worker:
    """Start a process, which blocks the signals that request a stop: only this process acts on
    them.
    """
    # forking a process with threads can deadlock: see `map_tasks`
    context: Any = multiprocessing.get_context("fork" if forked else "spawn")
    here, there = context.Pipe()
    if not forked:
        resource_tracker.ensure_running()  # it would unblock signals when the first process starts
    process = context.Process(target=_work, args=(os.getpid(), there, work), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, about threads
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    there.close()  # else the pipe would stay open when the process dies
    return process, here


def _work(parent: int, pipe: Connection, work: Work[Any, Any]) -> None:
    """Do the tasks that arrive, until the other end of the pipe is closed. On Linux the process
    dies with its parent: a forked process has inherited the pipes and the parent's locks.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(EOFError, OSError):
        while os.getppid() == parent:
            task = pipe.recv()
            result = failure = None
            try:
                result = work(task)
            except (UserError, OSError, MemoryError) as error:
                failure = as_user_error(error)
            pipe.send((result, failure))
