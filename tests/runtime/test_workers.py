"""Worker processes: results in order, and an end of all when one dies.

Spawned processes import this module, so it imports little.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.workers import AHEAD, Workers

DIES, FAILS = 13, 17  # tasks


def setup(number: int) -> Callable[[int], tuple[int, int]]:
    """A process with a number, which squares."""
    return partial(square, number)


def square(number: int, task: int) -> tuple[int, int]:
    if task == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == FAILS:
        raise UserError("seventeen")
    if task % 5 == number:  # each process is slow at other tasks
        for _ in range(200_000):
            pass
    return number, task * task


def broken_setup() -> Callable[[int], int]:
    raise RefusedError("cannot begin")


def two_workers() -> Workers[int, tuple[int, int]]:
    return Workers([partial(setup, number) for number in range(2)], "it died")


def test_results_come_in_order_from_all_processes() -> None:
    with closing(two_workers()) as crew:
        tasks = [n for n in range(60) if n not in (DIES, FAILS)]
        found = list(crew.map(tasks))
        assert [result for _, result in found] == [n * n for n in tasks]
        assert {number for number, _ in found} == {0, 1}
        assert list(crew.map([])) == []
        assert [result for _, result in crew.map(iter([3]))] == [9]


def test_tasks_are_read_as_they_are_wanted() -> None:
    read: list[int] = []

    def tasks() -> Iterator[int]:
        for n in range(100, 200):
            read.append(n)
            yield n

    with closing(Workers([partial(setup, 0)], "it died")) as crew:
        next(crew.map(tasks()))
        assert len(read) <= AHEAD + 2


@pytest.mark.parametrize(("task", "message"), [(DIES, "it died"), (FAILS, "seventeen")])
def test_an_end_of_one_ends_all(task: int, message: str) -> None:
    with closing(two_workers()) as crew, pytest.raises(UserError, match=message):
        list(crew.map([1, 2, task, 3]))
    assert not any(process.is_alive() for process, _ in crew.crew)


def test_a_process_that_cannot_begin_says_why() -> None:
    with (
        closing(Workers([broken_setup], "it died")) as crew,
        pytest.raises(RefusedError, match="cannot begin"),
    ):
        list(crew.map([1]))
