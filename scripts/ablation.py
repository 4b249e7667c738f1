"""Measure what parts of the paper contribute: one short training run per changed setting.

    python scripts/ablation.py -c configs/multi30k-en-de.yaml -o runs/ablation \
                               --set data.root=PATH --set train.max_steps=1500

Every run has the config's seed, length and settings, except for the change that its row names, and
is scored on the validation set with its averaged model and with its last checkpoint. Two more rows
translate with the unchanged run's averaged model and another beam size. A Markdown table goes to
stdout. Repeating the command resumes stopped runs and skips complete ones. On two CPU cores,
`--jobs 2 --set train.threads=1` trains two runs at a time, which is faster.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.corpus.readers import read_scored_text, reading_of
from mtrain.runs import layout
from mtrain.runtime.errors import UserError
from mtrain.scoring import metrics
from mtrain.translation import loading
from mtrain.translation.translator import Translator

BASE = "as configured"


def changes(num_heads: int) -> dict[str, list[str]]:
    """Return the settings that each run changes, by the name of its row."""
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
    """Return the unchanged config, and each run's settings. Changes that have no effect, or that
    the config does not allow, are reported and skipped.
    """
    shared = [*args.set, "train.patience=0"]
    config = load_config(Path(args.config), shared)
    if len(config.data.valid_corpora) > 1:
        raise UserError("data.valid: a list; give one set, which all rows are scored on")
    runs = {BASE: shared}
    for name, change in changes(config.model.num_heads).items():
        try:
            if load_config(Path(args.config), [*shared, *change]) == config:
                raise UserError("as configured")
        except UserError as error:
            print(f"skipped: {name}: {error}", file=sys.stderr)
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
        print(f"{run_dir}: training failed; see {run_dir}.log", file=sys.stderr)
        raise SystemExit(code)
    print(f"{run_dir}: complete", file=sys.stderr)
    return run_dir


def row(name: str, run_dir: Path) -> str:
    """Return a run's row: the scores of its averaged model and of its last checkpoint."""
    history = json.loads((run_dir / "best.json").read_text())
    last, average = history["history"][-1], history["average"] or {}
    cells = [
        f"{entry[key]:.{digits}f}" if entry else ""
        for key, digits in (("bleu", 1), ("nll", 3))
        for entry in (average, last)
    ]
    return f"| {name} | {' | '.join(cells)} |"


def search_rows(config: Config, run_dir: Path) -> list[str]:
    """Score greedy search and a beam of 4 with the unchanged run's averaged model."""
    average = run_dir / layout.CHECKPOINTS / layout.AVERAGE
    model = average if average.exists() else run_dir
    [corpus] = config.data.valid_corpora
    valid = read_scored_text(corpus, reading_of(config, keep_blank=True), "")
    tokenize = config.data.tokenizer_of(corpus)
    rows = []
    for name, beam_size in (("greedy search", 1), ("beam 4", 4)):
        loaded = loading.load(model, device=config.train.device, beam_size=beam_size)
        hypotheses = Translator(loaded.tagged(corpus.tag)).best(valid.sources)
        bleu = metrics.score("bleu", hypotheses, [valid.references], tokenize=tokenize)
        rows.append(f"| {name} | {bleu.score:.1f} | | | |")
    return [*rows, "", bleu.signature]


def main() -> None:
    """Train, score, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-c", "--config", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="directory of the runs")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], help="a setting, as in mtrain train")
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
            run.result()  # raises if the run failed, and no further runs start
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
