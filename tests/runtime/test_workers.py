"""Worker processes: results in the order of the tasks, and an end to all when one dies."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from mtrain.corpus.lines import RowError
from mtrain.runtime import workers
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import EXIT_CODES
from mtrain.runtime.workers import AHEAD, map_tasks

needs_fork = pytest.mark.skipif(not workers.CAN_FORK, reason="processes are not forked here")

SLOW, LAST = 97, 98
FAILURES: dict[int, Exception] = {
    17: UserError("seventeen"),
    19: OSError(errno.ENOSPC, "No space left", "a file"),
    23: MemoryError(),
    29: RowError("file:", 3, "no text", "encoding"),
}


def square(task: int) -> tuple[int, int]:
    """Return the process and the square of a task; some tasks end the process, or take longer."""
    if task == 11:
        Connection._send = half_send  # type: ignore[attr-defined]
    if task == LAST:
        Connection._send = last_send  # type: ignore[attr-defined]
    if task == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == SLOW:
        time.sleep(100)
    if task in FAILURES:
        raise FAILURES[task]
    for _ in range(200_000 if task % 5 == 0 else 0):
        pass
    return os.getpid(), task * task


def half_send(pipe: Connection, data: bytes) -> None:
    """Be killed while sending."""
    os.write(pipe.fileno(), bytes(data)[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def last_send(pipe: Connection, data: bytes) -> None:
    """Be killed once a result is sent."""
    os.write(pipe.fileno(), bytes(data))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(params=[False, pytest.param(True, marks=needs_fork)], ids=["spawned", "forked"])
def forked(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_results_come_in_order_from_all_processes(forked: bool) -> None:
    tasks = [n for n in range(60) if n not in (11, 13, *FAILURES)]
    found = list(map_tasks(square, tasks, 2, "died", forked=forked))
    assert [result for _, result in found] == [n * n for n in tasks]
    assert len({process for process, _ in found}) == 2


def test_all_processes_start_before_the_first_result(tmp_path: Path, forked: bool) -> None:
    tasks = [tmp_path / name for name in "abc"]
    assert all(map_tasks(meet, tasks, 3, "died", forked=forked))


def meet(path: Path) -> bool:
    """Begin, and wait for two other tasks to begin."""
    path.touch()
    end = time.monotonic() + 30
    while len(list(path.parent.iterdir())) < 3 and time.monotonic() < end:
        time.sleep(0.02)
    return len(list(path.parent.iterdir())) == 3


def test_tasks_are_read_as_they_are_needed() -> None:
    read: list[int] = []

    def tasks() -> Iterator[int]:
        for n in range(100, 200):
            read.append(n)
            yield n

    with closing(map_tasks(square, tasks(), 1, "died")) as results:
        next(results)
        assert len(read) <= AHEAD + 2
    assert multiprocessing.active_children() == []


@needs_fork
def test_few_tasks_begin_while_the_first_one_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends once another process has had the time to do them all."""
    read, checks, end = list[int](), count(), tmp_path / "end"
    limit = 2 * AHEAD + 1  # with the one that waits for a process

    def work(task: int) -> int:
        while task == 0 and not end.exists():
            time.sleep(0.01)
        return task

    def check_stop() -> None:
        if len(read) > limit or next(checks) > 50:
            end.touch()

    tasks = (read.append(task) or task for task in range(100))
    monkeypatch.setattr(workers, "CHECK_SECONDS", 0.01)
    with closing(map_tasks(work, tasks, 2, "died", forked=True, check_stop=check_stop)) as results:
        assert next(results) == 0
        assert len(read) <= limit


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (11, "it died"),
        (13, "it died"),
        (17, "seventeen"),
        (19, "a file: No space left"),
        (23, "out of memory"),
        (29, "file:3: no text"),
    ],
)
def test_the_end_of_one_process_ends_all(task: int, message: str, forked: bool) -> None:
    with pytest.raises(UserError, match=message):
        list(map_tasks(square, [1, 2, task, 3], 2, "it died", forked=forked))
    assert multiprocessing.active_children() == []


