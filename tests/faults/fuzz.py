"""`make fuzz`: odd input for every command, from a seed; what must never happen, and a table.

PYTHONPATH=tests python -m faults.fuzz --seconds 300 --seed 1
PYTHONPATH=tests python -m faults.fuzz --seed 1 --case 17       # one case again
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from faults import mutate
from faults.cases import KINDS, SAME, SECRET, WRITTEN, Case
from faults.rig import Done, Processes, new_config

MAX_SECONDS, MAX_MEMORY = 30.0, 2000
CODES = (0, 1, 2, 75)  # 75: the config asks for more steps than there is time for
TWO_STEPS = {
    "run_dir": "run",
    "data.test": {},
    "train.max_steps": 2,
    "train.save_every": 1,
    "train.valid_every": 2,
    "train.log_every": 1,
    "train.average_last": 2,
    "train.keep_checkpoints": 2,
}
# Commands whose stdout is not text that came from outside.
REPORTS = ("check", "verify", "train", "data", "average", "report", "compare", "init")
PRELUDE = """
import faulthandler, os, resource, socket
os.chdir({box!r})
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def no_network(*_, **__):
    open({network!r}, "w").close()
    raise OSError("no network here")
socket.getaddrinfo = no_network
faulthandler.dump_traceback_later({seconds})
"""
Files = dict[str, str]


@dataclass(frozen=True)
class Outcome:
    kind: str
    number: int
    command: str
    what: str
    problems: list[str]
    done: Done


def snapshot(root: Path) -> Files:
    """Return the kind and content of every path below a directory; no link is followed."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            what = f"{mode:o}"
            if stat.S_ISLNK(mode):
                what += f" -> {path.readlink()}"
            elif stat.S_ISREG(mode):
                what += " " + hashlib.blake2b(path.read_bytes()).hexdigest()
            found[str(path.relative_to(root))] = what
    return found


