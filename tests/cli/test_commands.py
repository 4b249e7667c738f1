"""The command line: results on stdout alone, one clear message for each error, exit codes."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from conftest import (
    TinyConfig,
    made_up_pairs,
    run_here,
    run_mtrain,
    status,
    write_config,
    write_lines,
)

import mtrain
from mtrain.cli import app as cli
from mtrain.cli import opening
from mtrain.cli.runs import Quantization
from mtrain.cli.translating import Kind
from mtrain.config.keys import make_schema
from mtrain.config.loading import load_config
from mtrain.config.schema import dump_config
from mtrain.data.cache import cache_directory
from mtrain.export.convert import FORMATS
from mtrain.report.heatmap import KINDS
from mtrain.runs import checkpoint, layout, reader
from mtrain.runs.records import MetricsFile
from mtrain.runtime.console import RED, paint
from mtrain.runtime.errors import EXIT_FAILED, NO_THREAD, missing_library_error
from mtrain.runtime.stop import Stop
from mtrain.scoring.external import ExternalMetric
from mtrain.translation import loading
from mtrain.translation.scorer import Scorer

# Every command with its options, pinned so that they grow on purpose.
DECODE = "--beam-size --length-penalty --length-norm --no-repeat-ngram --batch-tokens --sample "
DECODE += "--temperature --top-k --top-p --seed --mbr --tag --max-len-a --max-len-b"
MODEL = "-m --model --device --precision"
OUT = "-o --output"
OPTIONS = {
    "train": "config_file -c --config --set --time-limit --dry-run --json --metric-command "
    "--metric-timeout",
    "translate": f"words {MODEL} -i --input {OUT} --n-best --scores --line-buffered "
    f"--target-prefix --alignments {DECODE}",
    "eval": f"run {MODEL} -s --source -r --reference --on {OUT} --hypothesis --tgt-lang --tokenize "
    f"--lowercase --json {DECODE}",
    "compare": "systems -r --reference -s --source --tgt-lang --tokenize --lowercase --metrics -n "
    "--lines --json",
    "verify": "run -m --model --json",
    "attention": f"words {MODEL} -i --input {OUT} -t --target --kind --layer --head --tag",
    "average": f"run -m --model --last {OUT} --json",
    "report": f"run -m --model {OUT} --text --check",
    "score": f"run {MODEL} -s --source -t --target --batch-tokens --tag --json",
    "export": f"run -m --model {OUT} --to --quantization --sample --json",
    "check": "config_file -c --config --set --json --examples --forecast --timing",
    "init": f"src tgt --columns {OUT} --src-lang --tgt-lang --valid-src --valid-tgt --hold-out "
    "--json",
    "config keys": "prefix",
    "config show": "config_file -c --config --set",
    "config schema": "",
    "data build": "config_file -c --config --set --time-limit",
    "tokenizer train": "config_file -c --config --set",
    "tokenizer encode": "run -m --model",
    "tokenizer decode": "run -m --model",
}
EVERY = {"-q", "--quiet", "-v", "--verbose"}
LINES = ["bavo celu", "", "lapo", "minek norva pilus", " \t ", "hanp"]


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Command]:
    """Return a function that runs `mtrain` in this process; `stdin` is what it reads."""
    handlers = {number: signal.getsignal(number) for number in (2, 10, 15)}

    def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run_here(monkeypatch, *arguments)
        written = capfdbinary.readouterr()
        return Result(code, written.out.decode(), written.err.decode())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of a few steps. Do not write to it."""
    directory = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTRAIN_CACHE", str(directory / "cache"))
        config = write_config(directory, **{"decode.max_len_b": 3})
        done = run_mtrain("train", "-c", config)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return directory / "run"


@pytest.fixture
def places(
    run_dir: Path, both_run: Path, tmp_path: Path, tiny_config: TinyConfig
) -> dict[str, Path]:
    """Things that arguments name in braces."""
    pairs = made_up_pairs(6, 4)
    texts = {
        "src": "".join(src + "\n" for src, _ in pairs).encode(),
        "ref": "".join(tgt + "\n" for _, tgt in pairs).encode(),
        "short": b"one\ntwo\n",
        "empty": b"",
        "also_empty": b"",
        "latin": b"one\nzw\xf6lf\n",
        "plain.gz": b"not packed\n",
        "cut.gz": gzip.compress(b"lapo\n" * 500)[:-9],
        "many": b"bavo\n" * 51,
        "old.xz": lzma.compress(b"bavo\n"),
    }
    broken = tmp_path / "broken"
    found = {"tmp": tmp_path, "run": run_dir, "config": tiny_config(), "broken": broken}
    found["both"] = both_run
    for name, content in texts.items():
        found[name.replace(".", "_")] = tmp_path / name
        (tmp_path / name).write_bytes(content)
    shutil.copytree(run_dir, broken)
    damaged = reader.resolve(broken) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    found["link"] = tmp_path / "link.html"
    found["link"].symlink_to(broken / "config.yaml")
    found["alone"] = shutil.copytree(reader.resolve(run_dir), tmp_path / "alone")
    found["prepared"] = tmp_path / "prepared"
    found["prepared"].mkdir()
    shutil.copy(run_dir / "tokenizer.model", found["prepared"])
    return found


# --- what there is ----------------------------------------------------------------------------


def commands(group: Any, path: str = "") -> dict[str, Any]:
    """List the commands of a Typer application with those of its groups."""
    found = {}
    for name, one in group.commands.items():
        nested = commands(one, f"{name} ") if hasattr(one, "commands") else {f"{path}{name}": one}
        found.update(nested)
    return found


def test_every_command_has_the_options_of_the_contract() -> None:
    tree = commands(typer.main.get_command(cli.app))
    found = {name: {o for p in one.params for o in p.opts} for name, one in tree.items()}
    assert found == {name: set(options.split()) | EVERY for name, options in OPTIONS.items()}


@pytest.mark.parametrize("name", ["", *OPTIONS])
def test_help_names_options_and_is_quiet(command: Command, name: str) -> None:
    result = command(*name.split(), "--help")
    assert result.code == 0
    assert result.err == ""
    assert "Usage: " in result.out
    assert not re.search("<(bool|str|Path)>", result.out)  # types of Python
    assert command(*name.split(), "-h").out == result.out


