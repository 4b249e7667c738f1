"""Text that is odd or endless: lines stay next to each other, and one goes out for each that comes
in. Lines of unequal sides, bytes that are not UTF-8 and blanks are in `corpus/test_readers.py`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from conftest import LEXICON, made_up_pairs, render

from faults.rig import Bench
from mtrain.runtime.errors import EXIT_INTERRUPTED

PAIRS = 60
SETTINGS = {
    "train.max_steps": 1,
    "train.max_tokens": 100,
    "data.max_length": 64,
    "tokenizer.vocab_size": 300,
}
SEPARATORS = {
    "carriage return": "\r",
    "vertical tab": "\v",
    "form feed": "\f",
    "U+001C": "\x1c",
    "U+001D": "\x1d",
    "U+001E": "\x1e",
    "U+0085": "\x85",
    "U+2028": "\u2028",
    "U+2029": "\u2029",
    "NUL": "\0",
    "BOM": "\ufeff",
    "a megabyte": "bavo " * 200_000,
}


def sides() -> list[list[str]]:
    """Return sources and targets of a small corpus."""
    return [list(side) for side in zip(*made_up_pairs(PAIRS, 1), strict=True)]


def with_odd(lines: list[str], number: int, odd: str) -> list[str]:
    """Put something odd into the middle of a line."""
    line = lines[number]
    middle = len(line) // 2
    return [*lines[:number], line[:middle] + odd + line[middle:], *lines[number + 1 :]]


def joined(lines: list[str], *, windows: bool = False) -> bytes:
    """Join lines, as some programs of Windows do: a BOM, and a carriage return in each line."""
    data = "".join(line + ("\r\n" if windows else "\n") for line in lines).encode()
    return b"\xef\xbb\xbf" * windows + data


def translate_odd_lines(bench: Bench, model: Path, odd: str) -> str:
    """Lines next to an odd one must be translated as they are without it."""
    src, _ = sides()
    lines = with_odd(src, 30, f"{odd}lapo")

    def translate(data: bytes) -> list[bytes]:
        return bench.processes.mtrain("translate", "-m", model, stdin=data).out.split(b"\n")

    plain = translate(joined(src))
    for windows in (False, True):
        found = translate(joined(lines, windows=windows))
        same = plain[:30] + plain[31:] == found[:30] + found[31:]
        if not same or len(found) != PAIRS + 1:
            return f"{len(found) - 1} lines came back, the others are the same: {same}"
    return ""


def score_odd_lines(bench: Bench, odd: str) -> str:
    """A hypothesis or a reference that has it must still be scored line for line."""
    _, tgt = sides()
    lines = with_odd(tgt, 30, odd)
    out, ref = bench.directory / "out", bench.directory / "ref"
    for one, other in ((lines, tgt), (tgt, lines)):
        out.write_bytes(joined(one, windows=True))
        ref.write_bytes(joined(other))
        done = bench.processes.mtrain("eval", "--hypothesis", out, "-r", ref, "--json")
        if done.code:
            return f"exit code {done.code}\n{done.err}"
        result = json.loads(done.out)
        most_is_right = result["bleu"]["score"] > 90 or len(odd) > 1  # of a megabyte little is
        if result["lines"] != PAIRS or not most_is_right:
            return f"{result}"
    return ""


def test_odd_characters(bench: Bench, trained_run: Path) -> None:
    def trial(name: str) -> str:
        own = Bench(bench.config, bench.directory / name, bench.processes)
        own.directory.mkdir()
        odd = SEPARATORS[name]
        problems = {
            "translate": translate_odd_lines(own, trained_run, odd),
            "eval": score_odd_lines(own, odd),
        }
        return "\n".join(f"{key}: {text}" for key, text in problems.items() if text)

    bench.inject(trial, list(SEPARATORS), quick=2)


# --- fuzz ---------------------------------------------------------------------------------------


def fuzz(number: int) -> str:
    """One line of anything."""
    rng = random.Random(number)
    kind = number % 12
    words = " ".join(rng.choices(list(LEXICON), k=rng.randint(1, 6)))
    if kind < 4:
        return words
    return {
        4: "",
        5: " " * rng.randint(1, 9) + "\u3000\t",
        6: words + " " + "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(5)),
        7: "\U0001f600\u200d" * rng.randint(1, 5),
        8: words[:3] + "\0" + words[3:],
        9: "".join(chr(rng.choice((9, 11, 12, 28, 133, 8232, 65279))) for _ in range(4)) + words,
        10: "".join(chr(rng.randint(33, 1000)) for _ in range(rng.randint(1, 20))),
        11: "bavo " * 5000 if number % 1200 == 611 else words.upper(),
    }[kind]


def test_fuzzed_lines(bench: Bench, trained_run: Path) -> None:
    """Batches of about 1, 7 and 64 lines, with beams of 1 and 5."""
    lines = [fuzz(number) for number in range(bench.quick_or_full(36, 10_000))]
    data = "\n".join(lines).encode()  # and no newline at the end
    places = [i for i, line in enumerate(lines) if i % 12 < 4]
    found: dict[tuple[int, int], list[str]] = {}

    def trial(case: tuple[int, int]) -> str:
        rows, beam = case
        tokens = str(beam * rows * 12 if rows > 1 else 1)
        options = ("--beam-size", str(beam), "--batch-tokens", tokens)
        done = bench.processes.mtrain("translate", "-m", trained_run, *options, stdin=data)
        texts = found[case] = done.out.decode().removesuffix("\n").split("\n")
        is_cut = any(len(line) > 20_000 for line in lines)
        if done.code or done.err.count("cut there") != is_cut or len(texts) != len(lines):
            return f"exit code {done.code}, {len(texts)} lines\n{done.err}"
        blank = [i + 1 for i, line in enumerate(lines) if not line.strip() and texts[i]]
        right = sum(texts[i] == render(lines[i]) for i in places)
        return f"{right} of {len(places)}, {blank}" if blank or right <= 0.6 * len(places) else ""

    def compare(beam: int) -> str:
        ways = [found[rows, beam] for rows in (1, 7, 64)]
        own = bench.directory / str(beam)
        own.mkdir()
        return "\n".join(differing_lines(bench, trained_run, own, lines, ways))

    cases = list(product((1, 7, 64), (5, 1)))  # the slowest first
    bench.inject(trial, cases, quick=len(cases))
    bench.inject(compare, [1, 5], quick=2)


def differing_lines(
    bench: Bench, model: Path, directory: Path, lines: list[str], ways: list[list[str]]
) -> Iterator[str]:
    """Yield lines whose translation depends on the batch and is no near-tie: 1e-4 of its score."""
    odd = [i for i, texts in enumerate(zip(*ways, strict=True)) if len(set(texts)) > 1]
    scores = []
    for texts in ways:
        files = directory / "some.src", directory / "some.tgt"
        for file, side in zip(files, (lines, texts), strict=True):
            file.write_bytes("".join(side[i] + "\n" for i in odd).encode())
        done = bench.processes.mtrain("score", "-m", model, "-s", files[0], "-t", files[1])
        scores.append([float(line) for line in done.out.split()])
    for i, values in zip(odd, zip(*scores, strict=True), strict=True):
        if max(values) - min(values) > 1e-4 * abs(min(values)):
            yield f"line {i + 1}: {[texts[i] for texts in ways]} score {values}"


# --- pipes --------------------------------------------------------------------------------------


def test_ctrl_c_to_a_pipe(bench: Bench, request: pytest.FixtureRequest) -> None:
    """While loading, and while translating; the rest about pipes is in `test_commands.py`."""
    bench.quick_or_full(0, 1)
    text = bench.directory / "text"
    text.write_text("bavo celu\n" * 100_000)
    model = request.getfixturevalue("trained_run")
    command = [sys.executable, "-m", "mtrain", "translate", "-m", model, "-i", text]
    # in the background, shells have it ignored, which children inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def trial(seconds: float) -> str:
        job = subprocess.Popen(command, stdout=-1, stderr=-1, process_group=0)
        with (bench.directory / f"out{seconds}").open("wb") as out:
            reader = subprocess.Popen(["cat"], stdin=job.stdout, stdout=out, process_group=job.pid)
        assert job.stdout is not None
        assert job.stderr is not None
        job.stdout.close()
        time.sleep(seconds)
        os.killpg(job.pid, signal.SIGINT)
        err = job.stderr.read().decode()
        ended = job.wait(60) == EXIT_INTERRUPTED and reader.wait(60) == -signal.SIGINT
        return "" if ended and not err else f"{job.returncode}, {err}"

    bench.inject(trial, [0.5, 0.8, 1.1, 1.4, 4.0])
