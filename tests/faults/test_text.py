"""Text that is odd, unequal or endless: lines stay beside each other, and one goes out for each
that comes in.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from conftest import LEXICON, made_up_pairs, render

from faults.conftest import Count, Tally
from faults.rig import Processes, Rig, in_parallel, new_config
from mtrain.data.store import open_store
from mtrain.data.tokenizer import Tokenizer
from mtrain.runtime.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED

PAIRS = 60
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
SURROGATE = b"\xed\xa0\x80"


def sides(seed: int = 1) -> list[list[bytes]]:
    """Sources and targets of a small corpus, as bytes."""
    return [
        [text.encode() for text in side] for side in zip(*made_up_pairs(PAIRS, seed), strict=True)
    ]


def write_sides(directory: Path, src: bytes, tgt: bytes) -> tuple[Path, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    files = directory / "odd.src", directory / "odd.tgt"
    for file, data in zip(files, (src, tgt), strict=True):
        file.write_bytes(data)
    return files


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def rig_for(directory: Path, files: tuple[Path, Path], *settings: str) -> Rig:
    """One step on a corpus of two given files."""
    src, tgt = files
    one_step = {"train.max_steps": 1, "train.max_tokens": 100}
    config = new_config(
        directory, **one_step, **{"data.max_length": 64, "tokenizer.vocab_size": 300}
    )
    corpus = f"data.train=[{{src: {json.dumps(str(src))}, tgt: {json.dumps(str(tgt))}}}]"
    return Rig(config, directory, (corpus, *settings))


def stored(rig: Rig) -> list[tuple[str, ...]]:
    """The pairs that training reads, decoded from the store."""
    (path,) = (file.parent for file in (rig.directory / "cache").glob("*/store.json"))
    store, tokenizer = open_store(path), Tokenizer.load(rig.run / "tokenizer.model")
    assert store is not None
    pairs = [store.pair(i) for i in range(len(store))]
    return [tuple(tokenizer.decode([side.tolist() for side in pair])) for pair in pairs]


def read_odd_corpus(processes: Processes, directory: Path, odd: str) -> str:
    """Train on a corpus that has it in two places; the pairs must be those between newlines."""
    src, tgt = sides()
    for side, line in ((src, 5), (tgt, 40)):
        middle = len(side[line]) // 2
        side[line] = side[line][:middle] + odd.encode() + side[line][middle:]
    expected = [(s.decode(), t.decode()) for s, t in zip(src, tgt, strict=True)]
    if len(odd) > 1:  # too long to be trained on
        expected = [pair for pair in expected if max(map(len, pair)) < 1000]
    rig = rig_for(directory, write_sides(directory, joined(src), joined(tgt)))
    done = processes.train(rig)
    if done.code or f"{len(expected)} of {PAIRS} pairs" not in done.err:
        return f"exit code {done.code}\n{done.err}"
    return "" if stored(rig) == expected else "pairs have moved"


def translate_odd_lines(processes: Processes, model: Path, odd: str) -> str:
    """Lines beside an odd one must be translated as they are without it."""
    src, _ = sides(5)
    odd_lines = list(src)
    odd_lines[30] += odd.encode() + b"lapo"
    plain = processes.mtrain("translate", "-m", model, stdin=joined(src)).out.split(b"\n")
    for data in (joined(odd_lines), b"\xef\xbb\xbf" + joined([x + b"\r" for x in odd_lines])):
        found = processes.mtrain("translate", "-m", model, stdin=data).out.split(b"\n")
        same = plain[:30] + plain[31:] == found[:30] + found[31:]
        if not same or len(found) != PAIRS + 1:
            return f"{len(found) - 1} lines came back, those beside it {same}"
    return ""


def evaluate_odd_lines(processes: Processes, directory: Path, odd: str) -> str:
    """A hypothesis or a reference that has it must still be scored line for line."""
    _, tgt = sides(5)
    odd_lines = [*tgt[:30], tgt[30] + odd.encode(), *tgt[31:]]
    for one, other in ((odd_lines, tgt), (tgt, odd_lines)):
        marked = b"\xef\xbb\xbf" + joined([line + b"\r" for line in one])
        out, ref = write_sides(directory, marked, joined(other))
        done = processes.mtrain("eval", "--hypothesis", out, "-r", ref, "--json")
        if done.code:
            return f"exit code {done.code}\n{done.err}"
        result = json.loads(done.out)
        most_is_right = result["bleu"]["score"] > 90 or len(odd) > 1  # of a megabyte little is
        if result["lines"] != PAIRS or not most_is_right:
            return f"{result}"
    return ""


def test_odd_characters(
    tmp_path: Path, trained_run: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    def trial(name: str) -> str:
        odd, directory = SEPARATORS[name], tmp_path / name
        troubles = {
            "train": read_odd_corpus(processes, directory, odd),
            "translate": translate_odd_lines(processes, trained_run, odd),
            "eval": evaluate_odd_lines(processes, directory / "eval", odd),
        }
        return "\n".join(f"{name}, {k}: {v}" for k, v in troubles.items() if v)

    some = list(SEPARATORS)[: count(2, len(SEPARATORS))]
    tally.check(6, "odd characters in train, translate and eval", in_parallel(trial, some))


def test_line_ends_and_bytes_that_are_not_text(
    tmp_path: Path, trained_run: Path, processes: Processes, tally: Tally
) -> None:
    src, tgt = sides()
    expected = [(s.decode(), t.decode()) for s, t in zip(src, tgt, strict=True)]
    outcomes = []

    windows = joined([line + b"\r" for line in src])
    rig = rig_for(tmp_path / "crlf", write_sides(tmp_path / "crlf", windows, joined(tgt)))
    done = processes.train(rig)
    outcomes.append("" if "carriage returns removed: 60" in done.err else done.err)
    outcomes.append("" if stored(rig) == expected else "CRLF: pairs have moved")

    marked = b"\xef\xbb\xbf" + joined(src)
    rig = rig_for(tmp_path / "bom", write_sides(tmp_path / "bom", marked, joined(tgt)))
    processes.train(rig)
    outcomes.append("" if stored(rig) == expected else "BOM: pairs have moved")

    broken = [*src[:7], src[7] + SURROGATE, *src[8:]]
    files = write_sides(tmp_path / "bytes", joined(broken), joined(tgt))
    rig = rig_for(tmp_path / "bytes", files)
    outcomes.append(
        processes.train(rig).refuses(1, f"{files[0]}:8", "invalid UTF-8", "drop", lines=8)
    )
    dropping = rig_for(tmp_path / "bytes2", files, "data.invalid_utf8=drop")
    done = processes.train(dropping)
    outcomes.append("" if "invalid UTF-8: 1" in done.err else done.err)
    less = expected[:7] + expected[8:]
    outcomes.append("" if stored(dropping) == less else "surrogate: pairs have moved")

    done = processes.mtrain("translate", "-m", trained_run, stdin=joined(broken))
    lines = done.out.count(b"\n")
    outcomes.append("" if lines == PAIRS else f"{lines} lines of {PAIRS}")
    outcomes.append("" if "U+FFFD: 1" in done.err else done.err)
    hypothesis, ref = write_sides(tmp_path / "eval", joined(broken), joined(src))
    done = processes.mtrain("eval", "--hypothesis", hypothesis, "-r", ref)
    outcomes.append(done.refuses(1, f"{hypothesis}:8", "invalid UTF-8"))
    done = processes.mtrain("eval", "-m", trained_run, "-s", hypothesis, "-r", ref)
    outcomes.append("" if done.code == 0 and "U+FFFD: 1" in done.err else done.err)
    tally.check(6, "line ends, a BOM, bytes that are not UTF-8", outcomes)


# --- corpora out of step ------------------------------------------------------------------------


def test_corpora_out_of_step(tmp_path: Path, processes: Processes, tally: Tally) -> None:
    pairs = made_up_pairs(2000, 1, longest=8)
    src, tgt = ([text.encode() for text in side] for side in zip(*pairs, strict=True))
    expected = [(s.decode(), t.decode()) for s, t in zip(src, tgt, strict=True)]
    shuffled = random.Random(1).sample(tgt, len(tgt))
    outcomes = []

    def train(name: str, left: bytes, right: bytes) -> tuple[Rig, str, int]:
        rig = rig_for(tmp_path / name, write_sides(tmp_path / name, left, right))
        done = processes.train(rig)
        return rig, done.err, done.code

    for name, other in (("short", tgt[:-1]), ("long", [*tgt, b"x"])):
        rig, err, code = train(name, joined(src), joined(other))
        told = code == 1 and "2000" in err and str(len(other)) in err
        outcomes.append("" if told and not (rig.directory / "cache").exists() else err)

    for side in (0, 1):
        lines = [list(src), list(tgt)]
        lines[side][100] = "\u3000 \t".encode()
        rig, err, _ = train(f"blank {side}", *map(joined, lines))
        outcomes.append("" if "blank on a side: 1" in err else err)
        found = stored(rig)
        less = expected[:100] + expected[101:]
        odd = [(a, b) for a, b in zip(found, less, strict=False) if a != b][:1]
        outcomes.append("" if found == less else f"{len(found)} pairs, {odd}")

    for name, left, right in [
        ("no newline", joined(src)[:-1], joined(tgt)),
        ("no newlines", joined(src)[:-1], joined(tgt)[:-1]),
    ]:
        rig, err, _ = train(name, left, right)
        outcomes.append("" if stored(rig) == expected and "warning:" not in err else err)

    for name, right, words in [
        ("shuffled", shuffled, "lengths of the sides"),
        ("slipped", [*tgt[:1000], b"x", *tgt[1000:-1]], "lengths of the sides"),
        ("the same", src, "same text on both sides"),
    ]:
        _, err, code = train(name, joined(src), joined(right))
        outcomes.append("" if words in err and code == 0 else f"{name}: {err}")
    tally.check(7, "corpora out of step", outcomes)


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


def test_fuzzed_lines(
    tmp_path: Path, trained_run: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    """Batches of about 1, 7 and 64 lines, with beams of 1 and 5."""
    lines = [fuzz(number) for number in range(count(36, 10_000))]
    data = "\n".join(lines).encode()  # and no newline at the end
    places = [i for i, line in enumerate(lines) if i % 12 < 4]

    def translations(case: tuple[int, int]) -> list[str]:
        beam, rows = case
        done = processes.mtrain(
            *("translate", "-m", trained_run, "--beam-size", str(beam)),
            *("--batch-tokens", str(beam * rows * 12 if rows > 1 else 1)),
            stdin=data,
        )
        assert done.code == 0, done.err
        assert done.err.count("cut there") == any(len(line) > 20_000 for line in lines)
        return done.out.decode().removesuffix("\n").split("\n")

    cases = [(beam, rows) for rows in (1, 7, 64) for beam in (5, 1)]  # the slowest first
    found = dict(zip(cases, in_parallel(translations, cases), strict=True))
    outcomes = [f"{case}: {len(t)} lines" for case, t in found.items() if len(t) != len(lines)]
    for case, texts in found.items():
        blank = [i for i, line in enumerate(lines) if not line.strip() and texts[i]]
        outcomes += [f"{case}: line {i + 1} is blank, its translation is not" for i in blank]
        right = sum(texts[i] == render(lines[i]) for i in places)
        outcomes += [] if right > 0.6 * len(places) else [f"{case}: {right} of {len(places)}"]
    for beam in (1, 5):
        outcomes += differing_lines(
            processes, trained_run, tmp_path, lines, [found[beam, rows] for rows in (1, 7, 64)]
        )
    tally.check(8, "fuzzed lines, six ways each", [*outcomes, *[""] * (len(lines) - len(outcomes))])


def differing_lines(
    processes: Processes, model: Path, directory: Path, lines: list[str], ways: list[list[str]]
) -> Iterator[str]:
    """Lines whose translation depends on the batch and is no near-tie: 1e-4 of its score."""
    odd = [i for i, texts in enumerate(zip(*ways, strict=True)) if len(set(texts)) > 1]
    scores = []
    for number, texts in enumerate(ways):
        files = directory / f"{number}.src", directory / f"{number}.tgt"
        for file, side in zip(files, (lines, texts), strict=True):
            file.write_bytes("".join(side[i] + "\n" for i in odd).encode())
        done = processes.mtrain("score", "-m", model, "-s", files[0], "-t", files[1])
        scores.append([float(line) for line in done.out.split()])
    for i, values in zip(odd, zip(*scores, strict=True), strict=True):
        if max(values) - min(values) > 1e-4 * abs(min(values)):
            yield f"line {i + 1}: {[texts[i] for texts in ways]} score {values}"


# --- search -------------------------------------------------------------------------------------

NO_END = """
from mtrain.model.decoder import Decoder
step = Decoder.step
def endless(self, tokens, state):
    log_probs, state = step(self, tokens, state)
    log_probs[:, 3] = float("-inf")
    return log_probs, state