def test_the_end_of_an_idle_process_ends_all(forked: bool) -> None:
    def tasks() -> Iterator[int]:
        yield from (1, LAST)
        while multiprocessing.active_children():
            time.sleep(0.01)
        yield 2

    with pytest.raises(UserError, match="it died"):
        list(map_tasks(square, tasks(), 1, "it died", forked=forked))


def test_a_request_to_stop_is_seen_while_a_result_is_awaited(forked: bool) -> None:
    started = time.monotonic()

    def check_stop() -> None:
        if time.monotonic() > started + 1:
            raise UserError("stopped")

    with pytest.raises(UserError, match="stopped"):
        list(map_tasks(square, [SLOW], 1, "died", forked=forked, check_stop=check_stop))
    assert time.monotonic() < started + 50
    assert not multiprocessing.active_children()


def stop_is_blocked(task: int) -> bool:
    return set(EXIT_CODES) <= signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_signals_that_request_a_stop_reach_this_process_alone(forked: bool) -> None:
    assert all(map_tasks(stop_is_blocked, range(4), 2, "died", forked=forked))
    assert not stop_is_blocked(0)


@needs_fork
def test_processes_end_with_the_one_that_started_them(forked: bool) -> None:
    """Even in the middle of a task: forked ones hold its files, and the locks on them."""
    here, there = multiprocessing.get_context("fork").Pipe()
    parent = multiprocessing.get_context("fork").Process(
        target=report_and_die, args=(there, forked)
    )
    parent.start()
    there.close()
    parent.join()
    children = here.recv()
    assert len(children) == 2
    assert parent.exitcode == -signal.SIGKILL
    assert here.poll(20)  # forked ones hold its other end until the last of them has ended
    with pytest.raises(EOFError):
        here.recv()
    for _ in range(200):
        if not any(is_running(child) for child in children):
            break
        time.sleep(0.1)
    assert not any(is_running(child) for child in children)


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def report_and_die(pipe: Connection, forked: bool) -> None:
    """Start two processes, tell their numbers, and be killed while they work."""
    results = map_tasks(square, [*range(100, 120), SLOW, SLOW, SLOW], 2, "died", forked=forked)
    pipe.send({next(results)[0] for _ in range(20)})
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("started", [0, 1])
def test_processes_that_cannot_start_are_done_without(
    monkeypatch: pytest.MonkeyPatch, started: int, forked: bool
) -> None:
    start, begun = BaseProcess.start, []

    def limited(process: BaseProcess) -> None:
        begun.append(process)
        if len(begun) > started:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(BaseProcess, "start", limited)
    results = map_tasks(square, [1, 2, 3], 3, "died", forked=forked)
    if not started:
        with pytest.raises(UserError, match="cannot start a process: Resource"):
            next(results)
        return
    found = list(results)
    assert [result for _, result in found] == [1, 4, 9]
    assert len(begun) == started + 1  # it is not tried again
    assert len({process for process, _ in found}) == 1


def test_an_error_from_a_process_is_whole() -> None:
    with pytest.raises(RowError) as caught:
        list(map_tasks(square, [29], 1, "it died"))
    error = caught.value
    assert (error.place, error.number, error.reason, error.kind) == (
        "file:",
        3,
        "no text",
        "encoding",
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": ""}, 8),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "5000 100000"}, 1),
        ({"cpu.max": "3200000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        # of a user or a job, in a cgroup of its own or above that of this process
        ({"own": "0::/u/job", "u/job/cpu.max": "200000 100000"}, 2),
        ({"own": "0::/u/job", "u/job/cpu.max": "max 100000", "u/cpu.max": "200000 100000"}, 2),
        ({"own": "0::/other", "u/cpu.max": "200000 100000"}, 8),
        # of a container that sees the name of its cgroup on the host
        ({"own": "0::/docker/1", "cpu.max": "200000 100000"}, 2),
        (
            {
                "own": "9:cpuset:/a\n4:cpuacct,cpu:/u\n0::/b",
                "cpu/u/cpu.cfs_quota_us": "200000",
                "cpu/u/cpu.cfs_period_us": "100000",
            },
            2,
        ),
    ],
)
def test_the_quotas_of_cgroups_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(workers, "CGROUP", tmp_path)
    monkeypatch.setattr(workers, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert workers.available_threads() == expected
