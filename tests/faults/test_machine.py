"""Disks that fill up or go away, memory that runs out, workers that die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from conftest import made_up_pairs, status, write_corpus
from processes import Done, Processes

from faults.rig import Bench, Rig, new_config, strike, undisturbed
from mtrain.runs import checkpoint, layout
from mtrain.runtime.errors import EXIT_INTERRUPTED

BALLAST = 64 << 20


class SmallDisk:
    """A file system of 64 MiB in memory, seen by the processes that its bench starts."""

    def __init__(self, bench: Bench) -> None:
        place = bench.directory / "disk"
        place.mkdir()
        mount = f'mount -t tmpfs -o size={BALLAST} none {place} && exec "$@"'
        processes = Processes(bench.directory, ["unshare", "-rm", "sh", "-c", mount, "sh"])
        self.bench = Bench(bench.config, place, processes)
        processes.mtrain("--version")
        self.root = Path(f"/proc/{processes.idle[0].pid}/root{place}")  # as the tests see it

    def leave(self, free: int) -> None:
        """Fill it up to `free` bytes."""
        ballast = self.root / "ballast"
        ballast.unlink(missing_ok=True)
        usage = shutil.disk_usage(self.root)
        with ballast.open("wb") as out:
            out.write(bytes(max(0, usage.free - free)))

    def seen(self, rig: Rig) -> Rig:
        return Rig(rig.config, self.root / rig.directory.name)


@pytest.fixture
def disk(bench: Bench) -> Iterator[SmallDisk]:
    bench.quick_or_full(0, 1)
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    if shutil.which("unshare") is None or subprocess.run(command, stderr=-3).returncode:
        pytest.skip("this system lets nobody mount a file system")
    disk = SmallDisk(bench)
    with disk.bench.processes:
        yield disk


def load_all(rig: Rig) -> None:
    """Fail where a checkpoint that counts as complete is not."""
    for path in layout.complete_checkpoints(rig.run / "checkpoints"):
        checkpoint.load(path)


def test_a_full_disk(bench: Bench, disk: SmallDisk) -> None:
    other, _ = undisturbed(bench.config)

    def trial(free: int) -> str:
        rig = disk.bench.rig()
        seen = disk.seen(rig)
        disk.leave(free)
        done = disk.bench.train(rig)
        problem = "" if done.code == 0 else done.fails(1, "No space left")
        load_all(seen)
        disk.leave(BALLAST // 2)
        problem = problem or disk.bench.train(rig).fails() or seen.differs_from(other)
        shutil.rmtree(seen.directory)
        return problem

    amounts = range(50_000, 850_000, 50_000)  # all of it takes a little more
    bench.inject(trial, amounts, threads=len(os.sched_getaffinity(0)))


def test_a_directory_that_cannot_be_written(bench: Bench, disk: SmallDisk) -> None:
    def trial(place: str) -> str:
        mount = f"import subprocess; subprocess.run(['mount', '-o', 'remount,{{}}', {place!r}])"
        rig = disk.bench.rig()
        stop = "os.kill(os.getpid(), signal.SIGTERM)"
        disk.bench.train(rig, prelude=strike(33, stop))
        done = disk.bench.train(rig, prelude=mount.format("ro"))
        again = disk.bench.train(rig, prelude=mount.format("rw"))
        differs = disk.seen(rig).differs_from(undisturbed(bench.config)[0])
        return done.fails(1, "Read-only file system") or again.fails() or differs

    place = str(disk.bench.directory)
    bench.inject(trial, [place])


def test_a_limit_on_the_size_of_files(bench: Bench) -> None:
    def trial(size: int) -> str:
        rig = bench.rig()
        action = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
        done = bench.train(rig, prelude=strike(33, action))
        load_all(rig)
        return done.fails(1, "File too large", "(ulimit -f)") or bench.finishes(rig)

    sizes = [6_000, 10_000, 20_000, 30_000, 40_000, 50_000, 70_000, 80_000]
    bench.inject(trial, sizes, quick=1)


def test_a_directory_that_vanishes(bench: Bench) -> None:
    def trial(name: str) -> str:
        rig = bench.rig()
        action = f"shutil.rmtree(self.directory.path / {name!r})"
        problem = bench.train(rig, prelude=strike(53, action)).fails(1, str(rig.run))
        if name:  # validated steps whose checkpoints are gone: not begun again silently
            gone = "the checkpoints of this run are gone"
            problem = problem or bench.train(rig).fails(2, gone)
            shutil.rmtree(rig.run)
        return problem or bench.finishes(rig)

    bench.inject(trial, ["checkpoints", ""])


# --- workers and memory ---------------------------------------------------------------------------


def workers_of(pid: int) -> list[int]:
    """Return the processes that another one started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            is_worker = parent == pid and b"spawn_main" in (path / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if is_worker:
            found.append(int(path.name))
    return found


def test_a_signal_while_processes_tokenize(bench: Bench, request: pytest.FixtureRequest) -> None:
    """One of them is killed, or Ctrl-C, `scancel` or `timeout` reaches all, ready or not."""
    bench.quick_or_full(0, 1)
    trained_run = request.getfixturevalue("trained_run")
    corpus = write_corpus(bench.directory / "large", made_up_pairs(150_000, 1))
    tokenizer = str(trained_run / "tokenizer.model")
    settings = {"data.train": [corpus], "data.workers": 2, "train.max_steps": 2}
    settings["data.allow_overlap"] = True  # so much text has all short sentences
    vocabulary = {"tokenizer.path": tokenizer, "tokenizer.vocab_size": 350}
    config = new_config(bench.directory / "large", **settings, **vocabulary)

    def trial(case: tuple[str, int]) -> str:
        what, number = case
        rig = bench.rig(config=config)
        process = rig.start(start_new_session=True)
        while process.poll() is None and len(workers_of(process.pid)) < 2:
            time.sleep(0.01)
        time.sleep(0.2 * number)  # all of it takes about a second
        if what == "killed":
            os.kill(workers_of(process.pid)[number % 2], signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        done = Done(process.returncode, out.encode(), err, 0, 0)
        if what == "killed":
            return done.fails(1, "data.workers") or rig.finish().fails()
        return done.fails(EXIT_INTERRUPTED) or rig.finish().fails()

    cases = list(product(("killed", "Ctrl-C"), range(4)))
    bench.inject(trial, cases, threads=2)


def test_out_of_memory(bench: Bench) -> None:
    """As the accelerator would say it, and for real: the system refuses more memory."""

    def trial(action: str) -> str:
        rig = bench.rig()
        lacking = f"def fail(*_): {action}\n        self.learner.sum_gradients = fail"
        done = bench.train(rig, prelude=strike(33, lacking))
        words = ("step 34", "out of memory", "train.max_tokens", "tokens")
        if problem := done.fails(1, *words):
            return problem
        if status(rig.run)["exit_code"] != 1:
            return f"{status(rig.run)}"
        return bench.finishes(rig)

    actions = [
        "raise torch.OutOfMemoryError('CUDA out of memory')",
        "raise MemoryError",
        "torch.empty(1 << 50)",
    ]
    bench.inject(trial, actions, quick=1)
