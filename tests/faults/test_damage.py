"""Checkpoints that are damaged, forged or hostile, and numbers that are not finite."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import pipe, status
from processes import Done
from safetensors.torch import load_file, save_file

from faults.rig import THREE_STEPS, Bench, Rig, strike, undisturbed
from faults.test_configs import ALIASES
from mtrain.runs import manifest

SETTINGS = THREE_STEPS
NEWEST = Path("checkpoints/step-00000003")
FILES = (
    "model.safetensors",
    "config.yaml",
    "tokenizer.model",
    "manifest.json",
    "trainer/optimizer.safetensors",
    "trainer/state.json",
    "trainer/manifest.json",
)
# Far more than a command needs here, and far less than a hostile file asks for.
MAX_SECONDS, MAX_MEMORY = 20.0, 2000

Action = Callable[[Path], object]


def copy_of_run(bench: Bench) -> Rig:
    """Copy the finished run of three steps."""
    other, _ = undisturbed(bench.config)
    rig = Rig(bench.config, bench.rig().directory, shared_cache=other.cache)
    shutil.copytree(other.run, rig.run)
    return rig


@pytest.fixture
def use(bench: Bench) -> Callable[[Path], list[Done]]:
    """Use a model by all commands that do."""
    text = bench.directory / "text"
    text.write_text("bavo celu\n")

    def use(model: Path) -> list[Done]:
        commands = [
            "translate -m {m} -i {t}",
            "eval -m {m} -s {t} -r {t}",
            "score -m {m} -s {t} -t {t}",
        ]
        named = (command.format(m=model, t=text).split() for command in commands)
        return [bench.processes.mtrain(*words) for words in named]

    return use


def flip(seed: int, file: Path) -> None:
    """Turn one bit over."""
    data = bytearray(file.read_bytes())
    bit = random.Random(seed).randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def truncate(seed: int, file: Path) -> None:
    os.truncate(file, random.Random(seed).randrange(file.stat().st_size))


def test_damaged_files(bench: Bench) -> None:
    text = bench.directory / "text"
    text.write_text("bavo celu\n")

    def trial(case: tuple[str, Action]) -> str:
        name, action = case
        rig = copy_of_run(bench)
        damaged, problem = rig.run / NEWEST, ""
        action(damaged / name)
        if "/" not in name:  # what training alone needs does not hinder the use of a model
            model = (damaged, rig.run)[bench.number % 2]
            done = bench.processes.mtrain("translate", "-m", model, "-i", text)
            good = f"{damaged.parent / 'step-00000002'} is intact; use it"
            problem = done.refuses(1, str(damaged), good, lines=1)
        done = bench.train(rig)
        if done.err.count("going back to an earlier checkpoint") != 1:
            problem += f"the damage is not reported once on resuming:\n{done.err}"
        problem = problem or done.fails() or rig.differs_from(undisturbed(bench.config)[0])
        shutil.rmtree(rig.directory)
        return problem

    cases: list[tuple[str, Action]] = [(FILES[n % 7], partial(flip, n)) for n in range(1000)]
    cases += [(FILES[n % 7], partial(truncate, n)) for n in range(50)]
    cases += [(name, action) for name in FILES for action in (Path.unlink, writes(b""))]
    bench.inject(trial, cases, quick=4)


# --- hostile ------------------------------------------------------------------------------------


class Payload:
    """Leaves a marker wherever it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.open, (str(self.marker), os.O_CREAT | os.O_WRONLY)


def tensors(header: dict[str, object], data: bytes = b"") -> bytes:
    """Write a file of tensors with any header."""
    body = json.dumps(header).encode()
    return struct.pack("<Q", len(body)) + body + data


def huge(shape: list[int], end: int) -> bytes:
    return tensors({"output.bias": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}})


def huge_zip(path: Path) -> None:
    """Ten gigabytes of zeros in ten megabytes."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as out,
    ):
        for _ in range(1000):
            out.write(bytes(10 << 20))


def settings(**changes: object) -> Action:
    """Change settings of a model's own config."""

    def change(path: Path) -> None:
        text = path.read_text()
        for key, value in changes.items():
            text = re.sub(f"(?m)^  {key}: .*", f"  {key}: {value}", text)
        path.write_text(text)

    return change


