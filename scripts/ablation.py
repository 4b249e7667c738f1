"""Measure what each part of the paper brings: one short training run per part that is taken away.

    python scripts/ablation.py -c configs/multi30k-en-de.yaml -o runs/ablation \
                               --set data.root=PATH --set train.max_steps=1500

Every run has the config's seed, length and settings, except for what its row names, and is scored
on the config's validation set, with its averaged model and with its last checkpoint. Two more rows
translate with the unchanged run's averaged model and another beam. A Markdown table goes to stdout.
Runs that are complete are not trained again, and stopped ones go on, so the command can be
repeated. On CPUs `--jobs 2 --set train.threads=1` trains two at a time, which is faster on two
cores.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.corpus.readers import read_text, reading_of
from mtrain.runs import layout
from mtrain.runtime.errors import UserError
from mtrain.scoring import metrics
from mtrain.translation import loading
from mtrain.translation.translator import Translator

BASE = "as configured"


def changes(num_heads: int) -> dict[str, list[str]]:
    """List the settings that each run changes, by what the table calls it."""
    return {
        "no label smoothing": ["train.label_smoothing=0"],
        "embeddings not tied": ["model.tie_embeddings=none"],
        "learned positions": ["model.positions=learned"],
        "pre-norm": ["model.norm=pre"],
        "post-norm": ["model.norm=post"],
        "half the heads": [f"model.num_heads={num_heads // 2}"],
        "twice the heads": [f"model.num_heads={num_heads * 2}"],
        "noam schedule": ["train.schedule=noam"],
        "Muon": ["train.optimizer=muon"],
    }


def plan(args: argparse.Namespace) -> tuple[Config, dict[str, list[str]]]:
    """Return the unchanged config, and each run's settings; changes that are none, or that the
    model cannot have, are named and left out.
    """
    shared = [*args.set, "train.patience=0"]
    config = load_config(Path(args.config), shared)
    if len(config.data.valid_parts) > 1:
        raise UserError("data.valid: a list; name the one set that the rows are scored on")
    runs = {BASE: shared}
    for name, change in changes(config.model.num_heads).items():
        try:
            if load_config(Path(args.config), [*shared, *change]) == config:
                raise UserError("as configured")
        except UserError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
        else:
            runs[name] = [*shared, *change]
    return config, runs


def train(config: str, run_dir: Path, settings: list[str]) -> Path:
    """Train a run to its end, with its output in a file next to it; return its directory."""
    options = [f"--set={item}" for item in [*settings, f"run_dir={json.dumps(str(run_dir))}"]]
    with open(f"{run_dir}.log", "w") as log:
        command = [sys.executable, "-m", "mtrain", "train", "-c", config, *options]
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if code:
        print(f"{run_dir}: not trained to its end, see {run_dir}.log", file=sys.stderr)
        raise SystemExit(code)
    print(f"{run_dir}: complete", file=sys.stderr)
    return run_dir


def row(name: str, run_dir: Path) -> str:
    """Read a run's scores: the mean of its last checkpoints, and the last of them alone."""
    history = json.loads((run_dir / "best.json").read_text())
    last, average = history["history"][-1], history["average"] or {}
    cells = [
        f"{entry[key]:.{n}f}" if entry else ""
        for key, n in (("bleu", 1), ("nll", 3))
        for entry in (average, last)
    ]
    return f"| {name} | {' | '.join(cells)} |"


def search_rows(config: Config, run_dir: Path) -> list[str]:
    """Score greedy search and a beam of 4 with the unchanged run's averaged model."""
    average = run_dir / layout.CHECKPOINTS / layout.AVERAGE
    model = average if average.exists() else run_dir
    [corpus] = config.data.valid_parts
    valid = read_text(corpus, reading_of(config, keep_blank=True), "")
    tokenize = config.data.tokenizer_of(corpus)
    rows = []
    for name, width in (("greedy search", 1), ("beam 4", 4)):
        loaded = loading.load(model, device=config.train.device, beam_size=width)
        hypotheses = Translator(loaded.tagged(corpus.tag)).best(valid.sources)
        bleu = metrics.score("bleu", hypotheses, [valid.references], tokenize=tokenize)
        rows.append(f"| {name} | {bleu.score:.1f} | | | |")
    return [*rows, "", bleu.signature]


def main() -> None:
    """Train, score, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-c", "--config", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], help="as of mtrain train")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(args.jobs)
    try:
        config, planned = plan(args)
        runs = {
            name: pool.submit(train, args.config, args.output / name.replace(" ", "-"), settings)
            for name, settings in planned.items()
        }
        for run in wait(runs.values(), return_when=FIRST_EXCEPTION).done:
            run.result()  # one that failed ends the others
        print("| model | BLEU, averaged | BLEU, last | NLL, averaged | NLL, last |")
        print("| --- | --- | --- | --- | --- |")
        print("\n".join(row(name, run.result()) for name, run in runs.items()))
        print("\n".join(search_rows(config, runs[BASE].result())))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
