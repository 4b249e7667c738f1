"""Disks that fill up or go away, memory that runs out, workers that die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import made_up_pairs, status, write_corpus

from faults.conftest import Count, Tally
from faults.rig import Processes, Rig, in_parallel, new_config, strike, undisturbed
from mtrain.runs import checkpoint, layout
from mtrain.runtime.errors import EXIT_INTERRUPTED

BALLAST = 64 << 20


@pytest.fixture(scope="module")
def config(place: Path) -> Path:
    return new_config(place / "machine", **{"train.max_steps": 60, "train.valid_every": 20})


class SmallDisk:
    """A file system of 64 MiB in memory, seen by the processes started here; `root` shows it to
    the tests.
    """

    def __init__(self, directory: Path) -> None:
        self.place = directory / "disk"
        self.place.mkdir()
        mount = f'mount -t tmpfs -o size={BALLAST} none {self.place} && exec "$@"'
        self.processes = Processes(directory, ["unshare", "-rm", "sh", "-c", mount, "sh"])

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.processes.idle[0].pid}/root{self.place}")

    def leave(self, free: int) -> None:
        """Fill it up to so many bytes."""
        ballast = self.root / "ballast"
        ballast.unlink(missing_ok=True)
        usage = shutil.disk_usage(self.root)
        with ballast.open("wb") as out:
            out.write(bytes(max(0, usage.free - free)))


def can_mount() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(command, stderr=-3).returncode


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not can_mount():
        pytest.skip("this system lets nobody mount a file system")
    disk = SmallDisk(tmp_path)
    with disk.processes:
        disk.processes.mtrain("--version")
        yield disk


def test_a_full_disk(config: Path, disk: SmallDisk, tally: Tally, count: Count) -> None:
    amounts = range(50_000, 850_000, 800_000 // count(0, 16))  # all of it takes a little more
    other, _ = undisturbed(config)
    outcomes = []
    for free in amounts:
        rig = Rig(config, disk.place / str(free))
        seen = Rig(config, disk.root / str(free))
        disk.leave(free)
        done = disk.processes.train(rig)
        if done.code == 0:
            shutil.rmtree(seen.directory)
            continue
        tidy = done.code == 1 and "Traceback" not in done.err and "Logging error" not in done.err
        trouble = "" if tidy and "No space left" in done.err else f"{done.code}\n{done.err}"
        for path in layout.steps(seen.run / "checkpoints"):
            checkpoint.load(path)
        disk.leave(BALLAST // 2)
        done = disk.processes.train(rig)
        if done.code or done.out:
            trouble = f"afterwards: {done.code}\n{done.err}"
        outcomes.append(trouble and f"{free} bytes free: {trouble}")
        outcomes[-1] = outcomes[-1] or seen.differs_from(other)
        shutil.rmtree(seen.directory)
    tally.check(5, "a full disk", outcomes)


def test_a_disk_too_small_is_warned_of(config: Path, disk: SmallDisk, tally: Tally) -> None:
    rig = Rig(config, disk.place / "small", ("model.d_model=128",))
    disk.leave(4_000_000)
    done = disk.processes.train(rig, "--dry-run")
    told = done.code == 0 and "warning:" in done.err and "checkpoints" in done.err
    tally.check(5, "a disk too small, warned of before the start", ["" if told else done.err])


def test_a_limit_on_the_size_of_files(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    other, _ = undisturbed(config)

    def trial(size: int) -> str:
        rig = Rig(config, tmp_path / str(size))
        deed = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
        done = processes.train(rig, prelude=strike(33, deed))
        tidy = "Traceback" not in done.err and "Logging error" not in done.err
        if done.code != 1 or not tidy or "File too large" not in done.err:
            return f"{size}: {done.code}\n{done.err}"
        for path in layout.steps(rig.run / "checkpoints"):
            checkpoint.load(path)
        return processes.finishes_as(rig, other)

    sizes = [6_000, 10_000, 20_000, 30_000, 40_000, 50_000, 70_000, 80_000]
    tally.check(5, "a limit on the size of files", in_parallel(trial, sizes[: count(1, 8)]))


def test_a_directory_that_vanishes(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    other, _ = undisturbed(config)

    def trial(name: str) -> str:
        rig = Rig(config, tmp_path / (name or "all"))
        done = processes.train(
            rig, prelude=strike(33, f"shutil.rmtree(self.run_dir.path / {name!r})")
        )
        if done.code != 1 or "Traceback" in done.err or str(rig.run) not in done.err:
            return f"{name}: {done.code}\n{done.err}"
        if name:  # validated steps whose checkpoints are gone: not begun anew without a word
            done = processes.train(rig)
            if done.code != 2 or "the checkpoints of this run are gone" not in done.err:
                return f"{name}, again: {done.code}\n{done.err}"
            shutil.rmtree(rig.run)
        return processes.finishes_as(rig, other)

    names = ["checkpoints", ""][: count(1, 2)]
    tally.check(5, "a directory that vanishes", in_parallel(trial, names))


def test_a_directory_that_cannot_be_written(
    config: Path, disk: SmallDisk, tally: Tally, count: Count
) -> None:
    count(0, 1)
    other, _ = undisturbed(config)
    outcomes = []
    mount = "subprocess.run(['mount', '-o', 'remount,{}', {!r}], check=True)"
    rig, seen = Rig(config, disk.place / "run"), Rig(config, disk.root / "run")
    stop = "os.kill(os.getpid(), signal.SIGTERM)"
    disk.processes.train(rig, prelude=strike(33, stop))
    read_only = f"import subprocess; {mount.format('ro', str(disk.place))}"
    done = disk.processes.train(rig, prelude=read_only)
    told = done.code == 1 and "Read-only file system" in done.err and "Traceback" not in done.err
    outcomes.append("" if told else f"{done.code}\n{done.err}")
    write = f"import subprocess; {mount.format('rw', str(disk.place))}"
    done = disk.processes.train(rig, prelude=write)
    outcomes.append(done.err if done.code else seen.differs_from(other))
    tally.check(5, "a directory that cannot be written", outcomes)


# --- workers and memory ---------------------------------------------------------------------------


def workers_of(pid: int) -> list[int]:
    """The processes that another one started."""
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


@pytest.fixture
def large(tmp_path: Path, trained_run: Path) -> Path:
    """A corpus that is worth several processes, and a vocabulary for it."""
    corpus = write_corpus(tmp_path / "large", made_up_pairs(150_000, 1))
    tokenizer = {
        "tokenizer.path": str(trained_run / "tokenizer.model"),
        "tokenizer.vocab_size": 350,
    }
    settings = {"data.train": [corpus], "data.workers": 2, "train.max_steps": 2}
    return new_config(tmp_path, **tokenizer, **settings)


def start_tokenizing(rig: Rig) -> subprocess.Popen[str]:
    """Start a run, as a job of its own, and wait until its processes tokenize."""
    process = rig.start(start_new_session=True)
    while process.poll() is None and len(workers_of(process.pid)) < 2:
        time.sleep(0.01)
    return process


def test_a_worker_that_is_killed(large: Path, tmp_path: Path, tally: Tally, count: Count) -> None:
    def trial(number: int) -> str:
        rig = Rig(large, tmp_path / str(number))
        process = start_tokenizing(rig)
        time.sleep(0.2 * number)  # all of it takes about a second
        os.kill(workers_of(process.pid)[number % 2], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        if process.returncode != 1 or "Traceback" in err or "data.workers" not in err:
            return f"{process.returncode}\n{err}"
        return rig.finish()

    tally.check(14, "a worker of the preparation killed", [trial(n) for n in range(count(0, 4))])


def test_a_signal_to_a_whole_job(large: Path, tmp_path: Path, tally: Tally, count: Count) -> None:
    """Ctrl-C, `scancel` and `timeout` reach the processes that tokenize, too, ready or not."""

    def trial(number: int) -> str:
        rig = Rig(large, tmp_path / str(number))
        process = start_tokenizing(rig)
        time.sleep(0.2 * number)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        if process.returncode != EXIT_INTERRUPTED or "Traceback" in err:
            return f"after {0.2 * number} s: {process.returncode}\n{err}"
        return rig.finish()

    name = "Ctrl-C to all processes of a preparation"
    tally.check(3, name, [trial(n) for n in range(count(0, 4))])


def test_out_of_memory(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    """As the accelerator would say it, and for real: the system refuses more memory."""
    other, _ = undisturbed(config)
    deeds = {
        "device": "raise torch.OutOfMemoryError('CUDA out of memory')",
        "host": "raise MemoryError",
        "for real": "torch.empty(1 << 50)",
    }

    def trial(name: str) -> str:
        rig = Rig(config, tmp_path / name)
        lacking = f"def learn(batch): {deeds[name]}\n        self.learner.learn = learn"
        done = processes.train(rig, prelude=strike(33, lacking))
        words = ("step 34", "out of memory", "train.max_tokens", "tokens")
        if done.code != 1 or not all(word in done.err for word in words):
            return f"{name}: {done.code}\n{done.err}"
        if status(rig.run)["exit_code"] != 1:
            return f"{name}: {status(rig.run)}"
        return processes.finishes_as(rig, other)

    some = list(deeds)[: count(1, len(deeds))]
    tally.check(14, "out of memory", in_parallel(trial, some))
