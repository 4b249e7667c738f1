"""One fuzzing case: a sandbox with something odd in it, and the `mtrain` command that meets it.

    ROOT/box/       working directory: config.yaml, data/, run/ (finished), in.txt, hyp.txt, out/
    ROOT/cache/     MTRAIN_CACHE
    ROOT/home/      HOME, with a secret
    ROOT/outside/   files that belong to somebody else; links lead there

The kinds at the end of this module each make one kind of case.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml
from conftest import made_up_pairs

from faults import mutate
from mtrain.corpus.lines import is_blank
from mtrain.runs import manifest

SECRET = "secret of this home"
FORMS = ("plain", "plain", "plain", "gz", "zst", "tsv", "jsonl", "tmx", "parquet")

# Commands with their weights. MODEL is a run or a checkpoint; SRC and TGT are files of text.
Commands = dict[str, tuple[int, str]]
USES: Commands = {
    "translate": (4, "translate -m MODEL -i in.txt"),
    "translate -o": (2, "translate -m MODEL -i in.txt -o out/old.txt --scores"),
    "score": (3, "score -m MODEL -s in.txt -t hyp.txt"),
    "eval": (3, "eval -m MODEL -s in.txt -r hyp.txt --json"),
    "encode": (1, "tokenizer encode -m MODEL"),
    "decode": (1, "tokenizer decode -m MODEL"),
    "attention": (2, "attention -m MODEL -o out/new.html dimar"),
    "export": (1, "export -m MODEL -o out/export --sample in.txt"),
    "verify": (4, "verify run"),
    "report": (3, "report run -o out/new.html --no-check"),
    "average": (3, "average run --last 2 -o out/average"),
    "go on": (8, "train -c config.yaml --set train.max_steps=4"),
    "tensorboard": (1, "train -c config.yaml --set train.max_steps=4 --set train.tensorboard=true"),
    "train": (3, "train -c config.yaml"),
    "dry run": (2, "train -c config.yaml --dry-run"),
    "other seed": (1, "train -c config.yaml --set seed=5"),
}
PREPARES: Commands = {
    "train": (4, "train -c config.yaml"),
    "dry run": (4, "train -c config.yaml --dry-run"),
    "check": (4, "check -c config.yaml --no-forecast"),
    "check --json": (1, "check -c config.yaml --no-forecast --json"),
    "data build": (2, "data build -c config.yaml"),
    "tokenizer train": (1, "tokenizer train -c config.yaml"),
}
READS: Commands = {
    "translate": (4, "translate -m run -i SRC"),
    "translate -o": (2, "translate -m run -i SRC -o out/old.txt --n-best 2 --scores"),
    "translate <": (2, "translate -m run"),
    "translate < --line-buffered": (1, "translate -m run --line-buffered --beam-size 1"),
    "score": (3, "score -m run -s SRC -t TGT"),
    "eval": (2, "eval -m run -s SRC -r TGT"),
    "eval --hypothesis": (2, "eval --hypothesis SRC -r TGT -s TGT"),
    "compare": (1, "compare -r TGT SRC data/train.src"),
    "init": (1, "init SRC TGT --src-lang aa --tgt-lang ba --hold-out 3 -o out/init/new.yaml"),
    "encode": (1, "tokenizer encode -m run"),
    "decode": (1, "tokenizer decode -m run"),
}
# Lines of output for each line that is read.
LINES_FOR_ONE = {
    **dict.fromkeys(("translate", "translate <", "translate < --line-buffered"), 1),
    **{"translate -o": 2, "encode": 1, "decode": 1},
}
# Uses of a run that give the same result as without damage, on stdout and in WRITTEN, or fail.
SAME = USES.keys() - {"verify", "report", "train", "dry run", "other seed"}
WRITTEN = (
    *("out/old.txt", "out/new.html", "out/average/manifest.json", "out/export/manifest.json"),
    "run/checkpoints/step-00000004/manifest.json",
)

PLANTS = [
    *(".config.yaml.partial", ".run.json.partial", ".status.json.partial", ".best.json.partial"),
    *(".lock", "train.log", "metrics.jsonl", ".metrics.jsonl.partial", ".tokenizer.model.partial"),
    *("status.json", "best.json", "run.json", "config.yaml", "tokenizer.model", "tokenizer.vocab"),
    *("checkpoints", "checkpoints/step-00000003", "checkpoints/.step-00000003.partial"),
    *("checkpoints/.step-00000003.removed", "checkpoints/step-00000004", "checkpoints/average"),
    *("checkpoints/.average.partial", "checkpoints/.average.removed", "checkpoints/step-x"),
    *("validation", "validation/step-00000004.txt", "validation/.step-00000004.txt.partial"),
    *("validation/average.txt", "validation/.average.txt.partial", "tensorboard", "notes.txt"),
    *("checkpoints/.step-00000004.partial", "checkpoints/step-00000002/trainer"),
]


@dataclass
class Case:
    rng: Random
    root: Path
    what: str = ""
    command: str = ""  # its name
    arguments: list[str] = field(default_factory=list)
    stdin: bytes = b""
    may_write: list[str] = field(default_factory=list)  # new files only, relative to ROOT
    is_own: bool = True  # the config is the user's: may read what it names, and ask the hub
    must_fail: bool = False
    lines: int | None = None  # number of lines that must come out
    keeps_result: bool = False  # success means the result of the undamaged run

    @property
    def box(self) -> Path:
        return self.root / "box"

    @property
    def writes_run(self) -> bool:
        begin = self.arguments[:1] == ["train"] or self.arguments[:2] == ["tokenizer", "train"]
        return begin and "--dry-run" not in self.arguments

    @property
    def outputs(self) -> list[str]:
        """What the command may replace when it succeeds."""
        named = [b for a, b in zip(self.arguments, self.arguments[1:], strict=False) if a == "-o"]
        if self.arguments[0] == "init":
            named = [os.path.dirname(name) for name in named]
        found = [self.real(name) for name in named]
        read = {"box", *(self.real(a) for a in self.arguments if a not in named)}
        return [name for name in found if name not in read and not name.startswith("box/run")]

    def real(self, name: str) -> str:
        """Where a name of the command line leads, relative to ROOT."""
        return os.path.relpath(os.path.realpath(self.box / name[:200]), self.root)

    def choose(self, commands: Commands, **words: str) -> None:
        weights = [weight for weight, _ in commands.values()]
        self.command = self.rng.choices(list(commands), weights)[0]
        parts = commands[self.command][1].split()
        self.arguments = [words.get(part, part) for part in parts]
        if self.arguments[0] == "tokenizer" and self.arguments[1] != "train" and not self.stdin:
            self.stdin = (self.box / "in.txt").read_bytes()

    def stops_early(self) -> None:
        """Stop a training whose settings are sound but ask for days."""
        if self.arguments[0] == "train":
            self.arguments += ["--time-limit", "8s"]

    def config(self) -> Any:
        return yaml.safe_load((self.box / "config.yaml").read_text())

    def prepare(self, config: Any) -> None:
        """Prepare or train a new run by a config."""
        (self.box / "config.yaml").write_bytes(mutate.yaml_of({**config, "run_dir": "new"}))
        self.may_write = ["box/new"]
        self.choose(PREPARES)

    def damage(self, path: Path, action: str) -> None:
        """Put other bytes or values into a file, or something else in its place."""
        if action in ("bytes", "values") and path.is_file():
            change = {"bytes": mutate.mutate_bytes, "values": mutate.mutate_values}[action]
            path.write_bytes(change(self.rng, path.read_bytes(), path.suffix))
        else:
            mutate.lead(path, action, self.root / "outside")

    def names_run(self, text: object) -> None:
        """Let the command write to the run directory that a config names."""
        if isinstance(text, str) and text and "\0" not in text and len(text) < 250:
            text = text.replace("$HOME", str(self.root / "home"))
            text = re.sub("^~(?=/|$)", str(self.root / "home"), text)
            self.may_write.append(self.real(text))


def of_config(case: Case) -> None:
    rng, config = case.rng, case.config()
    config["run_dir"] = rng.choice(("run", "run", "new", "new", mutate.odd_path(rng)))
    data = mutate.mutate_yaml(rng, config) if rng.random() < 0.9 else mutate.yaml_of(config)
    (case.box / "config.yaml").write_bytes(data)
    try:
        loaded = yaml.load(data, yaml.BaseLoader)
        case.names_run(loaded.get("run_dir") if isinstance(loaded, dict) else None)
    except (yaml.YAMLError, ValueError, RecursionError):
        case.may_write = []
    case.choose(PREPARES)
    case.stops_early()
    case.what = "a mutated config"


def of_setting(case: Case) -> None:
    rng, config = case.rng, case.config()
    sections = {key: value for key, value in config.items() if isinstance(value, dict)}
    keys = [f"{key}.{name}" for key, section in sections.items() for name in section]
    key = rng.choice([*keys, "seed", "train", "data", mutate.odd_text(rng)])
    value = mutate.odd_value(rng)
    if rng.random() < 0.4:
        key = rng.choice(("run_dir", "run_dir", "data.root", "tokenizer.path", "train.init_from"))
        value = mutate.odd_path(rng)
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
    if key == "run_dir":
        with suppress(yaml.YAMLError, ValueError):
            case.names_run(yaml.load(text, yaml.BaseLoader))
    case.choose(PREPARES)
    case.stops_early()
    setting = f"{key}={text}".replace("\0", "").replace("\ud800", "\udcff")
    case.arguments += ["--set", setting[:100_000]]
    case.what = "an odd --set"


def of_corpus(case: Case) -> None:
    rng = case.rng
    form = rng.choice(FORMS)
    pairs = made_up_pairs(60, rng.randrange(3))
    case.what, files = mutate.mutate_corpus(rng, form, pairs)
    names = []
    stem = rng.choice((*["fuzz"] * 12, "f\x1b[2J", f"a\n{mutate.FORGED}"))
    for suffix, data in files.items():
        names.append(f"data/{stem}.{suffix}")
        (case.box / names[-1]).write_bytes(data)
    case.must_fail = "twice" in case.what and form in ("tsv", "jsonl")
    if form in ("plain", "gz", "zst") and rng.random() < 0.6:
        _read_texts(case, form, names)
        return
    entry = {"src": names[0], "tgt": names[-1]}
    if form not in ("plain", "gz", "zst"):
        entry = {"file": names[0], "src": "src", "tgt": "tgt"}
    config = case.config()
    config["data"]["valid" if rng.random() < 0.2 else "train"] = entry
    if isinstance(config["data"]["train"], dict):
        config["data"]["train"] = [entry]
    config["data"]["invalid_utf8"] = rng.choice(("error", "drop"))
    case.prepare(config)
    if case.command == "tokenizer train" and config["data"]["valid"] == entry:
        case.must_fail = False  # it reads the training text alone


def _read_texts(case: Case, form: str, names: list[str]) -> None:
    data = (case.box / names[0]).read_bytes()
    case.stdin = data if form == "plain" else b"bavo celu\n"
    case.choose(READS, SRC=names[0], TGT=names[1])
    if "-i" not in case.arguments:
        data = case.stdin
    elif form == "zst":  # without a checksum: the damage may not show
        return
    elif form == "gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            case.must_fail = True
            return
    if case.command in LINES_FOR_ONE:
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        blank = sum(is_blank(line.decode("utf-8", "replace")) for line in lines)
        case.lines = blank + (len(lines) - blank) * LINES_FOR_ONE[case.command]


def _model(case: Case) -> str:
    checkpoints = sorted((case.box / "run/checkpoints").glob("*"))
    return case.rng.choice(["run", "run", f"run/checkpoints/{case.rng.choice(checkpoints).name}"])


def _file_of_run(case: Case) -> Path:
    files = [f for f in sorted((case.box / "run").rglob("*")) if f.is_file()]
    top = [f for f in files if f.suffix in (".json", ".jsonl", ".yaml") and f.parent.name == "run"]
    return case.rng.choice(top if case.rng.random() < 0.5 else files)


def of_run(case: Case) -> None:
    rng, model = case.rng, _model(case)
    file = _file_of_run(case)
    name, data = str(file.relative_to(case.box)), file.read_bytes()
    case.is_own = False
    case.keeps_result = file.name != "best.json"
    case.choose(USES, MODEL=model)
    action = rng.choice((*mutate.LEADS, "bytes", "bytes", "secrets"))
    if file.suffix in (".json", ".jsonl", ".yaml") and rng.random() < 0.5:
        action = "values"
    case.what = f"{name}: {action}"
    if action == "secrets":
        _name_secrets(case)
        return
    case.damage(file, action)
    guarded = "checkpoints/" in name and action != "hard link"
    is_changed = not file.is_file() or file.is_symlink() or file.read_bytes() != data
    case.must_fail = case.command == "verify" and guarded and is_changed


def _name_secrets(case: Case) -> None:
    """Name a file of the user's as the validation set of a run that came from somebody else."""
    secret = {"src": "../home/.ssh/id", "tgt": "../home/.ssh/id"}
    asks_hub = case.rng.random() < 0.3
    hub = {"dataset": "someone/tracker", "split": "train", "src": "a", "tgt": "b"}
    text = re.sub(r'\n "valid": "\w+",', "", (case.box / "run/run.json").read_text())
    (case.box / "run/run.json").write_text(text)
    for path in (case.box / "run").rglob("config.yaml"):
        config = yaml.safe_load(path.read_text())
        config["data"]["valid"] = hub if asks_hub else secret
        path.write_bytes(mutate.yaml_of(config))
        if path.parent.name != "run":
            manifest.seal(path.parent)
    case.what = "run: its config names other files"
    names = ("report", "export", "verify", "train", "eval", "attention")
    case.choose({name: USES[name] for name in names}, MODEL="run")