Decoder.step = endless
"""


def test_corners_of_the_search(trained_run: Path, processes: Processes, tally: Tally) -> None:
    assert Tokenizer.load(trained_run / "tokenizer.model").eos_id == 3
    outcomes = []

    def translate(text: str, *options: str, prelude: str = "") -> list[list[str]]:
        arguments = ("translate", "-m", trained_run, *options)
        done = processes.mtrain(*arguments, stdin=text.encode(), prelude=prelude)
        rows = [line.split("\t")[1:] for line in done.out.decode().split("\n")[:-1]]
        finite = all(math.isfinite(float(score)) for score, _ in rows)
        if done.code or len(rows) != text.count("\n") or not finite:
            outcomes.append(f"{options}: exit code {done.code}, {rows}\n{done.err}")
        elif "\n" * 3 not in text:
            outcomes.append("" if "cut there: 2 (line 1, 3)" in done.err else done.err)
        return rows

    for beam in ("1", "4"):
        endless = ("--beam-size", beam, "--n-best", beam)
        translate("bavo celu\n\n\n\n", *endless, prelude=NO_END)
        outcomes.append("")
    rows = translate("bavo celu\n\n\n\n", "--beam-size", "1000", "--n-best", "1")
    outcomes.append("" if rows[0][1] == render("bavo celu") else f"beam 1000: {rows[0]}")
    outcomes.append("" if [row[1] for row in rows[1:]] == ["", "", ""] else f"blank: {rows}")
    long = "bavo " * 5000
    translate(f"{long}\nbavo\n{long}\n", "--n-best", "1")
    tally.check(15, "corners of the beam search", outcomes)


# --- pipes --------------------------------------------------------------------------------------


def test_pipes(trained_run: Path, tmp_path: Path, tally: Tally, count: Count) -> None:
    count(0, 1)  # a share of it is in test_cli
    command = [sys.executable, "-m", "mtrain", "translate", "-m", str(trained_run)]
    outcomes = []

    text = tmp_path / "text"
    text.write_text("bavo celu\n" * 8_000)
    shell = f"{' '.join(command)} --beam-size 1 < {text} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=300)
    expected = f"{render('bavo celu')}\n{EXIT_BROKEN_PIPE}\n"
    outcomes.append("" if (done.stdout, done.stderr) == (expected, "") else f"head: {done}")

    process = subprocess.Popen([*command, "--line-buffered"], stdin=-1, stdout=-1, stderr=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    for line in ("bavo", "celu dimar", "", "lapo"):
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline().decode()
        outcomes.append("" if answer == render(line) + "\n" else f"{line}: {answer}")
    time.sleep(0.2)  # Python misses a signal of the very moment in which it turns to waiting
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    quiet = process.returncode == EXIT_INTERRUPTED and not err.strip()
    outcomes.append("" if quiet else f"Ctrl-C: {process.returncode}\n{err.decode()}")

    text.write_text("bavo celu\n" * 100_000)
    for seconds in (0.5, 0.8, 1.1, 1.4, 4.0):  # while loading, and while translating
        job = subprocess.Popen([*command, "-i", text], stdout=-1, stderr=-1, process_group=0)
        with (tmp_path / "out").open("wb") as out:
            reader = subprocess.Popen(["cat"], stdin=job.stdout, stdout=out, process_group=job.pid)
        assert job.stdout is not None
        job.stdout.close()
        time.sleep(seconds)
        os.killpg(job.pid, signal.SIGINT)
        assert job.stderr is not None
        err = job.stderr.read().decode()
        ended = job.wait(60) == EXIT_INTERRUPTED and reader.wait(60) == -signal.SIGINT
        quiet = ended and not err
        outcomes.append("" if quiet else f"Ctrl-C after {seconds} s: {job.returncode}, {err}")
    tally.check(16, "pipes: head, line by line, Ctrl-C", outcomes)