def test_completion_is_that_of_mtrain_however_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mtrain"],
        env={**os.environ, "_MTRAIN_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "-F _mtrain_completion mtrain" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, atexit; sys.argv = ['mtrain', 'train', '--help']\n"
        "heavy = {'torch', 'numpy', 'datasets', 'sacrebleu', 'sentencepiece', 'safetensors'}\n"
        "heavy.add('mtrain.config.schema')\n"
        "atexit.register(lambda: print(sys.modules.keys() & heavy))\n"
        "from mtrain.cli.app import main; assert 'pydantic' not in sys.modules; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--time-limit" in done.stdout
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    "line",
    [
        *("translate -m x", "attention x a", "eval x --on valid", "score x -s a -t b"),
        *("export x -o y", "average x -o y", "report x"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_before_torch_is_loaded(line: str) -> None:
    code = (
        f"import sys, atexit; sys.argv = ['mtrain', *{line.split()}]\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "from mtrain.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False\n")
    kind = "run" if line.startswith(("average", "report")) else "run or checkpoint"
    assert done.stderr == f"error: x: no such directory; give a {kind} directory\n"


@pytest.mark.parametrize(("name", "code"), [("typer", 130), ("mtrain.runtime.console", -2)])
def test_ctrl_c_during_the_imports_shows_no_traceback(name: str, code: int) -> None:
    program = """
import signal, sys
class Interrupt:
    def find_spec(name, *rest):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
from mtrain.cli import main
main()
"""
    command = [sys.executable, "-c", program, name]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_the_module_runs_as_the_command() -> None:
    done = run_mtrain("--version")
    assert (done.returncode, done.stdout) == (0, f"mtrain {mtrain.__version__}\n")


def test_the_shell_completes_commands() -> None:
    script = Path(sys.executable).with_name("mtrain")
    asked = {"_MTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": "mtrain tra", "COMP_CWORD": "1"}
    done = subprocess.run([script], env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout.split() == ["train", "translate"]
    asked = {"_MTRAIN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "mtrain translate -i "}
    done = subprocess.run([script], env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout.strip() == "_files"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("translate -m ", ["runs/[3]", "runs/one", "runs/two"]),
        ("translate -m runs/[", ["runs/[3]"]),
        ("verify runs/one/checkpoints/a", ["runs/one/checkpoints/average"]),
        ("report runs/o", ["runs/one"]),
        ("report ./runs/o", ["./runs/one"]),
        ("report ~/runs/o", ["~/runs/one"]),
        ("report $PLACE/runs/o", ["$PLACE/runs/one"]),
        ("report $NOWHERE/runs/o", []),
        ("eval -m runs/one --on ", ["held_out", "valid"]),
        ("eval -m runs/one --on valid --on ", ["held_out", "valid"]),
        ("eval runs/one --on v", ["valid"]),
        ("eval ~/runs/one --on v", ["valid"]),
        ("eval --on v", []),
        *((f"eval {name} --on v", []) for name in ("nowhere", "$NOWHERE/runs/one", "x" * 999)),
        ("train --set train.max_", ["train.max_steps", "train.max_tokens"]),
        ("train --max-steps 3 --set train.max_", ["train.max_steps", "train.max_tokens"]),
        ("train --set data.train", ["data.train"]),
        ("train --set nowhere", []),
        ("translate --precision ", ["auto", "bf16", "fp32"]),
        ("translate --length-norm g", ["gnmt"]),
        ("translate --device ", ["auto", "cpu", "cuda", "mps"]),
        ("attention --kind ", ["cross", "decoder", "encoder"]),
        ("eval --tokenize ja", ["ja-mecab"]),
        ("export --to hf", ["hf", "hf-marian"]),
    ],
)
def test_the_shell_completes_values(
    run_dir: Path, tmp_path: Path, line: str, expected: list[str]
) -> None:
    for name in ("configs", "runs/export"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "configs" / "config.yaml").touch()
    (tmp_path / "runs" / "export" / "manifest.json").touch()
    for name in ("one", "two", "[3]"):
        (tmp_path / "runs" / name).symlink_to(run_dir)
    words = f"mtrain {line}"
    asked = {"_MTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(words.count(" "))
    asked["HOME"] = asked["PLACE"] = str(tmp_path)
    done = run_mtrain(cwd=tmp_path, env={**os.environ, **asked})
    assert (sorted(done.stdout.split()), done.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("translate", ["auto|fp32|bf16", "gnmt|power", "cuda:N or mps"]),
        ("export", ["ctranslate2|hf-marian|hf", "float32|float16|bfloat16"]),
        ("attention", ["encoder|decoder|cross"]),
        ("compare", ["bleu, chrf, ter"]),
        ("eval", ["or the name", "13a, intl, zh, ja-mecab"]),
    ],
)
def test_help_shows_the_choices(
    command: Command, monkeypatch: pytest.MonkeyPatch, line: str, choices: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    shown = command(line, "--help").out
    assert [each for each in choices if each not in shown] == []


# --- errors -----------------------------------------------------------------------------------

EMPTY = '{{"src":"{empty}","tgt":"{also_empty}"}}'
LATIN = '{{"src":"{latin}","tgt":"{short}"}}'
TABLES = ".tsv, .jsonl or .tmx file, also with .gz or .zst, or a .parquet file"
LARGE = '{{"generated":"phrasebook","split":"test","pairs":100000000}}'
MISTAKES = [
    # usage and settings
    ("frobnicate", 2, ["No such command"]),
    ("train", 2, ["--config"]),
    ("train --frobnicate", 2, ["--frobnicate"]),
    ("train {config} -c {config}", 2, ["-c/--config: only one path can be given, not "]),
    ("train -c {config} -c b.yaml", 2, ["-c/--config: only one path can be given, not "]),
    ("train {config} --set=", 2, ["an empty setting; is a shell variable unset?"]),
    ("train {config} --set run_dir=caf\udce9", 2, ["run_dir=caf\\udce9: not UTF-8; name it in"]),
    ("train {config} --set train.max_steps 10", 2, ["write train.max_steps=VALUE"]),
    ("train {config} --max-steps 10", 2, ["--max-steps: is a setting", "--set train.max_steps="]),
    (
        "train {config} --steps 10",
        2,
        ["in the config, or --set train.max_steps=VALUE (or did you mean train.accum_steps?)"],
    ),
    ("check {config} --lr=0.1", 2, ["--lr: is a setting", "train.peak_lr"]),
    ("train {config} --json", 2, ["--json: needs --dry-run"]),
    ("train {config} --metric-timeout 9", 2, ["--metric-timeout: needs --metric-command"]),
    ("train {config} --set train.cutoff=0.2", 2, ["is for train.consistency, which is off; set"]),
    (
        "train {config} --set train.subword_sampling=0.1 --set tokenizer.model_type=unigram",
        2,
        ["train.subword_sampling: drops merges, which only tokenizer.model_type: bpe has"],
    ),
    ("check", 2, ["no config is given; give it as the first argument or with -c/--config"]),
    ("verify {run} -m {run}", 2, ["-m/--model: only one path can be given", "leave out the other"]),
    ("verify -m {run} -m {run}", 2, ["-m/--model: only one path can be given"]),
    (
        "average -o {tmp}/mean",
        2,
        ["no run directory is given; give it as the first argument or with -m/"],
    ),
    (
        "config keys trian",
        2,
        ["trian: no setting has this in its name or description", "did you mean train?"],
    ),
    ("config keys patiense", 2, ["did you mean train.patience?"]),
    ("config show {tmp}/absent.yaml", 2, ["absent.yaml", "cannot read the config"]),
    ("config show absent.yaml", 2, ["No such file or directory (looked for in /"]),
    ("train -c {tmp}/absent.yaml", 2, ["absent.yaml", "cannot read the config"]),
    ("train {run}", 2, ["is a run; give its config", "config.yaml"]),
    ("train {broken}/config.yaml", 2, ["is the config of the run in", "--set run_dir="]),
    ("check {src}", 2, ["is this a config?", "mtrain init"]),
    ("init {src}", 2, ["give two files, source and target, aligned by line, or one table"]),
    ("init a.xlf --src-lang en --tgt-lang de", 2, ["a.xlf is not a table in a", TABLES]),
    ("init a.xml --columns en,de", 2, ["a.xml is not a table in a format", TABLES]),
    ("init {tmp}/old.xz {src}", 1, ["old.xz: looks like xz; unpack it"]),
    ("init {tmp}/a.tsv.gz {src}", 2, ["give two files", "or one table"]),
    ("init {tmp}/a.tsv.gz", 2, ["a.tsv.gz is a table; add --columns", "as in 0,1"]),
    ("init {tmp}/a.parquet", 2, ["a.parquet is a table; add --columns, with the names"]),
    ("init {tmp}/a.parquet --columns en", 2, ["--columns en: expected two columns"]),
    ("init {tmp}/a.tmx --src-lang en", 2, ["a.tmx is a table; add --src-lang en --tgt-lang de"]),
    ("init {src} {ref} --columns 0,1", 2, ["--columns: is for one table", TABLES]),
    ("init {tmp}", 2, ["or one table: ", "is a folder: if it is a dataset, write", "{dataset: "]),
    ("init {tmp}/a.json", 2, ["for a .json, write the config yourself", "{dataset: FOLDER"]),
    ("init {src} {tmp}/a.tmx", 2, ["give two files", "or one table"]),
    ("init {tmp}/a.csv", 2, ["give two files", "in data.train: {dataset: FOLDER, split: train"]),
    ("init {tmp}/none.en {tmp}/none.xyz", 1, ["none.en", "No such file"]),
    ("train -c {config} --set train.max_steps=x", 2, ["--set train.max_steps", "a valid integer"]),
    ("train -c {config} --time-limit soon", 2, ["--time-limit soon", "3h30m"]),
    ("train -c {config} --time-limit=", 2, ["--time-limit ''", "3h30m"]),
    (f"train -c {{config}} --time-limit {'9' * 400}", 2, ["--time-limit 999", "3h30m"]),
    ("train -c {config} --set train.device=cuda:63", 2, ["device cuda:63: ", "CUDA", "; "]),
    # data
    ("train -c {config} --set data.valid.src={tmp}/none", 1, ["none", "No such file"]),
    ("train -c {config} --set data.valid.src={short}", 1, ["short has 2 lines", "has 12"]),
    ("train -c {config} --set data.valid.src={plain_gz}", 1, ["plain.gz", "Not a gzipped file"]),
    (f"train -c {{config}} --set data.valid={EMPTY}", 1, ["holds no pairs"]),
    (f"train -c {{config}} --set data.train=[{EMPTY}]", 1, ["data.train"]),
    (f"train -c {{config}} --set data.train=[{LATIN}]", 1, ["latin:2: invalid UTF-8"]),
    (f"train -c {{config}} --set data.train=[{LARGE}]", 1, ["phrasebook", "100000"]),
    ("train -c {config} --set data.root={tmp}/data/none --set data.valid.src=x", 1, ["none/x"]),
    ("train -c {config} --set tokenizer.vocab_size=9999", 1, ["9999", "the largest that works is"]),
    ("train -c {config} --set tokenizer.path={src}", 1, ["src", "not a SentencePiece model"]),
    (
        "check -c {config} --set tokenizer.path=absent",
        1,
        ["tokenizer.path: absent: cannot read the tokenizer: No such file", " (looked for in /"],
    ),
    ("train -c {config} --set tokenizer.path={run}", 1, ["such as RUN/tokenizer.model"]),
    ("train -c {config} --set run_dir={src}/run", 1, ["src", "cannot use the run directory"]),
    # models
    ("translate", 2, ["--model"]),
    ("translate -m {run} -i {src} bavo", 2, ["give either sentences or -i/--input FILE"]),
    ("translate -m {tmp}/absent", 1, ["absent: no such directory"]),
    ("translate -m {run}/config.yaml", 1, ["config.yaml: not a directory; give a run or"]),
    ("translate -m {tmp}", 1, ["is no run itself, but holds runs; name one", "/broken"]),
    ("translate -m {run}/checkpoints", 1, ["name the run, ", "/run"]),
    ("translate -m {broken}", 1, ["model.safetensors", "bytes instead of", "is intact; use it"]),
    ("score -m {broken} -s {src} -t {ref}", 1, ["model.safetensors", "is intact; use it"]),
    ("tokenizer encode -m {broken}", 1, ["model.safetensors", "is intact; use it"]),
    # decoding
    ("translate -m {run} --n-best 3 --beam-size 2", 2, ["--n-best 3: more", "--beam-size 3"]),
    ("translate -m {run} --n-best 2 --mbr 4", 2, ["--n-best", "--mbr"]),
    ("translate -m {run} --sample --n-best 1001", 2, ["--n-best", "1000"]),
    ("eval -m {run} -s {src} -r {ref} --beam-size 8 --mbr 4", 2, ["--beam-size", "--mbr"]),
    ("translate -m {run} --batch-tokens 1000000000000", 2, ["less than 2147483648"]),
    ("translate -m {run} --beam-size 0", 2, ["--beam-size"]),
    ("translate -m {run} --length-penalty nan", 2, ["--length-penalty"]),
    ("translate -m {run} --length-penalty 1000", 2, ["--length-penalty 1000", "equal to 10"]),
    ("translate -m {run} --length-norm mean", 2, ["'mean' is not one of 'gnmt'"]),
    ("translate -m {run} --device tpu", 2, ["device tpu"]),
    ("translate -m {run} --device cuda:63", 2, ["device cuda:63"]),
    ("translate -m {run} --device cpu,cpu", 2, ["torchrun for several"]),
    ("translate -m {run} -i {tmp}/none", 1, ["none", "No such file"]),
    ("translate -m {run} -i {tmp}", 1, ["Is a directory"]),
    ("translate -m {run} -i {plain_gz}", 1, ["plain.gz", "Not a gzipped file"]),
    ("translate -m {run} -i {cut_gz}", 1, ["cut.gz", "ended before", "check that it is complete"]),
    ("translate -m {run} -i {src} -o {src}", 2, ["is an input, too"]),
    ("translate -m {run} -i {src} --target-prefix {ref} -o {ref}", 2, ["is an input, too"]),
    ("translate -m {run} -i {src} -o {tmp}/x --alignments {src}", 2, ["src: is an input, too"]),
    ("translate -m {run} -i {src} --input={ref}", 2, ["-i/--input: given 2 times, but only one"]),
    ("translate -m {run} -i{src} -qi {ref}", 2, ["-i/--input: given 2 times, but only one"]),
    ("translate -m {run} --tag -o -o {tmp}/out x", 2, ["tag -o: the model"]),
    ("eval {run} --on valid --on held_out", 2, ["--on: given 2 times, but only one is used"]),
    ("translate -m {run} -i {src} -o {tmp}/none/out", 1, ["none/out: cannot write", "No such"]),
    ("translate -m {run} -i {src} --tag <x>", 2, ["tag <x>: the model", "it has no tags"]),
    ("eval -m {both} -s {src} -r {ref} --tag <x>", 2, ["tag <x>", "choose one of <2bb>, <2aa>"]),
    ("attention -m {both} -o {tmp}/a.html --tag <x> x", 2, ["tag <x>", "one of <2bb>, <2aa>"]),
    # scores
    ("eval", 2, ["give a model (-m/--model), or a translation (--hypothesis) with -r"]),
    ("eval -r {ref}", 2, ["give a model (-m/--model), or a translation (--hypothesis) with -r"]),
    ("eval -r {ref} --hypothesis {src} -m {run}", 2, ["give either a model or a --hypothesis"]),
    ("eval -r {ref} -m {run}", 2, ["a model needs -s/--source and -r/--reference, or --on SET"]),
    ("eval --hypothesis {src}", 2, ["--hypothesis needs -r/--reference"]),
    ("eval -m {run} -r {ref} -s {src} -o {src}", 2, ["is an input, too"]),
    ("eval -m {run} -r {src} -r {ref} -s {src} -o {ref}", 2, ["ref: is an input, too"]),
    ("eval -m {run} --on valid -r {ref}", 2, ["--on takes source and reference from the run"]),
    ("eval --hypothesis {src} --on valid", 2, ["--on needs the model (-m/--model)"]),
    ("eval {run} --on Valid", 2, ["--on Valid: the run has no such", "one of valid, held_out"]),
    (
        "eval -m {tmp}/data --on valid",
        1,
        ["data: belongs to no run directory", "-s/--source and -r"],
    ),
    ("eval -m {alone} --on valid", 1, ["alone: belongs to no run directory", "give files with -s"]),
    ("eval -r {ref} --hypothesis {src} -o {tmp}/out", 2, ["--hypothesis cannot be combined with"]),
    ("eval -r {ref} --hypothesis {src} --beam-size 4", 2, ["--hypothesis cannot be combined with"]),
    ("eval -r {ref} --hypothesis {src} --device cpu", 2, ["cannot be combined with -o, --device"]),
    ("eval -r {ref} --hypothesis {src} --precision fp32", 2, ["cannot be combined with -o, --dev"]),
    ("eval -r {ref} --hypothesis {short}", 1, ["short has 2 lines", "ref has 6; they must"]),
    ("eval -r {ref} -r {short} --hypothesis {src}", 1, ["short has 2 lines"]),
    ("eval -r {latin} --hypothesis {short}", 1, ["latin:2", "invalid UTF-8"]),
    ("eval -r {empty} --hypothesis {empty}", 1, ["empty: holds no lines"]),
    ("eval -r {ref} --hypothesis {src} --tokenize moses", 2, ["moses", "13a"]),
    ("eval -r {ref} -m {run} -s {src} -o {tmp}/none/out", 1, ["none/out: cannot write"]),
    ("eval -r {ref} -m {run} -s {src} -o {tmp}/x.gz", 2, ["x.gz: output is not compressed"]),
    ("score -s {src} -t {ref}", 2, ["no run or checkpoint directory is given"]),
    ("score -m {run} -s {src} -t {short}", 1, ["src has 6 lines", "short has 2"]),
    # comparisons
    ("compare -r {ref}", 2, ["Missing argument"]),
    ("compare {ref} {src}", 2, ["--reference"]),
    ("compare {src} -r {ref}", 2, ["two or more files of translations"]),
    ("compare {run} {src} -r {ref}", 2, ["is a directory; give files", "/run -i SRC -o FILE"]),
    ("compare {src} {short} -r {ref}", 1, ["short has 2 lines", "ref has 6; they must"]),
    ("compare {src} {tmp}/none -r {ref}", 1, ["none: cannot read: No such file"]),
    ("compare {src} {ref} -r {ref} --tokenize moses", 2, ["moses", "13a"]),
    ("compare {src} {ref} -r {ref} --metrics bleu,comet", 2, ["comet", "bleu,chrf,ter"]),
    # runs
    ("verify {tmp}/none", 1, ["none: no such directory; give a run or checkpoint directory"]),
    ("verify {run}/run.json", 1, ["run.json: not a directory; give a run or checkpoint directory"]),
    ("verify {tmp}", 1, ["not a run directory"]),
    ("verify {prepared}", 1, ["prepared: nothing has been trained yet; run mtrain train"]),
    ("report {prepared} -o {tmp}/a.html", 1, ["prepared: nothing has been trained yet"]),
    ("eval {prepared} --on valid", 1, ["prepared: nothing has been trained yet"]),
    # vocabulary and averages
    ("tokenizer encode -m {tmp}/none", 1, ["none", "No such file"]),
    ("tokenizer decode -m {src}", 1, ["src: not a SentencePiece model"]),
    ("average {run} --last 99 -o {tmp}/mean", 1, ["checkpoints to average: 4, but --last is 99"]),
    ("average {run} --last 1 -o {src}", 2, ["src: exists already"]),
    ("average {run} -o {broken}/checkpoints/new", 2, ["belongs to "]),
    ("average {run}/checkpoints/step-00000002 -o {tmp}/mean", 2, ["is one checkpoint; give the"]),
    ("average {tmp}/none -o {tmp}/mean", 1, ["none: no such directory; give a run"]),
    ("average {run}/validation -o {tmp}/mean", 1, ["neither a run directory nor a checkpoint"]),
    # pages
    ("attention -m {run} -o {tmp}/a.html a b -t c", 2, ["-t/--target", "one sentence"]),
    ("attention -m {run} -o {tmp}/a.html a -i {src}", 2, ["either sentences or -i/--input FILE"]),
    ("attention -m {run} -i {src} -o {src}", 2, ["is an input, too"]),
    ("attention -m {run} -i {src} -t {ref} -o {ref}", 2, ["is an input, too"]),
    ("attention -m {run} -o {tmp}/a.html", 2, ["give either sentences or -i/--input FILE"]),
    (
        "attention -m {run} -o {tmp}/a.svg x",
        2,
        ["a.svg: the output is HTML; give a name that ends in"],
    ),
    ("attention -m {run} -o {tmp}/a.html --kind self x", 2, ["'self' is not one of 'encoder'"]),
    ("attention -m {run} -o {tmp}/a.html --head 0 x", 2, ["--head 0: expected a number from 1"]),
    ("attention -m {run} -o {tmp}/a.html --head \u00b2 x", 2, ["--head \u00b2: expected a num"]),
    ("attention -m {run} -o {tmp}/a.html --head 9 x", 2, ["--head 9: these maps have 2 heads"]),
    ("attention -m {run} -o {tmp}/a.html -i {src} -t {short}", 1, ["short has 2 lines but", "6"]),
    ("attention -m {run} -o {tmp}/a.html -i {many}", 2, ["more than 50 sentences"]),
    ("report {tmp}/data -o {tmp}/a.html", 1, ["not a run directory: it holds no config.yaml"]),
    ("report {run} -o {tmp}/none/a.html", 1, ["none/a.html: cannot write: No such file"]),
    ("report {run} -o {tmp}", 1, ["cannot write: Is a directory"]),
    ("report {run} -o -", 2, ["--output -: name a file"]),
    ("report {run} -o {broken}/best.json", 2, ["broken; write to another path"]),
    ("report {run} -o {broken}/validation/new.html", 2, ["belongs to "]),
    ("report {run} -o {link}", 2, ["belongs to "]),
    # options that do not fit
    ("translate -m {run} --sample --temperature 0", 2, ["temperature"]),
    ("translate -m {run} --top-k 3", 2, ["--top-k: needs --sample"]),
    ("translate -m {run} --top-k x", 2, ["'--top-k': should be a valid integer, got 'x'"]),
    ("translate -m {run} --top-k -1", 2, ["should be greater than or equal to 0, got '-1'"]),
    ("translate -m {run} --precision fp16", 2, ["'--precision': 'fp16' is not one of 'auto'"]),
    ("translate -m {run} --sample --beam-size 3", 2, ["--beam-size: cannot be combined with"]),
    ("translate -m {run} --sample --seed -1", 2, ["--seed"]),
    ("translate -m {run} -o {tmp}/x --alignments {tmp}/x", 2, ["x: is the output file"]),
    ("translate -m {run} -o {tmp}/x.gz", 2, ["x.gz: output is not compressed; choose"]),
    ("attention -m {run} -m {run} -o {tmp}/x.html a", 2, ["-m/--model: given twice; a page shows"]),
    # exports
    ("export -m {run} -o {tmp}/new --quantization int3", 2, ["'int3' is not one of 'float32'"]),
    ("export -m {run} -o {broken}/checkpoints/new", 2, ["belongs to "]),
    ("export -m {run} -o {tmp}", 2, ["exists already; remove it, or choose another name"]),
    ("export -m {run} -o {tmp}/new --to argos", 2, ["new: give a name that ends in .argosmodel"]),
    (
        "export -m {run} -o {tmp}/new --to hf-marian --quantization int8",
        2,
        ["hf-marian writes float32"],
    ),
]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("line", "code", "words"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_ends_with_one_message_and_its_code(
    command: Command, places: dict[str, Path], line: str, code: int, words: list[str]
) -> None:
    """A refused command writes nothing, and no command changes a file that is there."""
    before = contents(places["tmp"])
    result = command(*(part.format(**places) for part in line.split()))
    shown = re.sub(" *│\n│ ", " ", result.err)
    assert (result.code, result.out) == (code, ""), result.err
    assert [word for word in words if word not in shown] == [], result.err
    assert not any(text in result.err for text in ("Traceback", "Value error", "Input should"))
    assert len(result.err.splitlines()) < 8
    after = contents(places["tmp"])
    assert before.items() <= after.items()
    assert code == 1 or before.keys() == after.keys()


def paths() -> Iterator[str]:
    """Yield a command line for each path that a command takes, with `{}` in its place."""
    for name, one in commands(typer.main.get_command(cli.app)).items():
        options = [each for each in one.params if each.opts[0].startswith("-")]
        for option in options:
            if option.metavar in ("FILE", "DIR"):
                yield f"{name} {option.opts[0]} {{}}"
        if any(each.opts[0] in ("run", "words", "config_file") for each in one.params):
            yield f"{name} {{}}"
    yield from ("init {}", "init x {}", "compare {}")
    yield "attention -m x -o x.html -i x -t {}"


@pytest.mark.parametrize("line", list(paths()))
def test_every_path_of_the_command_line_is_expanded(
    command: Command, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    result = command(*line.format("${NOWHERE}/x").split())
    assert (result.code, result.out) == (2, "")
    assert "${NOWHERE} is not set" in result.err


@pytest.mark.parametrize("line", list(paths()))
def test_an_empty_path_is_refused(command: Command, line: str) -> None:
    """As from a shell variable that is not set: it must not mean stdin or the current directory."""
    result = command(*(word.format("") for word in line.split()))
    assert (result.code, result.out) == (2, "")
    assert "an empty path" in result.err


def test_debug_shows_the_traceback(command: Command) -> None:
    result = command("--debug", "train", "-c", "absent.yaml")
    assert result.code == 2
    assert "Traceback" in result.err


# --- translate --------------------------------------------------------------------------------


def test_files_of_another_form_are_refused(command: Command, run_dir: Path, tmp_path: Path) -> None:
    """Their bytes would be read as invalid UTF-8, and translated."""
    for name, content, words in (
        ("wide", "a\nb\n".encode("utf-16"), "UTF-16, not UTF-8"),
        ("packed", gzip.compress(b"a\n"), "looks like gzip"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        for result in (
            command("translate", "-m", run_dir, stdin=content),
            command("translate", "-m", run_dir, "-i", path),
            command("score", "-m", run_dir, "-s", path, "-t", path),
            command("eval", "-m", run_dir, "-s", path, "-r", path),
        ):
            assert result.code == 1
            assert f": {words}" in result.err
            assert not result.out


@pytest.mark.slow
def test_a_stdin_that_does_not_wait_loses_no_line(trained_run: Path) -> None:
    """As a program has it that shares its standard streams, and reads them without waiting."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    command = [sys.executable, "-m", "mtrain", "translate", "-m", trained_run, "--line-buffered"]
    with subprocess.Popen(command, stdin=reader, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        for line in LINES:
            os.write(writer, line.encode() + b"\n")
            process.stdout.readline()  # the next one is not there yet
        os.close(writer)
        assert process.wait() == 0
    os.close(reader)


@pytest.mark.slow
def test_a_stdout_that_does_not_wait_loses_no_line(trained_run: Path, tmp_path: Path) -> None:
    """As a program has it that shares its standard streams; its reader is slow here."""
    text = tmp_path / "text"
    text.write_text("a\n" * 100_000)  # more than a pipe holds
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-m", "mtrain", "tokenizer", "encode", "-m", trained_run]
    pieces = b""
    with (
        text.open() as source,
        subprocess.Popen(command, stdin=source, stdout=writer, stderr=-1, text=True) as process,
    ):
        os.close(writer)
        while part := os.read(reader, 1000):
            pieces += part
            time.sleep(0.001)
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    os.close(reader)
    assert pieces.count(b"\n") == 100_000


@pytest.mark.slow
def test_names_in_another_encoding(tiny_config: TinyConfig, tmp_path: Path) -> None:
    """A config's name that is not UTF-8 is kept readable, and a locale without a name's letters is
    told.
    """
    name = tmp_path / os.fsdecode(b"caf\xe9.yaml")
    shutil.copyfile(tiny_config(**{"train.max_steps": 4}), name)
    assert run_mtrain("train", name, cwd=tmp_path).returncode == 0
    command = json.loads((tmp_path / "run" / "run.json").read_text())["command"]
    assert "caf\\udce9.yaml" in command
    again = run_mtrain("train", name, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    where = os.fsdecode(str(tmp_path).encode() + b"/caf\xe9")
    shutil.copytree(tmp_path / "run", where)
    moved = run_mtrain("translate", "-m", where, input="a\n")
    assert moved.returncode == 1
    assert "its path is not UTF-8, which safetensors needs; rename it" in moved.stderr
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    start = [sys.executable, "-m", "mtrain", "train", str(name.with_name("a.yaml"))]
    text = name.read_text().replace(str(tmp_path / "run"), "日本")
    name.with_name("a.yaml").write_text(text)
    show = [*start[:3], "config", "show", start[-1], "--set", "run_dir=中国"]
    shown = subprocess.run(show, env=ascii_only, capture_output=True, check=False).stdout.decode()
    assert 'run_dir: "中国"' in shown
    done = subprocess.run(start, env=ascii_only, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode in (1, 2)
    assert b"file names of this locale are ascii; set PYTHONUTF8=1" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_thread_that_cannot_start_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError(NO_THREAD[0])

    monkeypatch.setattr(cli, "app", fail)
    assert run_here(monkeypatch, "translate") == EXIT_FAILED
    err = capsys.readouterr().err
    assert "error: cannot start another thread; raise the limit" in err
    assert "Traceback" not in err


def test_a_library_that_cannot_be_loaded_ends_without_a_traceback(
    command: Command, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.delitem(sys.modules, "mtrain.data.tokenizer", raising=False)
    result = command("tokenizer", "encode", "-m", run_dir)
    assert result.code == EXIT_FAILED
    assert "error: cannot load a library: import of sentencepiece halted" in result.err
    assert "install mtrain again, or raise the limit on memory (ulimit -v)" in result.err
    assert "Traceback" not in result.err
    # a wrong import of mtrain's own needs its traceback
    assert (
        missing_library_error(ImportError("cannot import name 'x'", name="mtrain.data.store"))
        is None
    )


def test_translate_answers_each_line_on_stdout_alone(command: Command, run_dir: Path) -> None:
    text = "\n".join(LINES).encode() + b"\r\nl\xffapo\n"
    result = command("translate", "-m", run_dir, stdin=text)
    assert result.code == 0
    answers = result.out.split("\n")
    assert answers.pop() == ""
    assert len(answers) == len(LINES) + 1
    assert answers[1] == answers[4] == ""
    assert "lines invalid UTF-8, read with U+FFFD: 1" in result.err
    assert "carriage returns removed: 1" in result.err
    assert result.out == command("translate", "-m", run_dir, "--line-buffered", stdin=text).out
    scored = command("translate", "-m", run_dir, "--scores", stdin=text).out.split("\n")
    assert [line.partition("\t")[2] for line in scored] == [*answers, ""]
    assert all(float(line.partition("\t")[0]) <= 0 for line in scored[:-1])


def test_the_longest_translation_is_an_option(command: Command, run_dir: Path) -> None:
    """With room for nothing but eos, a translation is empty."""
    limit = "--max-len-a", "0", "--max-len-b"
    line = "bavo celu lapo"
    assert command("translate", "-m", run_dir, *limit, "0", line).out == "\n"
    assert command("translate", "-m", run_dir, *limit, "20", line).out.strip()


def test_translate_reads_and_writes_files(
    command: Command, run_dir: Path, places: dict[str, Path]
) -> None:
    translate = ["translate", "-m", run_dir]
    piped = command(*translate, stdin=places["src"].read_bytes())
    output, packed = places["tmp"] / "out", places["tmp"] / "src.gz"
    packed.write_bytes(gzip.compress(places["src"].read_bytes()))
    for source in (places["src"], packed):
        assert command(*translate, "-i", source, "-o", output) == Result(0, "", piped.err)
        assert output.read_text() == piped.out
    assert command(*translate) == Result(0, "", "")


def warnings_of_input(result: Result) -> list[str]:
    """The warnings of a translation, except that it has reached the length limit."""
    return [line for line in result.err.splitlines() if "length limit" not in line]


@pytest.mark.slow
def test_sentences_of_the_command_line_are_translated(
    command: Command, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always as text; a sentence that may be meant as a file causes a warning."""
    monkeypatch.chdir(tmp_path)
    piped = command("translate", "-m", run_dir, stdin=b"bavo celu\nlapo\n")
    assert command("translate", "-m", run_dir, "bavo celu", "lapo") == piped
    assert command("translate", run_dir, "bavo celu", "lapo") == piped
    assert command("translate", run_dir, stdin=b"bavo celu\nlapo\n") == piped
    assert command("translate", run_dir, "lapo " * 2000).code == 0  # longer than any name
    (tmp_path / "lapo").write_text("bavo\n")
    result = command("translate", "-m", run_dir, "bavo celu", "lapo")
    assert result.out == piped.out
    warning = "warning: lapo: is also the name of a file; did you mean -i lapo?"
    assert warnings_of_input(result) == [warning]
    assert "-: is used as text" in command("translate", run_dir, "-").err
    odd = command("translate", run_dir, "caf\udce9")
    assert (odd.code, odd.out.count("\n"), warnings_of_input(odd)) == (0, 1, [])
    result = command("translate", run_dir, "nofile.txt")
    assert (result.code, result.out.count("\n")) == (0, 1)
    warning = "warning: nofile.txt: no such file, so this is used as text; name a file with -i"
    assert warnings_of_input(result) == [warning]


@pytest.mark.parametrize(
    ("sentence", "is_warned_of"),
    [
        *((name, True) for name in ("nofile.txt", "data/nofile", "../x.en", "a.de.gz", "x.zh-TW")),
        *((text, False) for text in ("lapo", "Lapo.", "1.5", "z.B.", "No. 3", "and/or lapo", "")),
        ("End.Continuation", False),
        ("他/她说" * 2000, False),
    ],
)
def test_a_misspelt_file_name_is_warned_of(
    caplog: pytest.LogCaptureFixture, sentence: str, is_warned_of: bool
) -> None:
    _, texts = opening.run_and_texts(["run", sentence], None)
    assert texts == [sentence]
    warning = f"{sentence}: no such file, so this is used as text; name a file with -i"
    assert caplog.messages == [warning] * is_warned_of


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start `mtrain` with pipes as its streams."""
    command = [sys.executable, "-m", "mtrain", *map(str, arguments)]
    return subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("name", ["2024", "a: b", "it's #1"])
def test_the_advice_for_a_moved_run_works_as_it_is(
    command: Command, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_dir, name)
    refused = command("train", f"{name}/config.yaml")
    advice = re.search("; add (.*) to continue", refused.err)
    assert refused.code == 2
    assert advice
    assert command("train", f"{name}/config.yaml", *shlex.split(advice[1])).code == 0


def test_the_advice_for_a_table_is_a_config(command: Command) -> None:
    config = command("init", "a.csv").err.partition("columns, in data.train: ")[2]
    entry = yaml.safe_load(config.partition(" (")[0])
    assert entry == {"dataset": "FOLDER", "split": "train", "src": "en", "tgt": "de"}


def test_the_advice_for_a_sentence_that_names_a_file_works_as_it_is(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (name := tmp_path / "it's a file.txt").touch()
    opening.run_and_texts(["run", str(name)], None)
    (advice,) = re.findall(r"did you mean (.*)\?", caplog.text)
    assert shlex.split(advice) == ["-i", str(name)]


@pytest.mark.parametrize(
    "option", [pytest.param([], marks=pytest.mark.slow), ["--line-buffered"]], ids=str
)
def test_a_reader_that_goes_away_ends_translate_quietly(
    run_dir: Path, places: dict[str, Path], option: list[str]
) -> None:
    with start("translate", "-m", run_dir, "-i", places["src"], *option) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_a_reader_that_goes_away_ends_help_as_it_ends_results() -> None:
    with start("config", "keys", "--help") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.mark.slow
def test_each_line_is_answered_before_the_next_and_ctrl_c_ends(run_dir: Path) -> None:
    with start("translate", "-m", run_dir, "--line-buffered") as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        for line in LINES[:3]:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith("\n")
        time.sleep(0.2)  # Python misses a signal of the very moment in which it turns to waiting
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()


SPY = """
import json, sys
from mtrain.cli.app import main
for sys.argv in json.loads(sys.argv[1]):
    try:
        main()
    except SystemExit as end:
        print(end.code, "torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_a_start_does_not_load_torch_s_compiler(places: dict[str, Path]) -> None:
    """It takes a second or more, and the meta device as well as Adam's class would do so."""
    lines = "translate -m {run} -i {src} -o {tmp}/out", "train -c {config} --set run_dir={tmp}/new"
    arguments = json.dumps([["mtrain", *line.format(**places).split()] for line in lines])
    done = subprocess.run([sys.executable, "-c", SPY, arguments], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["0 False", "0 False"], done.stderr


# --- eval, score, average, tokenizer ----------------------------------------------------------


def test_eval_scores_a_file(command: Command, places: dict[str, Path]) -> None:
    result = command("eval", "--hypothesis", places["ref"], "-r", places["ref"], "--json")
    assert (result.code, result.err) == (0, "")
    content = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert list(content) == ["lines", "bleu", "chrf", "ter", "notes"]
    assert (content["lines"], content["notes"]) == (6, [])
    assert (content["chrf"]["score"], content["ter"]["score"]) == (pytest.approx(100), 0.0)
    options = ["-r", places["ref"], "-r", places["src"], "--tgt-lang", "zh", "--lowercase"]
    lines = command("eval", "--hypothesis", places["src"], *options).out.splitlines()
    assert [line.split()[0] for line in lines] == ["BLEU", "chrF2", "TER"]
    assert "nrefs:2" in lines[0]
    assert "case:lc" in lines[0]
    assert "tok:zh" in lines[0]


def test_eval_translates_as_translate_does(
    command: Command, run_dir: Path, places: dict[str, Path]
) -> None:
    output = places["tmp"] / "out"
    arguments = ["eval", "-m", run_dir, "-s", places["src"], "-r", places["ref"], "--json"]
    result = command(*arguments, "-o", output, "--beam-size", "1")
    assert result.code == 0
    options = ["-i", places["src"], "--beam-size", "1"]
    assert output.read_text() == command("translate", "-m", run_dir, *options).out
    options = ["-s", places["src"], "-r", places["ref"], "--json"]
    again = command("eval", "--hypothesis", output, *options)
    assert json.loads(again.out) == json.loads(result.out)
    short = command(*arguments, "--max-len-a", "0", "--max-len-b", "1")
    assert "translations that reached the length limit" in short.err


def test_eval_names_the_lines_that_it_cuts(command: Command, places: dict[str, Path]) -> None:
    places["src"].write_text("bavo\n" + "bavo " * 1100 + "\n")
    places["ref"].write_text("zwent\nzwent\n")
    options = ["-s", places["src"], "-r", places["ref"], "--max-len-a", "0", "--max-len-b", "1"]
    result = command("eval", places["run"], *options)
    assert "lines longer than 1024 tokens, cut there: 1 (line 2)" in result.err


def test_eval_refuses_a_wrong_seed_before_it_translates(
    command: Command, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "x")
    output = places["tmp"] / "out"
    options = ["-m", places["run"], "-s", places["src"], "-r", places["ref"], "-o", output]
    assert command("eval", *options).code == 2
    assert not output.exists()


def test_eval_notices_exchanged_files(
    command: Command, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config(**{"data.src_lang": "en", "data.tgt_lang": "de", "train.max_steps": 2})
    assert command("train", "-c", config).code == 0
    english, german = tmp_path / "a.en", tmp_path / "a.de"
    english.write_text("this is the roof\n" * 6)
    german.write_text("das ist nicht ein Dach\n" * 6)
    arguments = "eval", "-m", tmp_path / "run", "--device", "cpu", "--beam-size", "1"
    texts = "look like the target language (de)", "most lines are the same in the source"
    for source, reference, warnings in (
        (english, german, [False, False]),
        (german, english, [True, False]),
        (english, english, [False, True]),
    ):
        result = command(*arguments, "-s", source, "-r", reference)
        assert [text in result.err for text in texts] == warnings, result.err
        assert (result.code, len(result.out.splitlines())) == (0, 3)


def test_eval_notices_a_tag_of_another_language(command: Command, both_run: Path) -> None:
    expected = "--tag <2aa>: translates to aa, but the references are in ba, so the scores mean "
    expected += "nothing; choose another tag of the model (<2bb>, <2aa>)"
    for options, is_expected in (
        (["--on", "valid.0", "--tag", "<2aa>"], True),
        (["--on", "held_out", "--tag", "<2aa>"], True),
        (["--on", "held_out", "--tag", "<2bb>"], False),
        (["--on", "valid.1", "--tag", "<2aa>"], False),
        (["--on", "valid.0", "--tag", "<2aa>", "--tgt-lang", "aa"], False),
        (["--on", "valid.0", "--tag", "<2aa>", "--tgt-lang", "aar_Latn"], False),
    ):
        result = command("eval", both_run, *options, "--beam-size", "1")
        assert result.code == 0
        assert (expected in result.err) is is_expected, (options, result.err)
        notes = [line for line in result.err.splitlines() if "length limit" not in line]
        assert not is_expected or len(notes) == 1  # no note on the translations
    result = command("eval", both_run, "--on", "held_out", "--tag", "<2aa>", "--tgt-lang", "fr")
    assert "in fr, so the scores mean nothing" in result.err


def test_score_prints_a_log_probability_a_line(
    command: Command, run_dir: Path, places: dict[str, Path]
) -> None:
    options = ["-m", run_dir, "-s", places["src"], "-t", places["ref"], "--batch-tokens", "64"]
    result = command("score", *options)
    assert (result.code, result.err) == (0, "")
    values = [float(line) for line in result.out.splitlines()]
    model = loading.load(run_dir, device="cpu")
    lines = [places[name].read_text().splitlines() for name in ("src", "ref")]
    assert values == pytest.approx(Scorer(model).score(*lines)[0], rel=1e-4)
    assert max(values) < 0
    result = command("score", run_dir, *options[2:], "--json")
    assert json.loads(result.out) == {"scores": values}
    both = [run_dir / "checkpoints/step-00000008", run_dir / "checkpoints/average"]
    result = command("score", "-m", both[0], "-m", both[1], *options[2:])
    expected, _ = Scorer(loading.load(*both, device="cpu")).score(*lines)
    assert [float(line) for line in result.out.splitlines()] == pytest.approx(expected, rel=1e-4)


def test_score_takes_pipes_and_refuses_files_of_other_lengths(
    command: Command, run_dir: Path, places: dict[str, Path]
) -> None:
    short = places["tmp"] / "short"
    short.write_text("".join(places["ref"].read_text().splitlines(keepends=True)[:2]))
    lines = len(places["src"].read_text().splitlines())
    result = command("score", run_dir, "-s", places["src"], "-t", short)
    assert (result.code, result.out) == (1, "")
    assert f"{places['src']} has {lines} lines but {short} has 2; they must match" in result.err
    whole = command("score", run_dir, "-s", places["src"], "-t", places["ref"])
    os.mkfifo(pipe := places["tmp"] / "pipe")
    for file, code, out in ((places["ref"], 0, whole.out), (short, 1, "")):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(pipe.write_bytes, file.read_bytes())
            result = command("score", run_dir, "-s", places["src"], "-t", pipe)
        assert (result.code, result.out) == (code, out)
    assert f"{pipe}: ends after line 2, but {places['src']} has more; they must" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        "score {run} -s {src} -t {read}",
        "score {run} -s {read} -t {src}",
        "eval --hypothesis {read} -r {src}",
        "eval --hypothesis {src} -r {read}",
        "eval --hypothesis {src} -r {src} -s {read}",
    ],
)
def test_text_to_score_may_come_from_stdin(
    command: Command, run_dir: Path, places: dict[str, Path], arguments: str
) -> None:
    def result(read: str | Path) -> Result:
        names = {"run": run_dir, "src": places["src"], "read": read}
        return command(*(word.format(**names) for word in arguments.split()))

    own = os.dup(0)
    with places["ref"].open("rb") as file:
        os.dup2(file.fileno(), 0)
    try:
        assert result("-") == result(places["ref"])
    finally:
        os.dup2(own, 0)
        os.close(own)


@pytest.mark.parametrize(
    "arguments",
    [
        "score {run} -s - -t -",
        "eval --hypothesis - -r -",
        "eval --hypothesis {src} -r - -r -",
        "compare -r - -s - {src} {src}",
    ],
)
def test_two_texts_from_stdin_are_refused(
    command: Command, run_dir: Path, places: dict[str, Path], arguments: str
) -> None:
    """A file there would be read twice: a text scored against itself."""
    names = {"run": run_dir, "src": places["src"]}
    result = command(*(word.format(**names) for word in arguments.split()))
    assert (result.code, result.out) == (2, "")
    assert "-: only one text can be read from stdin; name files for the others" in result.err


@pytest.mark.slow
def test_eval_scores_the_run_s_own_sets(
    command: Command,
    run_dir: Path,
    both_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config(run_dir / "config.yaml")
    files = ["-s", config.data.test["held_out"].src, "-r", config.data.test["held_out"].tgt]
    named = command("eval", "-m", run_dir, *files, "--tgt-lang", "ba", "--json")
    assert named.code == 0
    for model in (run_dir, reader.resolve(run_dir)):
        assert command("eval", model, "--on", "held_out", "--json") == named
    best = reader.resolve(run_dir)
    for folder, name in ((best, "."), (best.parent, best.name)):
        monkeypatch.chdir(folder)
        assert command("eval", name, "--on", "held_out", "--json") == named
    assert command("eval", "-m", both_run, "--on", "valid", "--json").code == 2
    assert "does not know this tag" in command("eval", run_dir, "--on", "valid", "--tag", "").err
    scores = []
    for number in (0, 1):
        found = command("eval", both_run, "--on", f"valid.{number}", "--json")
        scores.append(json.loads(found.out)["bleu"]["score"])
    stored = json.loads((both_run / "best.json").read_text())
    entries = [*stored["history"], stored["average"]]
    (best,) = [e for e in entries if e["checkpoint"] == stored["best"]["checkpoint"]]
    assert scores == pytest.approx([part["bleu"] for part in best["parts"]])
    shutil.copytree(run_dir, tmp_path / "copy")
    changed = tmp_path / "copy" / "run.json"
    content = json.loads(changed.read_text())
    changed.write_text(json.dumps({**content, "test": {"held_out": "0" * 64}}))
    refused = command("eval", tmp_path / "copy", "--on", "held_out")
    assert (refused.code, refused.out) == (1, "")
    advice = "data.test.held_out: changed, and so not known to be the text of the run; give files"
    assert advice in refused.err
    changed.unlink()  # best.json has the hashes of test sets alone
    assert command("eval", tmp_path / "copy", "--on", "held_out", "--json") == named
    refused = command("eval", tmp_path / "copy", "--on", "valid")
    assert "data.valid: without a hash in run.json, and so not known to be the" in refused.err


def test_eval_overwrites_no_text_of_the_run(
    command: Command, run_dir: Path, tmp_path: Path
) -> None:
    text = load_config(run_dir / "config.yaml").data.test["held_out"]
    files = [Path(text.src), Path(text.tgt)]
    before = [file.read_bytes() for file in files]
    (tmp_path / "link").symlink_to(files[1])
    for output in (*files, tmp_path / "link"):
        refused = command("eval", run_dir, "--on", "held_out", "-o", output)
        assert (refused.code, refused.out) == (2, "")
        assert f"{output}: is an input, too; write to another file" in refused.err
    assert [file.read_bytes() for file in files] == before


def test_an_average_translates(command: Command, run_dir: Path, tmp_path: Path) -> None:
    result = command("average", run_dir, "--last", "2", "-o", tmp_path / "mean")
    assert (result.code, result.out) == (0, "")
    assert "step-00000006, step-00000008" in result.err
    average = checkpoint.load(run_dir / "checkpoints" / "average").weights
    mean = checkpoint.load(tmp_path / "mean").weights
    assert all((average[name] == mean[name]).all() for name in average)
    again = tmp_path / "again"
    result = command("average", "-m", run_dir, "--last", "2", "-o", again, "--json", "-q")
    names = ["step-00000006", "step-00000008"]
    assert json.loads(result.out) == {"checkpoint": str(again), "averaged": names}
    assert result.err == ""
    assert command("translate", "-m", tmp_path / "mean", stdin=b"lapo\n").code == 0


def test_an_average_is_by_default_that_of_the_run_or_of_the_fewer_that_there_are(
    command: Command, run_dir: Path, tmp_path: Path
) -> None:
    config = load_config(run_dir / "config.yaml")
    present = [
        path.name
        for path in layout.complete_checkpoints(run_dir / "checkpoints")
        if config.train.is_scheduled(layout.step_of(path) or 0)
    ]
    for wanted in (0, 1, 2, 99):
        run = tmp_path / f"run-{wanted}"
        shutil.copytree(run_dir, run)
        train = config.train.model_copy(update={"average_last": wanted, "keep_checkpoints": 3})
        (run / "config.yaml").write_text(dump_config(config.model_copy(update={"train": train})))
        result = command("average", run, "-o", tmp_path / f"mean-{wanted}", "--json")
        assert json.loads(result.out)["averaged"] == present[-(wanted or 3) :]


def test_a_page_has_a_default_name_and_replaces_no_other_file(
    command: Command, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "attention.html"
    assert command("attention", run_dir, "bavo").code == 0
    first = page.read_text()
    assert command("attention", "-m", run_dir, "celu").code == 0
    assert page.read_text() != first
    page.write_text("mine")
    result = command("attention", run_dir, "bavo")
    assert (result.code, page.read_text()) == (2, "mine")
    assert "attention.html: is not a page of mtrain; name another file with -o" in result.err
    assert command("attention", run_dir, "bavo", "-o", page).code == 0
    (tmp_path / "report.html").write_text("mine")
    assert command("report", run_dir, "--no-check").code == 2


def test_init_and_export_print_json(
    command: Command, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = made_up_pairs(300, 1)
    for side, name in enumerate(("a.en", "a.de")):
        write_lines(tmp_path / name, [pair[side] for pair in pairs])
    found = json.loads(command("init", "a.en", "a.de", "--hold-out", "9", "--json").out)
    left = len((tmp_path / "en-de" / "train.en").read_text().splitlines())
    assert found == {"config": "en-de.yaml", "pairs": left, "held_out": 9, "tests": []}
    pytest.importorskip("ctranslate2")
    result = command("export", trained_run, "-o", "served", "--json", "-q")
    found = json.loads(result.out)
    assert (result.code, found["directory"], found["to"]) == (0, "served", "ctranslate2")
    assert len(found["comparison"]) >= 2
    assert FORMATS["hf"] is FORMATS["hf-marian"]


def test_choices_are_those_of_the_parts() -> None:
    assert [kind.value for kind in Kind] == list(KINDS)
    engine = pytest.importorskip("ctranslate2.specs.model_spec")
    assert set(get_args(Quantization)) == set(engine.ACCEPTED_MODEL_TYPES)


def test_pieces_and_back(command: Command, run_dir: Path) -> None:
    text = "lapo  bavo\n\n Ünïcode 東京 \t x\n".encode()
    for model in (run_dir, run_dir / "tokenizer.model", reader.resolve(run_dir)):
        pieces = command("tokenizer", "encode", "-m", model, stdin=text)
        assert pieces.code == 0
        assert len(pieces.out.splitlines()) == 3
        back = command("tokenizer", "decode", "-m", model, stdin=pieces.out.encode())
        assert back == Result(0, text.decode(), "")


def test_a_vocabulary_trained_ahead_is_the_run_s(command: Command, tiny_config: TinyConfig) -> None:
    config = tiny_config(**{"train.max_steps": 2})
    run = config.parent / "run"
    result = command("tokenizer", "train", "-c", config)
    assert (result.code, result.out) == (0, f"{run / 'tokenizer.model'}\n")
    before = (run / "tokenizer.model").read_bytes()
    assert command("train", "-c", config).code == 0
    assert (run / "tokenizer.model").read_bytes() == before
    again = command("tokenizer", "train", "-c", config)
    assert again.code == 2
    assert "exists already" in again.err


# --- train ------------------------------------------------------------------------------------


def test_a_run_directory_is_laid_out_as_promised(run_dir: Path) -> None:
    names = "config.yaml run.json status.json tokenizer.model tokenizer.vocab checkpoints best.json"
    visible = {item.name for item in run_dir.iterdir() if not item.name.startswith(".")}
    assert visible == {*names.split(), "metrics.jsonl", "validation", "train.log"}
    best = json.loads((run_dir / "best.json").read_text())
    assert all("signature" in entry for entry in best["history"])
    assert {path.name for path in (run_dir / "validation").iterdir()} >= {"step-00000004.txt"}
    assert load_config(run_dir / "config.yaml").train.max_steps == 8
    run = json.loads((run_dir / "run.json").read_text())
    assert run["seed"] == 7
    assert {"train", "valid", "test", "tokenizer", "versions", "command"} <= run.keys()
    assert run["config"] == hashlib.sha256((run_dir / "config.yaml").read_bytes()).hexdigest()
    assert run["test"].keys() == {"held_out"}


def test_records_hold_what_the_contract_lists(run_dir: Path) -> None:
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    keys = set().union(*records)
    assert keys >= {"step", "time", "train/loss", "train/nll", "train/ppl", "lr", "grad_norm"}
    assert keys >= {"tokens_per_second", "valid/nll", "valid/bleu", "test/held_out/bleu"}
    assert [r["step"] for r in records if "train/loss" in r] == [2, 4, 6, 8]
    assert [r["step"] for r in records if "valid/bleu" in r] == [4, 8]
    assert [r["step"] for r in records] == sorted(r["step"] for r in records)


def test_the_same_command_starts_and_then_says_complete(
    command: Command, tiny_config: TinyConfig
) -> None:
    config = tiny_config(**{"train.max_steps": 2})
    first = command("train", "-c", config)
    assert (first.code, first.out) == (0, "")
    assert "\x1b" not in first.err
    expected = {"state": "complete", "exit_code": 0, "reason": "", "step": 2}
    assert expected.items() <= status(config.parent / "run").items()
    again = command("train", "-c", config)
    assert (again.code, again.out) == (0, "")
    assert "training is complete at step 2" in again.err
    refused = command("train", "-c", config, "--set", "seed=8")
    assert refused.code == 2
    assert "seed: 7 in the run, 8 now" in refused.err
    found = status(config.parent / "run")
    assert expected.items() <= found.items()
    assert (found["last_start"]["state"], found["last_start"]["exit_code"]) == ("refused", 2)
    assert "seed: 7 in the run, 8 now" in found["last_start"]["reason"]


@pytest.mark.parametrize("reason", ["No space left on device", "nowhere"])
def test_a_failed_run_says_so_in_its_status(
    command: Command, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def full(self: MetricsFile, record: object) -> None:
        raise OSError(errno.ENOSPC, reason, str(self.path))

    monkeypatch.setattr(MetricsFile, "append", full)
    config = tiny_config()
    options = ["--set", "data.valid.src=nowhere"] if reason == "nowhere" else []
    result = command("train", "-c", config, *options)
    assert result.code == 1
    assert reason in result.err
    found = status(config.parent / "run")
    assert (found["state"], found["exit_code"]) == ("failed", 1)
    assert reason in found["reason"]


@pytest.fixture
def _measure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forecasts measure a step in this process: another takes seconds to load torch."""
    target = "mtrain.training.plan.map_tasks"
    monkeypatch.setattr(target, lambda work, tasks, *_, **options: map(work, tasks))


@pytest.mark.usefixtures("_measure_here")
def test_a_dry_run_says_what_would_happen_and_writes_no_run(
    command: Command, tiny_config: TinyConfig
) -> None:
    config = tiny_config()
    result = command("train", "-c", config, "--dry-run")
    assert (result.code, result.out) == (0, "")
    assert "120 of 120 pairs" in result.err
    assert "parameters" in result.err
    assert "nothing was trained" in result.err
    assert not (config.parent / "run").exists()


@pytest.mark.usefixtures("_measure_here")
def test_a_dry_run_as_json_holds_the_forecast(
    command: Command, tiny_config: TinyConfig, run_dir: Path
) -> None:
    result = command("train", tiny_config(), "--dry-run", "--json", "-q")
    assert result.code == 0
    assert all("warning: " in line for line in result.err.splitlines())
    found = json.loads(result.out)
    assert (found["step"], found["is_complete"], found["max_steps"]) == (0, False, 8)
    assert found["step_seconds"] > 0
    assert found["parameters"] > 0
    done = command("train", run_dir / "config.yaml", "--dry-run", "--json")
    assert json.loads(done.out) == {"step": 8, "is_complete": True}


def test_text_is_prepared_ahead_of_training(
    command: Command, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config()
    result = command("data", "build", "-c", config)
    assert (result.code, result.out) == (0, "")
    assert "120 of 120 pairs" in result.err
    assert f"prepared text is in {cache_directory()}" in result.err
    assert not (config.parent / "run").exists()
    for maker in ("train_tokenizer", "write_tokenized"):
        monkeypatch.setattr(f"mtrain.data.prepare.{maker}", None)
    assert command("train", "-c", config, "--set", "train.max_steps=1").code == 0


def test_limits_of_time_reach_the_job(
    command: Command, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[Stop] = []
    metrics: list[ExternalMetric] = []
    monkeypatch.setattr("mtrain.training.job.build_data", lambda _, stop, *__: stops.append(stop))
    monkeypatch.setattr("mtrain.training.job.train", lambda *given: metrics.append(given[3]))
    config = tiny_config()
    for options in ([], ["--time-limit", "30m"]):
        assert command("data", "build", config, *options).code == 0
    assert [stop.time_limit for stop in stops] == [None, 1800]
    for options in ([], ["--metric-timeout", "9"]):
        assert command("train", config, "--metric-command", "cat", *options).code == 0
    assert [metric.timeout for metric in metrics] == [600, 9]


def test_a_dry_run_of_a_complete_run_says_so(command: Command, run_dir: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in run_dir.rglob("*"))
    change = "--set", "decode.beam_size=3"
    result = command("train", "-c", run_dir / "config.yaml", "--dry-run", *change)
    assert result.code == 0
    assert "training is complete at step" in result.err
    assert "changed setting decode.beam_size: 2 -> 3" in result.err
    assert "older checkpoints keep the decode settings that they were saved with" in result.err
    assert "parameters" not in result.err
    assert sorted(path.stat().st_mtime_ns for path in run_dir.rglob("*")) == before


def test_quiet_and_verbose_are_about_the_console(
    command: Command, tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's own log holds the same."""
    logs, shown = [], []
    for number, flags in enumerate(([], ["-q"], ["-v"])):
        run = tmp_path / f"run{number}"
        monkeypatch.setenv("MTRAIN_CACHE", str(tmp_path / f"cache{number}"))
        sets = ["--set", f"run_dir={run}", "--set", "train.max_steps=2"]
        shown.append(command("train", tiny_config(), *sets, *flags).err)
        text = (run / "train.log").read_text()
        logs.append([line.split()[2:4] for line in text.splitlines()])
    assert logs[0] == logs[1] == logs[2]
    assert all("warning: " in line for line in shown[1].splitlines())
    assert " parameters, on cpu, precision auto" in shown[2]
    assert " parameters, on cpu, precision auto" not in shown[0]
    assert re.search("^[0-9-]{10} [0-9:]{8} step 2/2 ", shown[0], re.MULTILINE)
    assert "Traceback" in command("train", "absent.yaml", "-v").err


# --- config -----------------------------------------------------------------------------------


def test_config_lists_the_settings(command: Command) -> None:
    result = command("config", "keys", "train.max_")
    assert result.code == 0
    assert command("config", "keys", "train.max_", "-q", "-q") == result
    lines = result.out.splitlines()
    assert lines[0] == "train.max_steps: 100000  # integer from 1"
    assert lines[1] == "    optimizer updates; a larger number continues a complete run"
    assert [line.split(":")[0] for line in lines[::2]] == ["train.max_steps", "train.max_tokens"]


def test_config_shows_what_a_run_would_use(
    command: Command, tiny_config: TinyConfig, tmp_path: Path
) -> None:
    config = tiny_config()
    result = command("config", "show", config, "--set", "train.max_steps=3")
    assert (result.code, result.err) == (0, "")
    (tmp_path / "shown.yaml").write_text(result.out)
    expected = load_config(config, ["train.max_steps=3"])
    assert load_config(tmp_path / "shown.yaml") == expected


def test_config_prints_the_schema(command: Command) -> None:
    assert json.loads(command("config", "schema").out) == make_schema()


# --- streams that are closed, full or gone ----------------------------------------------------


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `$MTRAIN` is the command."""
    environment = {**os.environ, "MTRAIN": f"{sys.executable} -m mtrain", **environment}
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("output", "unbuffered", "reason"),
    [
        ("/dev/full", "", "No space left"),
        pytest.param("out", "", "File too large", marks=pytest.mark.slow),
        pytest.param("out", "1", "File too large", marks=pytest.mark.slow),
    ],
)
def test_no_output_is_lost_without_a_message(
    trained_run: Path, tmp_path: Path, output: str, unbuffered: str, reason: str
) -> None:
    """With PYTHONUNBUFFERED a write to Python's own stdout may write a part only."""
    (tmp_path / "in").write_text("bavo celu\n" * 300)
    line = f"cd {tmp_path}; ulimit -f 1; $MTRAIN translate -m {trained_run} -i in > {output}"
    done = shell(line, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert f"stdout: cannot write: {reason}" in done.stderr
    assert "Traceback" not in done.stderr


def shown_on(here: int, there: int) -> bytes:
    """Close a pseudo-terminal, given by its two ends, and return what it has shown."""
    os.close(there)
    shown = b""
    with suppress(OSError):  # Linux's way to report the end
        while some := os.read(here, 1 << 16):
            shown += some
    os.close(here)
    return shown.replace(b"\r\n", b"\n")


def on_a_terminal(
    *arguments: str | Path, stdin: bytes, cwd: Path | None = None, code: int = 0, **variables: str
) -> bytes:
    """Run `mtrain` with a terminal as its stdout, and return what that gets."""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "mtrain", *map(str, arguments)]
    env = {**os.environ, "TERM": "xterm", **variables}
    options = {"input": stdin, "stdout": there, "cwd": cwd, "env": env, "timeout": 300}
    assert subprocess.run(command, check=False, **options).returncode == code
    return shown_on(here, there)


ESCAPES = "a\x1b]0;b\x07\tc\r\x7f\x9b2Jé\u200d\xa0".encode()
SHOWN = "a\\x1b]0;b\\x07\tc\\r\\x7f\\x9b2Jé\u200d\xa0".encode()


@pytest.mark.slow
def test_a_terminal_gets_nothing_to_obey(run_dir: Path) -> None:
    """A file or a pipe gets the bytes as they are."""
    decode = ["tokenizer", "decode", "-m", run_dir]
    piped = subprocess.run(
        [sys.executable, "-m", "mtrain", *map(str, decode)],
        input=ESCAPES + b"\n",
        capture_output=True,
        check=True,
    )
    assert piped.stdout == ESCAPES + b"\n"
    shown = on_a_terminal(*decode, stdin=ESCAPES + b"\n")
    assert shown.replace(b"       ", b"\t") == SHOWN + b"\n"


@pytest.mark.slow
def test_a_path_is_told_in_its_bytes_but_on_a_terminal(tmp_path: Path) -> None:
    pairs = made_up_pairs(200, 1)
    for side, name in enumerate(("a.en", "a.de")):
        write_lines(tmp_path / name, [pair[side] for pair in pairs])
    init = ["init", "a.en", "a.de", "--hold-out", "9", "-o"]
    done = run_mtrain(*init, "x\x1b[.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "x\x1b[.yaml\n")
    shown = on_a_terminal(*init, "y\x1b[.yaml", stdin=b"", cwd=tmp_path)
    assert shown == b"y\\x1b[.yaml\n"


def test_names_of_others_forge_no_line(tmp_path: Path) -> None:
    names = ["a\x1b[2K", "b\nc"]
    for name in (*names, "ref"):
        (tmp_path / name).write_text("one\n")
    done = run_mtrain("compare", *names, "-r", "ref", "--metrics", "bleu", cwd=tmp_path)
    assert done.returncode == 0
    assert "\na\\x1b[2K " in done.stdout
    assert "\nb\\nc " in done.stdout
    (tmp_path / "c.yaml").write_text(
        "run_dir: r\ndata: {src_lang: en, tgt_lang: de, valid: {src: ref, tgt: lost}, train: "
        '[{src: "ref", tgt: "a\\e[2K"}]}'
    )
    done = run_mtrain("check", "-c", "c.yaml", "--no-forecast", cwd=tmp_path)
    assert "ref + a\\x1b[2K" in done.stdout
    (tmp_path / "run\x1b[2K").mkdir()
    (tmp_path / "run\x1b[2K" / "config.yaml").write_text("")
    done = run_mtrain("verify", "run\x1b[2K", cwd=tmp_path)
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.slow
def test_closed_streams_are_no_surprise(trained_run: Path) -> None:
    translate = f"$MTRAIN translate -m {trained_run}"
    lines = [f"{translate} <&-", f"echo bavo | {translate} >&-", "$MTRAIN train absent.yaml 2>&-"]
    with ThreadPoolExecutor() as pool:
        stdin, stdout, stderr = pool.map(shell, lines)
    assert (stdin.returncode, stdin.stdout, stdin.stderr.count("\n")) == (1, "", 1)
    assert "stdin: cannot read" in stdin.stderr
    assert (stdout.returncode, stdout.stderr.count("\n")) == (1, 1)
    assert "stdout: cannot write" in stdout.stderr
    assert (stderr.returncode, stderr.stdout) == (2, "")


def test_a_translation_is_scored_from_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("the old harbour sleeps in the sun\n" * 2)
    score = f"$MTRAIN eval --hypothesis - -r {tmp_path}/ref --json"
    done = shell(f"cat {tmp_path}/ref | {score}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bleu"]["score"] == pytest.approx(100)


def test_a_removed_working_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f"cd {tmp_path}/gone && rmdir ../gone && $MTRAIN train -c config.yaml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the working directory was removed" in done.stderr


def test_an_output_file_that_is_read_as_stdin_is_refused(trained_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("bavo\n")
    done = shell(f"$MTRAIN translate -m {trained_run} -o {file} < {file}")
    assert (done.returncode, file.read_text()) == (2, "bavo\n")
    assert "is an input, too" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "translate -m {run} < {file}",
        "translate -m {run} -i {file}",
        "tokenizer encode {run} < {file}",
        "tokenizer decode {run} < {file}",
        "score {run} -s {file} -t {other}",
        "score {run} -s {other} -t {file}",
    ],
)
def test_no_command_appends_to_the_file_that_it_reads(
    trained_run: Path, tmp_path: Path, line: str
) -> None:
    file, other = tmp_path / "text", tmp_path / "other"
    for path in (file, other):
        path.write_text("bavo\n")
    done = shell(f"$MTRAIN {line} >> {{file}}".format(run=trained_run, file=file, other=other))
    assert (done.returncode, file.read_text()) == (2, "bavo\n")
    assert "stdout: is an input, too; write to another file" in done.stderr


@pytest.mark.slow
def test_a_log_that_nobody_reads_ends_no_run(tiny_config: TinyConfig, tmp_path: Path) -> None:
    """As of `mtrain train 2>&1 | tee log` once tee is gone."""
    config = tiny_config(**{"train.max_steps": 4, "train.log_every": 1})
    done = shell(f"set -o pipefail; $MTRAIN train -c {config} 2>&1 | true")
    assert done.returncode == 0
    assert status(tmp_path / "run")["state"] == "complete"


# --- colours ----------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "no_color", "term", "painted"),
    [
        (Terminal(), "", "xterm", True),
        (Terminal(), "1", "xterm", False),
        (Terminal(), "", "dumb", False),
        (io.StringIO(), "", "xterm", False),
        (None, "", "xterm", False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO | None,
    no_color: str,
    term: str,
    painted: bool,
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert (paint("error:", RED, stream) == "error:") != painted


@pytest.mark.slow
def test_severities_have_colours_on_a_terminal(tmp_path: Path) -> None:
    """Also, text that is only quoted gets none, and can send none."""
    texts = {"ref": "a b c d\n", "old": "a b c\x1b[31m\n", "new": "a b c d\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text * 12)
    arguments = ["compare", "old", "new", "-r", "ref", "--metrics", "bleu"]
    shown = on_a_terminal(*arguments, stdin=b"", cwd=tmp_path).decode()
    assert re.search(r"\+\d+\.\d\d \x1b\[1;32mbetter\x1b\[0m", shown)
    assert shown.count("\x1b") == 2
    (tmp_path / "old").rename(tmp_path / "s.en")
    (tmp_path / "new").rename(tmp_path / "s.de")
    (tmp_path / "c.yaml").write_text(
        "run_dir: r\ndata: {src_lang: en, tgt_lang: de, train: [{src: s.en, tgt: s.de}], "
        "valid: {src: s.en, tgt: absent}}"
    )
    command = ["check", "c.yaml", "--no-forecast"]
    shown = on_a_terminal(*command, stdin=b"", cwd=tmp_path, code=1).decode()
    assert "\x1b[1;31m  error\x1b[0m " in shown
    assert "\x1b[1;33m  warning\x1b[0m " in shown
    monochrome = on_a_terminal(*command, stdin=b"", cwd=tmp_path, code=1, NO_COLOR="1")
    assert b"\x1b" not in monochrome


# --- what a person at a terminal sees -----------------------------------------------------------


def typed(text: bytes, *arguments: str | Path, stdout: Path | None = None, cwd: Path) -> str:
    """Run `mtrain` for a person who types a text, and return what the terminal shows, by a
    terminal that echoes nothing. `stdout` may be redirected.
    """
    here, there = pty.openpty()
    settings = termios.tcgetattr(there)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(there, termios.TCSANOW, settings)
    os.write(here, text)
    terminal = os.ttyname(there)
    streams = {"stdin": terminal, "stdout": str(stdout or terminal), "stderr": terminal}
    done = run_mtrain(*arguments, cwd=cwd, streams=streams)
    shown = shown_on(here, there).decode()
    assert done.returncode == 0, shown
    return shown


def test_translate_guides_who_types(trained_run: Path, tmp_path: Path) -> None:
    model = ("-m", trained_run)
    out = tmp_path / "out"
    shown = typed(b"bavo\nlapo\n\x04", "translate", *model, stdout=out, cwd=tmp_path)
    best = reader.resolve(trained_run)
    assert shown == (
        f"loading {trained_run}\naa -> ba, by {best}\nOne sentence per line; Ctrl-D ends.\n> > > \n"
    )
    assert out.read_text() == "zwent\nsteib\n"
    quiet = typed(b"bavo\n\x04", "translate", "-q", *model, cwd=tmp_path)
    assert quiet == "zwent\n"
    piped = run_mtrain("translate", *model, input="bavo\n")
    assert (piped.stdout, piped.stderr) == ("zwent\n", "")


def test_a_terminal_is_told_what_was_written(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("bavo\n")
    model = ("-m", trained_run)
    shown = typed(b"", "translate", *model, "-i", "in", "-o", "out.txt", cwd=tmp_path)
    assert shown.splitlines()[-1].endswith("wrote out.txt (6 bytes)")
    done = run_mtrain("translate", *model, "-i", "in", "-o", "out.txt", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_terminal_does_not_refuse_carriage_returns(trained_run: Path, tmp_path: Path) -> None:
    """The progress bar counts the lines first."""
    (tmp_path / "in").write_bytes(b"bavo" + b"\r" * 50)
    typed(b"", "translate", "-m", trained_run, "-i", "in", "-o", "out", cwd=tmp_path)
    piped = run_mtrain("translate", "-m", trained_run, "-i", "in", cwd=tmp_path)
    assert (tmp_path / "out").read_text() == piped.stdout
    assert "lines with carriage returns inside, which do not count as line ends: 1" in piped.stderr
