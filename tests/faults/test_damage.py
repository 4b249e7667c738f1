"""Checkpoints that are damaged, forged or hostile, and numbers that are none."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import made_up_pairs, status, write_corpus
from safetensors.torch import load_file, save_file

from faults.conftest import Count, Tally
from faults.rig import Processes, Rig, in_parallel, new_config, strike, undisturbed
from faults.test_configs import ALIASES
from mtrain.runs import manifest

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
THREE_STEPS = {
    "train.max_steps": 3,
    "train.save_every": 1,
    "train.valid_every": 3,
    "train.average_last": 1,
    "data.test": {},
}
# Far more than a command needs here, and far less than a hostile file asks for.
MOST_SECONDS, MOST_MEMORY = 20.0, 2000


@pytest.fixture(scope="module")
def config(place: Path) -> Path:
    """Three steps, a checkpoint after each."""
    return new_config(place / "damage", **THREE_STEPS)


@pytest.fixture
def rigs(tmp_path: Path, config: Path) -> Iterator[Rig]:
    """Endless copies of the finished run."""
    other, _ = undisturbed(config)

    def copies() -> Iterator[Rig]:
        for number in range(1_000_000):
            rig = Rig(config, tmp_path / str(number), shared_cache=other.cache)
            shutil.copytree(other.run, rig.run)
            yield rig

    return copies()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A line to translate."""
    file = tmp_path / "text"
    file.write_text("bavo celu\n")
    return file


def commands(model: Path, text: Path) -> list[list[str | Path]]:
    """All that use a model."""
    return [
        ["translate", "-m", model, "-i", text],
        ["eval", "-m", model, "-s", text, "-r", text],
        ["score", "-m", model, "-s", text, "-t", text],
    ]


def flip(file: Path, seed: int) -> None:
    """Turn one bit over."""
    data = bytearray(file.read_bytes())
    bit = random.Random(seed).randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def truncate(file: Path, seed: int) -> None:
    os.truncate(file, random.Random(seed).randrange(file.stat().st_size))


def damages(flips: int, cuts: int, others: int) -> list[tuple[str, str, Callable[[Path], None]]]:
    """What is done to which file: (description, file, deed)."""
    found: list[tuple[str, str, Callable[[Path], None]]] = []
    for seed in range(flips):
        name = FILES[seed % len(FILES)]
        found.append((f"bit flip {seed}", name, lambda file, seed=seed: flip(file, seed)))  # type: ignore[misc]
    for seed in range(cuts):
        name = FILES[seed % len(FILES)]
        found.append((f"truncation {seed}", name, lambda file, seed=seed: truncate(file, seed)))  # type: ignore[misc]
    for name in FILES[:others]:
        found.append(("missing", name, Path.unlink))
        found.append(("empty", name, lambda file: file.write_bytes(b"") and None))
    return found