def state(key: str, value: object) -> Action:
    """Change one field of the trainer's state."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def type_of_weights(dtype: str, size: int) -> Action:
    """Claim another type, of `size` bytes, for weights of the same shapes."""

    def change(path: Path) -> None:
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        end = 0
        for name, entry in header.items():
            if name != "__metadata__":
                count = math.prod(entry["shape"])
                entry.update(dtype=dtype, data_offsets=[end, end := end + size * count])
        path.write_bytes(tensors(header, bytes(end)))

    return change


def link_to(target: str, path: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def writes(data: bytes) -> Action:
    return lambda path: path.write_bytes(data)


def list_outside(path: Path) -> None:
    """Have the manifest list a file elsewhere, with its true hash."""
    entries = json.loads(path.read_text())["files"]
    passwd = Path("/etc/passwd")
    entry = {"size": passwd.stat().st_size, "sha256": manifest.hash_file(passwd)}
    entries["../../../../../../../../etc/passwd"] = entry
    path.write_text(manifest._with_own_hash({"files": entries}))


def one(at: int = 0) -> dict[str, object]:
    """Return the header of a tensor of one number."""
    return {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]}


def many_tensors(path: Path) -> None:
    path.write_bytes(tensors({str(i): one(i) for i in range(100_000)}, bytes(400_000)))


MODEL, CONFIG, STATE = "model.safetensors", "config.yaml", "trainer/state.json"
HOSTILE: list[tuple[str, str, Action]] = [
    ("2^63 values", MODEL, writes(huge([2**63], 2**63))),
    ("2^63 x 2^63 values", MODEL, writes(huge([2**63, 2**63], 4))),
    ("negative shape", MODEL, writes(huge([-1], 4))),
    ("a header of 2^63 bytes", MODEL, writes(struct.pack("<Q", 2**63) + b"{}")),
    ("100,000 tensors", MODEL, many_tensors),
    ("a tensor named ../", MODEL, writes(tensors({"../../x": one()}, bytes(4)))),
    ("zip bomb", MODEL, huge_zip),
    ("8-bit weights", MODEL, type_of_weights("F8_E4M3", 1)),
    ("complex weights", MODEL, type_of_weights("C64", 8)),
    ("a model of a terabyte", CONFIG, settings(d_model=200_000, d_ff=800_000)),
    ("positions of 30 GB", CONFIG, settings(d_model=1 << 17, max_length=65_536, max_tokens=65_536)),
    ("a billion layers", CONFIG, settings(num_encoder_layers=10**9)),
    ("a billion positions", CONFIG, settings(positions="learned", max_length=10**9)),
    ("a beam of a billion", CONFIG, settings(beam_size=10**9)),
    ("alias bomb", CONFIG, writes(ALIASES.encode())),
    ("python tag", CONFIG, writes(b"run_dir: !!python/object/apply:os.abort []\n")),
    ("100 MB of settings", CONFIG, writes(b"a: [" + b"x, " * (33 << 20) + b"]")),
    ("not a vocabulary", "tokenizer.model", writes(bytes(range(256)) * 1000)),
    ("a state of nothing", STATE, writes(b"{}")),
    ("a step of 2^70", STATE, state("step", 2**70)),
    ("an epoch below 0", STATE, state("epoch", -1)),
    ("a batch far below 0", STATE, state("batch", -(2**40))),
    ("one sum of two", STATE, state("sums", [1.0])),
    ("no machine", STATE, state("machine", {})),
    ("no moments", "trainer/optimizer.safetensors", writes(tensors({}))),
    *((f"symlink for {name}", name, partial(link_to, "/etc/passwd")) for name in FILES),
    ("endless file", MODEL, partial(link_to, "/dev/zero")),
    *((f"FIFO for {name}", name, pipe) for name in FILES),
    ("a manifest that lists ../", "manifest.json", list_outside),
    ("a manifest 10,000 deep", "manifest.json", writes(b"[" * 10_000)),
    ("a huge manifest", "manifest.json", writes(b" " * (100 << 20))),
]


def test_hostile_checkpoints(bench: Bench, use: Callable[[Path], list[Done]]) -> None:
    """Each is sealed by a manifest that fits, where its files can be hashed at all; resuming passes
    over it or refuses, too.
    """
    marker = bench.directory / "marker"
    payload = writes(pickle.dumps(Payload(marker)))

    def trial(case: tuple[str, str, Action]) -> str:
        _, name, action = case
        rig = copy_of_run(bench)
        file = rig.run / NEWEST / name
        action(file)
        if file.name != manifest.NAME and not file.is_fifo() and not file.is_symlink():
            manifest.seal(file.parent)
        used = use(rig.run / NEWEST) if "/" not in name else []
        problem = [done.refuses(2 if done.code == 2 else 1, str(rig.run)) for done in used]
        average = ("average", rig.run, "--last", "2", "-o", rig.directory / "mean")
        for done in (*used, bench.processes.mtrain(*average), bench.train(rig)):
            if done.code not in (0, 1, 2) or "Traceback" in done.err:
                problem.append(f"exit code {done.code}\n{done.err}")
            if done.seconds > MAX_SECONDS or done.memory > MAX_MEMORY:
                problem.append(f"{done.seconds:.1f} s, {done.memory} MiB")
        if marker.exists():
            problem.append("the payload was run")
        shutil.rmtree(rig.directory)
        return "\n".join(filter(None, problem))

    cases = [*((f"pickle as {name}", name, payload) for name in FILES), *HOSTILE]
    bench.inject(trial, cases, quick=4)


def test_parts_of_another_model(bench: Bench, use: Callable[[Path], list[Done]]) -> None:
    """Intact and sealed, but of a model of another size, or with an unusable weight."""
    file = NEWEST / "model.safetensors"

    def trial(what: str) -> str:
        rig = copy_of_run(bench)
        if what == "has shape":
            larger = bench.rig("model.d_model=32")
            assert not bench.train(larger).fails()
            shutil.copy(larger.run / file, rig.run / file)
        else:
            weights = load_file(rig.run / file)
            next(iter(weights.values())).view(-1)[0] = 1e30 if what == "too large" else math.nan
            save_file(weights, rig.run / file)
        manifest.seal(rig.run / NEWEST)
        found = [done.refuses(1, what) for done in use(rig.run / NEWEST)]
        if what == "has shape":
            found.append(bench.train(rig).refuses(1, what, lines=12))
        return "".join(found)

    bench.inject(trial, ["has shape", "not finite", "too large"], quick=2)


# --- numbers that are not finite ------------------------------------------------------------------

# Puts a number in a place before step 2.
DEEDS = {
    "weight": "o = self.optimizer; [*o.weights.values()][0].view(-1)[0] = {value}; "
    "o.copy_to_model()",
    "gradient": "l = self.learner; was = l._gradients; l._gradients = "
    "lambda *a: (lambda g, n: ((*g[:-1], g[-1] + {value}), n))(*was(*a))",
    "batch": "l = self.learner; was = l._views; l._views = "
    "lambda *a: tuple(v * {value} for v in was(*a))",
}


def test_numbers_that_are_not_finite(bench: Bench) -> None:
    def trial(case: tuple[str, str]) -> str:
        place, value = case
        rig = bench.rig()
        done = bench.train(rig, prelude=strike(1, DEEDS[place].format(value=value)))
        words = ("step 2", "not finite", "micro-batch", "checkpoint is intact")
        if problem := done.fails(1, *words):
            return problem
        kept = load_file(rig.run / "checkpoints" / "step-00000001" / "model.safetensors")
        if not all(bool(torch.isfinite(weight).all()) for weight in kept.values()):
            return "it was saved"
        if status(rig.run)["exit_code"] != 1 or (rig.run / NEWEST).exists():
            return f"{status(rig.run)}"
        return bench.finishes(rig)

    cases = list(product(DEEDS, ("float('nan')", "float('inf')", "-float('inf')")))
    bench.inject(trial, cases, quick=2)
