"""Shared fixtures: a made-up language pair, tiny runs over it, and one trained run.

The task is small but not trivial: each word has a translation, and the words come out in
reverse order.
"""

from __future__ import annotations

import atexit
import copy
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import settings
from processes import Processes, keep_in_memory

from mtrain.cli import app as cli
from mtrain.config.loading import load_config
from mtrain.config.schema import Config, ModelConfig, TokenizerConfig
from mtrain.data.tokenizer import Tokenizer, train_tokenizer
from mtrain.model.cpu import RowTransformer
from mtrain.model.transformer import Dropout, Shape, Transformer
from mtrain.runtime import lock, log
from mtrain.translation import loading
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import Translator

LEXICON = {
    "bavo": "zwent",
    "celu": "yalch",
    "dimar": "quarb",
    "fosi": "xomt",
    "gutel": "wirsk",
    "hanp": "vlund",
    "jori": "oetz",
    "kesum": "urfan",
    "lapo": "steib",
    "minek": "rhunt",
    "norva": "ackel",
    "pilus": "echov",
}

# the same examples every time, however busy the machine is
settings.register_profile("mtrain", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("mtrain")

# In the background or under nohup, these signals are ignored, and programs inherit that. A handler
# that does nothing ignores them here, but not in the programs that tests start.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

Pairs = list[tuple[str, str]]
# Writes a config and its corpora; dotted keys override settings. Returns the path of the YAML file.
TinyConfig = Callable[..., Path]


TINY = yaml.safe_load("""
data: {src_lang: aa, tgt_lang: ba, max_length: 32, workers: 1}
tokenizer: {vocab_size: 320}
model: {d_model: 16, num_heads: 2, d_ff: 32, num_encoder_layers: 1, num_decoder_layers: 1}
train: {device: cpu, threads: 1, precision: fp32, max_steps: 8, max_tokens: 256, warmup_steps: 4,
  peak_lr: 0.005, log_every: 2, save_every: 2, valid_every: 4, average_last: 2}
decode: {beam_size: 2, max_len_b: 10}
""")
Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # written in C: five times as fast


def render(line: str) -> str:
    """Translate a line of the made-up language by its definition."""
    return " ".join(LEXICON[word] for word in reversed(line.split()))


def made_up_pairs(count: int, seed: int, longest: int = 5) -> Pairs:
    """Draw sentences of the made-up language with their translations."""
    rng = random.Random(seed)
    words = list(LEXICON)
    lines = [" ".join(rng.choices(words, k=rng.randint(1, longest))) for _ in range(count)]
    return [(line, render(line)) for line in lines]


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write lines, each with its newline, and return the path."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_corpus(stem: Path, pairs: Pairs) -> dict[str, str]:
    """Write the two sides beside each other; returns the config entry of the corpus."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    entry = {"src": f"{stem}.src", "tgt": f"{stem}.tgt"}
    for path, side in zip(entry.values(), zip(*pairs, strict=True), strict=True):
        write_lines(Path(path), side)
    return entry


def write_config(directory: Path, pairs: int = 120, longest: int = 5, **overrides: Any) -> Path:
    """Write corpora and the config of a tiny run below `directory`; dotted keys override."""
    config: dict[str, dict[str, Any]] = copy.deepcopy(TINY)
    sets = {
        name: write_corpus(directory / "data" / name, pairs)
        for name, pairs in (
            ("train", made_up_pairs(pairs, 1, longest)),
            ("valid", made_up_pairs(12, 2)),
            ("test", made_up_pairs(12, 3)),
        )
    }
    config["data"] |= {**sets, "train": [sets["train"]], "test": {"held_out": sets["test"]}}
    top: dict[str, Any] = {"run_dir": str(directory / "run"), "seed": 7}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if name:
            config[section][name] = value
        else:
            top[key] = value
    path = directory / "config.yaml"
    text = yaml.dump({**top, **config}, Dumper=Dumper, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


def write_both_ways(directory: Path, **overrides: Any) -> Path:
    """Write the config of a tiny run that learns both directions, each with its tag and its part of
    the validation set.
    """
    there, back = {"tag": "<2bb>"}, {"tag": "<2aa>", "swap": True}
    for name in ("train", "valid"):
        entry = {side: str(directory / "data" / f"{name}.{side}") for side in ("src", "tgt")}
        overrides.setdefault(f"data.{name}", [entry | there, entry | back])
    return write_config(directory, **overrides)


@functools.cache
def _processes() -> Processes:
    directory = Path(tempfile.mkdtemp(prefix="mtrain-tests-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Processes(directory)


def run_mtrain(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    prelude: str = "",
    input: str = "",
    streams: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with `input` for its stdin, after the Python
    code of `prelude`.
    """
    options = {"directory": cwd, "only": env, "prelude": prelude, "limit": 300, "streams": streams}
    done = _processes().mtrain(*arguments, stdin=os.fsencode(input), **options)
    return subprocess.CompletedProcess(arguments, done.code, done.out.decode(), done.err)


# For a prelude: measures the step of a forecast in the process itself, as another takes seconds to
# load torch.
MEASURE_HERE = """
from mtrain.training import plan
plan.map_tasks = lambda work, tasks, *_, **options: map(work, tasks)
"""


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run `mtrain` in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["mtrain", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    log.close_log_files()
    assert isinstance(ended.value.code, int)
    return ended.value.code


Train = Callable[..., int]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    """Run `mtrain train` in this process and return its exit code."""
    return lambda config, *options: run_here(monkeypatch, "train", "-c", config, *options)


def make_tokenizer(texts: list[str], **settings: Any) -> Tokenizer:
    """Train a vocabulary; `settings` are those of `tokenizer` in a config."""
    settings = {"vocab_size": 320, **settings}
    return Tokenizer(train_tokenizer(lambda: texts, TokenizerConfig(**settings)))


def link(path: Path) -> None:
    """Move a file or directory away and put a link in its place."""
    path.symlink_to(path.rename(path.with_name(f"moved-{path.name}")).name)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def huge(path: Path) -> None:
    """10 GB, of which the disk holds next to nothing."""
    os.truncate(path, 10 << 30)


def edit(path: Path, **values: Any) -> None:
    """Set values of a JSON file; None removes one."""
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def status(run: Path) -> dict[str, Any]:
    """Read what a run tells scripts."""
    content: dict[str, Any] = json.loads((run / "status.json").read_text())
    return content


def contents(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on how often it was started."""
    found: dict[str, Any] = {}
    weights = ("model.safetensors", "optimizer.safetensors", "state.json")
    for pattern in (*weights, "step-*.txt", "average.txt", "test-*.txt"):
        for file in run.rglob(pattern):
            found[str(file.relative_to(run))] = file.read_bytes()
    for name in ("tokenizer.model", "tokenizer.vocab"):
        found[name] = (run / name).read_bytes()
    found["best.json"] = json.loads((run / "best.json").read_text())
    for number, line in enumerate((run / "metrics.jsonl").read_text().splitlines()):
        record = json.loads(line)
        free = ("time", "tokens_per_second")
        found[f"record {number}"] = [(k, v) for k, v in record.items() if k not in free]
    found["status"] = {key: status(run)[key] for key in ("state", "exit_code", "reason", "step")}
    return found


def differences(run: Path, other: Path) -> list[str]:
    """Name what differs between two finished runs."""
    a, b = contents(run), contents(other)
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def shape_with(
    vocab_size: int = 23, pad_id: int = 0, max_positions: int = 256, **settings: Any
) -> Shape:
    """Return the shape of a model with these settings, and the defaults of the others."""
    rates = {"dropout", "attention_dropout", "activation_dropout"}
    model = ModelConfig(**settings).model_dump(exclude=rates)
    return Shape(vocab_size, pad_id, max_positions=max_positions, **model)


def random_model(
    seed: int = 0,
    rates: Dropout | None = None,
    kind: type[Transformer] = RowTransformer,
    **settings: Any,
) -> Transformer:
    """Return a small model in eval mode; every value is random, those of biases and norms too."""
    torch.manual_seed(seed)
    small = {"d_model": 16, "num_heads": 4, "d_ff": 24}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    model = kind(shape_with(**{**small, **layers, **settings}), rates)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


class Page(HTMLParser):
    """Collects what could load or run something, the texts, and the tags that are not closed."""

    VOID = ("meta", "link", "input", "path", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("href", "src", "srcset", "data", "action", "poster", "xlink:href"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on"), f"{tag} {name}"

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def check_that_nothing_is_loaded(text: str) -> Page:
    """Fail where a page names anything outside itself, or could run anything."""
    page = Page(text)
    assert page.open == []
    assert {ref for ref in page.references if not ref.startswith("#")} <= {"data:,"}
    assert {"script", "iframe", "object", "embed", "img", "base"} & set(page.tags) == set()
    assert not re.search(r"@import|url\(|src=|javascript:", re.sub(r">[^<]*<", "><", text))
    assert "default-src 'none'" in text
    assert len(page.ids) == len(set(page.ids))
    return page


# keeps sums in one order, and the machine's other cores free
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Return to one thread after every test."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> None:
    keep_in_memory()


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test a cache of its own."""
    # not by `mktemp`, which looks through all directories that it has made
    cache = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    cache.mkdir(parents=True)
    monkeypatch.setenv("MTRAIN_CACHE", str(cache))


@pytest.fixture(autouse=True)
def _quiet_log() -> Iterator[None]:
    """Put the logger back as it was: commands run in-process leave handlers behind."""
    handlers, propagate, level = log.logger.handlers[:], log.logger.propagate, log.logger.level
    yield
    log.close_log_files()
    log.logger.handlers[:], log.logger.propagate = handlers, propagate
    log.logger.setLevel(level)


@pytest.fixture
def tiny_config(tmp_path: Path) -> TinyConfig:
    """Return a writer of tiny runs: `tiny_config(**{"train.max_steps": 4})` gives a YAML file."""
    return lambda **overrides: write_config(tmp_path, **overrides)


@pytest.fixture
def config(tiny_config: TinyConfig) -> Config:
    """Return the settings of a tiny run."""
    return load_config(tiny_config())


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Return a small vocabulary of the made-up language."""
    return make_tokenizer([line for pair in made_up_pairs(200, 4) for line in pair])


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory whose model has learnt the made-up language. Do not write to it."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # of all workers: one of them trains, the others wait
    directory /= "trained"
    directory.mkdir(exist_ok=True)
    with lock.exclusive(directory / ".lock", wait=lambda holder: None):
        if not (directory / "done").exists():
            _train(directory)
            (directory / "done").touch()
    return directory / "run"


def _train(directory: Path) -> None:
    overrides = {
        "pairs": 3000,
        "data.max_length": 20,
        "tokenizer.vocab_size": 350,
        "model.d_model": 64,
        "model.num_heads": 4,
        "model.d_ff": 128,
        "model.num_encoder_layers": 2,
        "model.dropout": 0.0,
        "train.max_steps": 400,
        "train.max_tokens": 768,
        "train.warmup_steps": 60,
        "train.schedule": "linear",
        "train.peak_lr": 0.003,
        "train.log_every": 50,
        "train.save_every": 200,
        "train.valid_every": 400,
    }
    environment = {**os.environ, "MTRAIN_CACHE": str(directory / "cache")}
    done = run_mtrain("train", "-c", write_config(directory, **overrides), env=environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def both_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of both directions that has learnt next to nothing. Do not write to it."""
    directory = tmp_path_factory.mktemp("both")
    environment = {**os.environ, "MTRAIN_CACHE": str(directory / "cache")}
    done = run_mtrain("train", "-c", write_both_ways(directory), env=environment)
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture(scope="session")
def loaded_model(trained_run: Path) -> LoadedModel:
    """Return the trained run's model in fp32."""
    return loading.load(trained_run, device="cpu", precision="fp32")


@pytest.fixture(scope="session")
def translator(loaded_model: LoadedModel) -> Translator:
    """Return the trained run's model, ready to translate in fp32."""
    return Translator(loaded_model)
