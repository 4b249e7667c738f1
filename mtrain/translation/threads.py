"""Compute several batches at a time on a CPU, in threads of Python.

The matrices of one batch are so small that two cores are faster if each computes the products of
its own batch than if they share each product. Cores that share also wait for each other at every
product, which takes several times as long if another program uses one of them.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import TypeVar

import torch

MAX_THREADS = 4  # Python's global lock limits their number

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    torch_threads: int | None = None,
    max_threads: int = MAX_THREADS,
) -> Generator[Result]:
    """Yield the results of `work`, in order, from up to `max_threads` threads of Python, which
    divide torch's threads, or have `torch_threads` of them each. Use it within `kept_threads`.
    """
    threads = torch.get_num_threads()
    count = min(threads, len(items), max_threads)
    if count < 2 and torch_threads in (None, threads):
        yield from map(work, items)
        return
    set_threads = partial(torch.set_num_threads, torch_threads or threads // count)
    pool = ThreadPoolExecutor(max(1, count), initializer=set_threads)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


class _TorchThreads:
    """Restores torch's number of threads after uses that may overlap in several threads of Python:
    a new thread inherits the number of the last call of `set_num_threads`.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the uses of threads that a fork has ended."""
        self.lock = Lock()
        self.users = 0
        self.number = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Start and end the block with the number from before the first of overlapping uses."""
        with self.lock:
            if self.users == 0:
                self.number = torch.get_num_threads()
            torch.set_num_threads(self.number)
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                torch.set_num_threads(self.number)


_torch_threads = _TorchThreads()
kept_threads = _torch_threads.kept


@cache
def prepare_forks() -> None:
    """Let forked processes compute in one thread: OpenMP's threads do not survive a fork, and a
    process would wait for them forever.
    """
    os.register_at_fork(after_in_child=_begin_child)


def _begin_child() -> None:
    _torch_threads.forget()
    torch.set_num_threads(1)