def test_damaged_files(
    config: Path,
    rigs: Iterator[Rig],
    text: Path,
    processes: Processes,
    tally: Tally,
    count: Count,
) -> None:
    other, _ = undisturbed(config)

    def trial(case: tuple[int, tuple[str, str, Callable[[Path], None]], Rig]) -> str:
        number, (what, name, deed), rig = case
        damaged = rig.run / NEWEST
        deed(damaged / name)
        trouble = ""
        if "/" not in name:  # what training alone needs does not hinder the use of a model
            model = (damaged, rig.run)[number // 3 % 2]
            done = processes.mtrain(*commands(model, text)[number % 3])
            named = f"{damaged.parent / 'step-00000002'} is good"
            trouble = done.refuses(1, str(damaged), named) or (
                "" if done.err.count("\n") == 1 else f"more than a line:\n{done.err}"
            )
        done = processes.train(rig)
        if not trouble and done.err.count("going back to an earlier checkpoint") != 1:
            trouble = f"the damage was not told once on resuming:\n{done.err}"
        trouble = trouble or rig.went_wrong(done.code, done.out, done.err)
        trouble = trouble or rig.differs_from(other)
        shutil.rmtree(rig.directory)
        return trouble and f"{what} of {name}: {trouble}"

    some = damages(count(4, 1000), count(1, 50), count(1, 7))
    cases = zip(range(len(some)), some, rigs, strict=False)
    tally.check(4, "flipped bit, truncated, missing or empty file", in_parallel(trial, cases))


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


def zip_bomb(path: Path) -> None:
    """Ten gigabytes of zeros in ten megabytes."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as out,
    ):
        for _ in range(1000):
            out.write(bytes(10 << 20))


def other_settings(**changes: object) -> Callable[[Path], None]:
    """Change settings of a model's own config."""

    def change(path: Path) -> None:
        lines = path.read_text().splitlines()
        for key, value in changes.items():
            lines = [
                f"  {key}: {value}" if line.startswith(f"  {key}:") else line for line in lines
            ]
        path.write_text("\n".join(lines) + "\n")

    return change


def other_state(key: str, value: object) -> Callable[[Path], None]:
    """Change one thing that the trainer notes about itself."""

    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return change


def other_type(dtype: str) -> Callable[[Path], None]:
    """Say of the weights, which are kept, that they are numbers of another type."""
    size = {"F8_E4M3": 1, "C64": 8}[dtype]

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


def link_to(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return link


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def writes(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def list_outside(path: Path) -> None:
    """Have the manifest list a file elsewhere, with its true hash."""
    entries = json.loads(path.read_text())["files"]
    passwd = Path("/etc/passwd")
    entries["../../../../../../../../etc/passwd"] = {
        "size": passwd.stat().st_size,
        "sha256": manifest.hash_file(passwd),
    }
    path.write_text(manifest._with_own_hash({"files": entries}))


HOSTILE: list[tuple[str, str, Callable[[Path], object]]] = [
    ("2^63 values", "model.safetensors", writes(huge([2**63], 2**63))),
    ("2^63 x 2^63 values", "model.safetensors", writes(huge([2**63, 2**63], 4))),
    ("negative shape", "model.safetensors", writes(huge([-1], 4))),
    ("a header of 2^63 bytes", "model.safetensors", writes(struct.pack("<Q", 2**63) + b"{}")),
    (
        "100,000 tensors",
        "model.safetensors",
        writes(
            tensors(
                {
                    str(i): {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
                    for i in range(100_000)
                },
                bytes(400_000),
            )
        ),
    ),
    (
        "a tensor named ../",
        "model.safetensors",
        writes(
            tensors({"../../x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
        ),
    ),
    ("zip bomb", "model.safetensors", zip_bomb),
    ("a model of a terabyte", "config.yaml", other_settings(d_model=200_000, d_ff=800_000)),
    (
        "positions of 30 GB",
        "config.yaml",
        other_settings(d_model=131_072, max_length=65_536, max_tokens=65_536),
    ),
    ("a billion layers", "config.yaml", other_settings(num_encoder_layers=1_000_000_000)),
    ("a billion positions", "config.yaml", other_settings(positions="learned", max_length=10**9)),
    ("alias bomb", "config.yaml", writes(ALIASES.encode())),
    ("python tag", "config.yaml", writes(b"run_dir: !!python/object/apply:os.abort []\n")),
    ("10,000 deep", "config.yaml", writes(b"a: " + b"[" * 10_000)),
    ("not a vocabulary", "tokenizer.model", writes(bytes(range(256)) * 1000)),
    ("a state of nothing", "trainer/state.json", writes(b"{}")),
    ("a state that is a list", "trainer/state.json", writes(b"[[[]]]")),
    ("a step of 2^70", "trainer/state.json", writes(b'{"step": 1180591620717411303424}')),
    *(
        (f"a state with {key}: {value}", "trainer/state.json", other_state(key, value))
        for key, value in [
            ("epoch", -1),
            ("batch", -(2**40)),
            ("step", 2**62),
            ("sums", [1.0]),
            ("sum_tokens", 0.5),
            ("machine", {}),
        ]
    ),
    ("no moments", "trainer/optimizer.safetensors", writes(tensors({}))),
    ("8-bit weights", "model.safetensors", other_type("F8_E4M3")),
    ("complex weights", "model.safetensors", other_type("C64")),
    ("a beam of a billion", "config.yaml", other_settings(beam_size=10**9)),
    ("100 MB of settings", "config.yaml", writes(b"a: [" + b"x, " * (33 << 20) + b"]")),
    *((f"symlink for {name}", name, link_to("/etc/passwd")) for name in FILES[2:]),
    ("symlink out", "model.safetensors", link_to("/etc/passwd")),
    ("endless file", "model.safetensors", link_to("/dev/zero")),
    ("symlink for a config", "config.yaml", link_to("/etc/passwd")),
    *((f"FIFO for {name}", name, pipe) for name in FILES),
    ("a manifest that lists ../", "manifest.json", list_outside),
    ("a manifest 10,000 deep", "manifest.json", writes(b"[" * 10_000)),
    ("a huge manifest", "manifest.json", writes(b" " * (100 << 20))),
]


def test_hostile_checkpoints(
    config: Path,
    rigs: Iterator[Rig],
    tmp_path: Path,
    text: Path,
    processes: Processes,
    tally: Tally,
    count: Count,
) -> None:
    """Each is sealed by a manifest that fits, where its files can be hashed at all; resuming passes
    over it or refuses, too.
    """
    marker = tmp_path / "marker"
    payload = writes(pickle.dumps(Payload(marker)))
    cases = [*((f"pickle as {name}", name, payload) for name in FILES), *HOSTILE]
    some = cases[:: count(12, 1)]

    def trial(case: tuple[Rig, tuple[str, str, Callable[[Path], object]]]) -> str:
        rig, (what, name, deed) = case
        file = rig.run / NEWEST / name
        deed(file)
        if file.name != manifest.NAME and not file.is_fifo() and not file.is_symlink():
            manifest.seal(file.parent)
        trouble = []
        if "/" not in name:
            for command in commands(rig.run / NEWEST, text):
                done = processes.mtrain(*command)
                trouble.append(done.refuses(2 if done.code == 2 else 1, str(rig.run)))
                trouble.append(too_much(done.seconds, done.memory))
        average = ("average", rig.run, "--last", "2", "-o", rig.directory / "mean")
        for done in (processes.mtrain(*average), processes.train(rig)):
            if done.code not in (0, 1, 2) or "Traceback" in done.err:
                trouble.append(f"exit code {done.code}\n{done.err}")
            trouble.append(too_much(done.seconds, done.memory))
        if marker.exists():
            trouble.append("the payload was run")
        shutil.rmtree(rig.directory)
        return "\n".join(f"{what}: {what_else}" for what_else in trouble if what_else)

    tally.check(9, "hostile checkpoints", in_parallel(trial, zip(rigs, some, strict=False)))


def too_much(seconds: float, memory: int) -> str:
    if seconds < MOST_SECONDS and memory < MOST_MEMORY:
        return ""
    return f"{seconds:.1f} s, {memory} MiB"


# --- what belongs to another run ----------------------------------------------------------------


def test_parts_of_another_run(
    config: Path,
    rigs: Iterator[Rig],
    tmp_path: Path,
    text: Path,
    processes: Processes,
    tally: Tally,
    count: Count,
) -> None:
    count(0, 1)  # a share of it is in test_resume
    corpus = write_corpus(tmp_path / "strange", made_up_pairs(60, 9))
    strange = new_config(tmp_path / "stranger", **THREE_STEPS, **{"data.train": [corpus]})
    stranger = Rig(strange, tmp_path / "of a stranger")
    assert processes.train(stranger).code == 0
    outcomes = []
    for name in ("tokenizer.model", "model.safetensors"):
        rig = next(rigs)
        shutil.copy(stranger.run / NEWEST / name, rig.run / NEWEST / name)
        outcomes += [
            processes.mtrain(*command).refuses(1, name)
            for command in commands(rig.run / NEWEST, text)
        ]
    rig = next(rigs)
    for source, target in ((stranger, rig), (rig, stranger)):
        moved = tmp_path / "moved" / target.directory.name
        shutil.copytree(target.run, moved)
        shutil.copy(source.run / "tokenizer.model", moved / "tokenizer.model")
        again = Rig(target.config, moved.parent, (*target.settings, f"run_dir={moved}"))
        outcomes.append(processes.train(again).refuses(2, "tokenizer", lines=8))
    for change, word in [
        ("data.train=[{generated: phrasebook, split: train, pairs: 60}]", "data.train"),
        ("data.valid={generated: phrasebook, split: valid, pairs: 12}", "data.valid"),
        ("model.d_model=32", "model.d_model"),
        ("tokenizer.vocab_size=330", "tokenizer.vocab_size"),
    ]:
        rig = next(rigs)
        changed = Rig(rig.config, rig.directory, (*rig.settings, change, "train.max_steps=4"))
        outcomes.append(processes.train(changed).refuses(2, word, lines=8))
    outcomes += whole_parts_of_another_run(rigs, stranger, text, processes)
    tally.check(11, "vocabulary, corpus or model of another run", outcomes)


def whole_parts_of_another_run(
    rigs: Iterator[Rig], stranger: Rig, text: Path, processes: Processes
) -> Iterator[str]:
    """A checkpoint that is sealed and whole, but of another vocabulary or another model's size."""
    rig = next(rigs)
    shutil.rmtree(rig.run / NEWEST)
    shutil.copytree(stranger.run / NEWEST, rig.run / NEWEST)
    yield processes.train(rig).refuses(1, str(rig.run / NEWEST), "another vocabulary", lines=12)
    rig = next(rigs)
    larger = Rig(rig.config, rig.directory / "larger", ("model.d_model=32",))
    assert processes.train(larger).code == 0
    shutil.copy(larger.run / NEWEST / "model.safetensors", rig.run / NEWEST)
    manifest.seal(rig.run / NEWEST)
    for command in commands(rig.run / NEWEST, text):
        yield processes.mtrain(*command).refuses(1, "has shape", "32", "16")
    yield processes.train(rig).refuses(1, "has shape", "32", "16", lines=12)


# --- numbers that are none ------------------------------------------------------------------------

# Puts a number in a place before step 2.
DEEDS = {
    "weight": "self.optimizer.masters[0].view(-1)[0] = {value}; self.optimizer.publish()",
    "gradient": "self.optimizer.grads[-1].view(-1)[0] = {value}",
    "batch": "l = self.learner; was = l.hidden; l.hidden = lambda s, t: was(s, t) * {value}",
}


def test_numbers_that_are_none(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    other, _ = undisturbed(config)
    cases = [
        (place, value)
        for place in DEEDS
        for value in ("float('nan')", "float('inf')", "-float('inf')")
    ]

    def trial(case: tuple[str, str]) -> str:
        place, value = case
        rig = Rig(config, tmp_path / f"{place} {value}")
        deed = DEEDS[place].format(value=value)
        done = processes.train(rig, prelude=strike(1, deed))
        words = ("step 2", "not finite", "micro-batch", "checkpoint is good")
        if done.code != 1 or not all(word in done.err for word in words) or done.out:
            return f"{value} in a {place}: exit code {done.code}\n{done.err}"
        kept = load_file(rig.run / "checkpoints" / "step-00000001" / "model.safetensors")
        if not all(bool(torch.isfinite(weight).all()) for weight in kept.values()):
            return f"{value} in a {place}: it was saved"
        if status(rig.run)["exit_code"] != 1 or (rig.run / NEWEST).exists():
            return f"{value} in a {place}: {status(rig.run)}"
        return processes.finishes_as(rig, other)

    some = random.Random(1).sample(cases, count(3, len(cases)))
    tally.check(12, "NaN or infinity in a weight, a gradient, a batch", in_parallel(trial, some))


def test_a_checkpoint_with_a_weight_that_is_none(
    rigs: Iterator[Rig], text: Path, processes: Processes, tally: Tally
) -> None:
    rig = next(rigs)
    file = rig.run / NEWEST / "model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, file, {"format": "mtrain"})
    manifest.seal(file.parent)
    outcomes = [
        processes.mtrain(*command).refuses(1, name, "not finite")
        for command in commands(file.parent, text)
    ]
    tally.check(12, "NaN in a checkpoint that is used", outcomes)