class Base:
    """The undamaged sandbox, copied for each case, and what commands answer in it."""

    def __init__(self, directory: Path, processes: Processes) -> None:
        self.directory, self.processes = directory, processes
        self.root = root = directory / "base"
        box = root / "box"
        config = new_config(box, **TWO_STEPS)
        config.write_text(config.read_text().replace(f"{box}/", ""))
        for name, text in {
            "box/in.txt": "bavo celu\ndimar\n\nfosi gutel hanp\n",
            "box/hyp.txt": "yalch zwent\nquarb\n\nvlund wirsk xomt\n",
            "box/out/old.txt": "what was here before\n",
            "box/out/init/README": "a folder\n",
            "home/.bashrc": "export A=1\n",
            "home/.ssh/id": f"{SECRET}\n" * 12,
            "outside/victim.txt": "of somebody else\n",
            "outside/folder/inner.txt": "of somebody else, too\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "outside/link").symlink_to("victim.txt")
        (root / "outside/dangling").symlink_to("nothing-there")
        case = Case(Random(0), root, arguments=["train", "-c", "config.yaml"])
        done = self.run(case)
        assert done.code == 0, done.err
        self._expected: dict[str, list[bytes]] = {}

    def expected(self, case: Case) -> list[bytes]:
        """Return the result of a case's command in an undamaged sandbox."""
        key = shlex.join(case.arguments)
        if key not in self._expected:
            other = self.copy(Random(0), f"{case.root.name}-undamaged")
            other.arguments, other.stdin = case.arguments, case.stdin
            done = self.run(other)
            assert done.code == 0, (key, done.err)
            self._expected[key] = result(other, done)
            shutil.rmtree(other.root)
        return self._expected[key]

    def copy(self, rng: Random, name: str) -> Case:
        root = self.directory / name
        shutil.copytree(self.root, root, symlinks=True)
        os.mkfifo(root / "outside/pipe")
        if os.geteuid() == 0:  # never the machine's own: a command may replace what it names
            os.mknod(root / "outside/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        return Case(rng, root)

    def make(self, seed: int, number: int, name: str) -> tuple[str, Case]:
        """Build the case of a number: the same for the same seed."""
        rng = Random(f"{seed} {number}")
        kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        case = self.copy(rng, name)
        KINDS[kind][1](case)
        return kind, case

    def run(self, case: Case) -> Done:
        root = case.root
        prelude = PRELUDE.format(
            box=str(case.box), network=str(root / "network"), seconds=MAX_SECONDS - 2
        )
        environment = {
            "HOME": str(root / "home"),
            "HF_HOME": str(root / "cache/huggingface"),
            "MTRAIN_CACHE": str(root / "cache"),
        }
        return self.processes.mtrain(
            *case.arguments,
            stdin=case.stdin,
            prelude=prelude,
            limit=MAX_SECONDS,
            **environment,
        )


def result(case: Case, done: Done) -> list[bytes]:
    """Return stdout and the files that must be the same whenever a command succeeds."""
    written = [case.box / name for name in WRITTEN]
    return [done.out, *(path.read_bytes() if path.is_file() else b"" for path in written)]


def _crashes(case: Case, done: Done) -> Iterable[str]:
    if done.seconds >= MAX_SECONDS:
        yield "hangs"
    elif "Traceback" in done.err:
        yield "traceback"
    elif done.code not in CODES:
        yield f"ends with {done.code}"
    if done.memory > MAX_MEMORY and "out of memory" not in done.err:  # of a model as asked for
        yield f"takes more than {MAX_MEMORY} MB: {case.command}"
    if done.code and not done.err.strip() and not done.out:
        yield f"exit code {done.code} without a word"


def _texts(case: Case, done: Done) -> Iterable[str]:
    shown = done.err
    if case.arguments[0] in REPORTS and "--json" not in case.arguments:
        shown += done.out.decode(errors="replace")
    if re.search(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", shown):
        yield f"prints a control character: {case.command}"
    log = case.box / "run/train.log"
    if log.is_file() and not log.is_symlink() and "train.log" not in case.what:
        shown += "\n" + log.read_text(errors="replace")
    if re.search(f"(?m)^{mutate.FORGED}", shown):
        yield "prints a forged line of a log"
    page = case.box / "out/new.html"
    is_told = page.is_file() and SECRET in page.read_text(errors="replace")
    if not case.is_own and (is_told or SECRET in shown or SECRET.encode() in done.out):
        yield f"shows the text of another file: {case.command}"
    if not case.is_own and (case.root / "network").exists():
        yield f"asks the network: {case.command}"


def _may_change(case: Case, done: Done, name: str, before: Files) -> bool:
    def within(folder: str) -> bool:
        return name == folder or name.startswith(folder + "/")

    if within("cache") or name == "network":
        return True
    if case.writes_run and within("box/run"):
        return True
    is_new = case.writes_run and name not in before
    if is_new and any(within(d) or d.startswith(name + "/") for d in case.may_write):
        return True
    return done.code == 0 and any(
        within(output) or output.startswith(name + "/") for output in case.outputs
    )


def _changes(case: Case, done: Done, before: Files, after: Files) -> Iterable[str]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and not _may_change(case, done, name, before):
            action = "removes" if name not in after else "changes" if name in before else "leaves"
            yield f"{action} {ascii(name)[1:-1][:60]}: {case.command} ({done.code})"
            return  # one is enough to look at


def _results(base: Base, case: Case, done: Done) -> Iterable[str]:
    if done.code == 0 and case.must_fail:
        yield f"accepts it: {case.command}"
    if done.code == 0 and case.lines is not None:
        written = case.box / "out/old.txt"
        text = written.read_bytes() if "-o" in case.arguments else done.out
        if text.count(b"\n") != case.lines:
            yield f"another number of lines: {case.command}"
    is_kept = done.code == 0 and case.keeps_result and case.command in SAME
    if is_kept and result(case, done) != base.expected(case):
        yield f"another result: {case.command}"


def attempt(base: Base, seed: int, number: int) -> Outcome:
    """Run a case and list what was wrong."""
    kind, case = base.make(seed, number, f"case-{number}")
    before = snapshot(case.root)
    done = base.run(case)
    after = snapshot(case.root)
    problems = [
        *_crashes(case, done),
        *_texts(case, done),
        *_changes(case, done, before, after),
        *_results(base, case, done),
    ]
    shutil.rmtree(case.root)
    return Outcome(kind, number, ascii(shlex.join(case.arguments))[1:-1], case.what, problems, done)


def attempts(base: Base, seed: int, seconds: float, cases: int | None = None) -> list[Outcome]:
    """Run cases from number 0, as many at a time as there are cores, for a time or a number."""
    numbers, end = itertools.count(), time.monotonic() + seconds

    def work(_: int) -> list[Outcome]:
        found = []
        for number in numbers:
            if time.monotonic() > end or (cases is not None and number >= cases):
                return found
            found.append(attempt(base, seed, number))
        return found

    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        return [outcome for found in pool.map(work, range(cores)) for outcome in found]


def failures(outcomes: list[Outcome], seed: int) -> str:
    """List what was wrong, and how to see it again."""
    lines = []
    for each in (outcome for outcome in outcomes if outcome.problems):
        lines += [
            f"\n{', '.join(each.problems)}: {each.kind}: {each.what!a}",
            f"  mtrain {each.command[:300]}",
            f"  exit code {each.done.code}, {each.done.seconds:.1f} s, {each.done.memory} MB",
            *(f"  | {ascii(line)[1:-1][:200]}" for line in each.done.err.splitlines()[-8:]),
            f"  again: make fuzz SEED={seed} CASE={each.number}",
        ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, Processes(Path(place)) as processes:
        base = Base(Path(place), processes)
        if chosen.case is not None:
            outcomes = [attempt(base, chosen.seed, chosen.case)]
            print(f"mtrain {outcomes[0].command}\n{outcomes[0].done.err}")
        else:
            print(f"seed {chosen.seed}", flush=True)
            outcomes = attempts(base, chosen.seed, chosen.seconds)
    print(failures(outcomes, chosen.seed))
    print(*(f"\n{count:6,} {kind}" for kind, count in Counter(o.kind for o in outcomes).items()))
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