def of_plants(case: Case) -> None:
    model = _model(case)
    name, to = case.rng.choice(PLANTS), case.rng.choice(mutate.LEADS)
    mutate.lead(case.box / "run" / name, to, case.root / "outside")
    case.what = f"run/{name}: {to}"
    case.is_own = False
    case.keeps_result = "best.json" not in name
    train = {name: USES[name] for name in ("go on", "tensorboard", "train", "other seed")}
    case.choose(train if case.rng.random() < 0.7 else USES, MODEL=model)


def of_sealed(case: Case) -> None:
    """Files of a checkpoint that do what they like, with the right hashes."""
    rng, model = case.rng, _model(case)
    folders = [f.parent for f in sorted((case.box / "run/checkpoints").rglob(manifest.NAME))]
    if model != "run":
        folders = [case.box / model]
    folder = rng.choice(folders)
    file = rng.choice([f for f in sorted(folder.iterdir()) if f.is_file()])
    case.damage(file, "values")
    if file.name != manifest.NAME:
        manifest.seal(folder)
    case.what = f"{file.relative_to(case.box)}: other values, sealed"
    case.is_own = False
    case.choose(USES, MODEL=model)


def of_pieces(case: Case) -> None:
    data = (case.box / "run/tokenizer.model").read_bytes()
    (case.box / "odd.model").write_bytes(mutate.mutate_bytes(case.rng, data))
    case.what = "tokenizer.path: a mutated model"
    case.prepare({**case.config(), "tokenizer": {"path": "odd.model"}})


KINDS: dict[str, tuple[int, Callable[[Case], None]]] = {
    "config": (16, of_config),
    "--set": (10, of_setting),
    "corpus": (22, of_corpus),
    "file of a run": (18, of_run),
    "planted in a run": (12, of_plants),
    "sealed checkpoint": (12, of_sealed),
    "SentencePiece model": (6, of_pieces),
}
