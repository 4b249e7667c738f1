"""Corpora of two made-up languages, in which tests of `mtrain check` plant faults."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from mtrain.check.chunks import Chunk
from mtrain.check.diagnosis import Diagnosis, diagnose
from mtrain.check.faults import check_pairs
from mtrain.check.findings import Findings
from mtrain.check.profile import Profile
from mtrain.check.words import Characters
from mtrain.config.corpora import TextCorpus
from mtrain.config.loading import load_config
from mtrain.runtime.errors import printable
from mtrain.runtime.stop import Stop

Sides = tuple[list[str], list[str]]
PAIRS = 2000
CHARACTERS = Characters()
# Words of two made-up languages.
LEFT, RIGHT = (
    random.Random(1).sample(sorted(map("".join, product(syllables.split(), repeat=3))), 500)
    for syllables in ("ba de fi go lu ma ne ri", "schra blen krit wolf zan durch eig ust")
)
HAN = [chr(0x4E00 + 7 * n) + chr(0x5E00 + 11 * n) for n in range(500)]


def corpus(pairs: int, seed: int, right: list[str] = RIGHT, joint: str = " ") -> Sides:
    """Sentences of a made-up language and their translations, word for word from the end on."""
    rng = random.Random(seed)
    sides: Sides = ([], [])
    while len(sides[0]) < pairs:
        numbers = [min(499, int(rng.expovariate(0.012))) for _ in range(rng.randint(5, 14))]
        source = " ".join(["xo", *(LEFT[n] for n in numbers)])
        if source not in sides[0]:
            sides[0].append(source)
            sides[1].append(joint.join(["qua", *(right[n] for n in reversed(numbers))]))
    return sides


@functools.cache
def sound() -> dict[str, Sides]:
    return {"train": corpus(PAIRS, 1), "valid": corpus(200, 2), "test": corpus(200, 3)}


class Folder:
    """A config with its corpora, to plant faults in and to check."""

    def __init__(self, path: Path, sets: dict[str, Sides] | None = None) -> None:
        self.path = path
        self.bytes = {
            f"{name}.{code}": [text.encode() for text in side]
            for name, sides in (sets or sound()).items()
            for code, side in zip(("xa", "xb"), sides, strict=True)
        }
        self.data: dict[str, Any] = {
            "root": str(path),
            "src_lang": "aa",
            "tgt_lang": "ba",
            "train": [self.entry("train")],
            "valid": self.entry("valid"),
            "test": {"held": self.entry("test")},
        }
        self.settings: dict[str, Any] = {"run_dir": str(path / "run")}

    @staticmethod
    def entry(name: str) -> dict[str, Any]:
        return {"src": f"{name}.xa", "tgt": f"{name}.xb"}

    def write(self) -> Path:
        for name, lines in self.bytes.items():
            (self.path / name).write_bytes(b"".join(line + b"\n" for line in lines))
        config = self.path / "config.yaml"
        config.write_text(yaml.safe_dump({**self.settings, "data": self.data}), encoding="utf-8")
        return config

    def look(self, examples: int = 10, *, forecast: bool = False) -> dict[str, Any]:
        found = look(self.write(), examples, forecast=forecast)
        report: dict[str, Any] = json.loads(json.dumps(found.as_json()))
        for width in (40, 80):
            for line in found.lines(width):
                assert printable(line) == line
        return report

    def look_at_train(self, examples: int = 10) -> dict[str, Any]:
        """Check only single texts, single pairs and each side of the first training corpus, which
        takes half of the time of `look`.
        """
        data = load_config(self.write()).data
        corpus = data.train[0]
        languages = data.languages(corpus)
        findings = Findings("data.train.0", corpus, self.path, examples, languages)
        sides = [
            [line.decode() for line in self.bytes[name]] for name in self.entry("train").values()
        ]
        rows = list(zip(range(1, PAIRS + 1), *sides, strict=False))
        chunk = Chunk.of(findings, rows, CHARACTERS)
        findings.pairs = len(chunk)
        profile = Profile([chunk])
        check_pairs(chunk, profile)
        profile.report_corpora(data.allow_swapped)
        report: dict[str, Any] = {"corpora": [findings.as_json()]}
        return report


def look(config: Path, examples: int = 10, *, forecast: bool = False) -> Diagnosis:
    return diagnose(
        load_config(config), Stop(), examples=examples, with_forecast=forecast, timed=False
    )


def found(report: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every finding, as the corpus's name, its kind, and itself."""
    for each in report["corpora"]:
        for finding in each["findings"]:
            yield each["name"], finding["kind"], finding


def kinds(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind, _ in found(report)]


def places(report: dict[str, Any], kind: str, name: str = "data.train.0") -> list[Any]:
    return [
        (Path(example["files"][0]).name, example.get("line"))
        for where, what, finding in found(report)
        if (where, what) == (name, kind)
        for example in finding["examples"]
    ]


def messages(report: dict[str, Any], kind: str) -> list[str]:
    return [
        example["text"]
        for _, what, finding in found(report)
        if what == kind
        for example in finding["examples"]
    ]


def unrelated(lines: list[bytes], row: int) -> bytes:
    own, size = set(lines[row].split()), len(lines[row].split())
    others = (line for line in lines[:900] if len(own & set(line.split())) == 1)
    return next(line for line in others if len(line.split()) == size)


# A pair to put in place of that of a row, by the kind of finding.
PLANTS: dict[str, Callable[[list[bytes], list[bytes], int], tuple[bytes, bytes]]] = {
    "swapped": lambda src, tgt, row: (tgt[row], src[row]),
    "duplicate": lambda src, tgt, row: (src[100], tgt[100]),
    "same": lambda src, tgt, row: (src[row], src[row]),
    "other_language": lambda src, tgt, row: (tgt[7], tgt[row]),
    "script": lambda src, tgt, row: ("несколько слов на другом языке".encode(), tgt[row]),
    "ratio": lambda src, tgt, row: (src[row], b" ".join(tgt[row : row + 7])),
    "long": lambda src, tgt, row: (b" ".join(src[row : row + 40]), b" ".join(tgt[row : row + 40])),
    "misfit": lambda src, tgt, row: (src[row], unrelated(tgt, row)),
    "blank": lambda src, tgt, row: (b" \t", tgt[row]),
    "both": lambda src, tgt, row: (src[row] + b" " + tgt[row], tgt[row]),
    "loop": lambda src, tgt, row: (src[row] + b" ab cd" * 9, tgt[row] + b" ef" * 9),
    "spacing": lambda src, tgt, row: (b" ".join(src[row][i : i + 1] for i in range(20)), tgt[row]),
    "digits": lambda src, tgt, row: (src[row] + b" 2.10", tgt[row] + b" 2.20"),
}


def plant(folder: Folder, kind: str, row: int) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    src[row], tgt[row] = PLANTS[kind](src, tgt, row)


def nothing_found() -> Findings:
    files = TextCorpus(src="old/train.xa", tgt="/far/away/train.xb")
    return Findings("data.valid", files, Path("root"), 10)
