"""Measure what each part of the paper brings: one short training run per part that is taken away.

    scripts/ablation.py -c configs/multi30k-en-de.yaml -s valid.en -r valid.de -o runs/ablation \
                        --set data.root=PATH --set train.max_steps=2000

Every run has the config's seed, length and settings, less the one named. Each is scored on the
given text with its averaged model and the config's search. More rows score the unchanged model with
other searches, and two models without averaging: the unchanged one, and that of the paper's
schedule, whose rate is still high when it ends. A Markdown table goes to stdout. Runs that are
complete are not trained again, and stopped ones go on, so the command can be repeated. On CPUs
`--jobs 2 --set train.threads=1` trains two at a time, which is faster on two cores.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mtrain.config import load_config

MTRAIN = [sys.executable, "-m", "mtrain"]


def changes(num_heads: int) -> dict[str, list[str]]:
    """List the settings that each run changes, by what the table calls it."""
    return {
        "as configured": [],
        "no label smoothing": ["train.label_smoothing=0"],
        "embeddings not tied": ["model.tie_embeddings=none"],
        "learned positions": ["model.positions=learned"],
        "pre-norm": ["model.norm=pre"],
        f"{num_heads // 2} heads": [f"model.num_heads={num_heads // 2}"],
        f"{num_heads * 2} heads": [f"model.num_heads={num_heads * 2}"],
        "noam schedule": ["train.schedule=noam"],
    }


def train(args: argparse.Namespace, name: str, settings: list[str]) -> Path:
    """Train one run to its end with its output in a file beside it; returns its directory."""
    run_dir: Path = args.output / name.replace(" ", "-")
    options = [f"--set={item}" for item in [*args.set, *settings, f"run_dir={run_dir}"]]
    with open(f"{run_dir}.log", "w") as log:
        command = [*MTRAIN, "train", "-c", args.config, *options]
        if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
            raise SystemExit(f"{run_dir}: training failed, see {run_dir}.log")
    return run_dir


def score(args: argparse.Namespace, model: Path, *options: str) -> tuple[float, str]:
    """Return BLEU and its signature of one model on the given text."""
    command = [*MTRAIN, "eval", "-m", str(model), "-s", args.src, "-r", args.ref, "--json"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(result.stderr)
    bleu = json.loads(result.stdout)["bleu"]
    return bleu["score"], bleu["signature"]


def last_record(run_dir: Path, key: str) -> float:
    """Return the last value of a key in a run's metrics."""
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [float(record[key]) for record in records if key in record][-1]


def main() -> None:
    """Train, score, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-c", "--config", required=True)
    parser.add_argument("-s", "--src", required=True, help="text to score on")
    parser.add_argument("-r", "--ref", required=True, help="its reference")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], help="as of mtrain train")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    heads = load_config(Path(args.config), args.set).model.num_heads
    print("| model | BLEU | validation NLL |\n| --- | --- | --- |", flush=True)
    signature = ""
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = {n: pool.submit(train, args, n, s) for n, s in changes(heads).items()}
    for name, run in runs.items():
        run_dir = run.result()
        bleu, signature = score(args, run_dir / "checkpoints" / "average")
        print(f"| {name} | {bleu:.1f} | {last_record(run_dir, 'valid/nll'):.3f} |", flush=True)
    for name in ("as configured", "noam schedule"):
        last = sorted((runs[name].result() / "checkpoints").glob("step-*"))[-1]
        print(f"| {name}, not averaged | {score(args, last)[0]:.1f} | |", flush=True)
    unchanged = runs["as configured"].result()
    for width in (1, 4):
        bleu, _ = score(args, unchanged / "checkpoints" / "average", "--beam-size", str(width))
        print(f"| {'greedy' if width == 1 else f'beam {width}'} | {bleu:.1f} | |")
    print(f"\nsacreBLEU {signature}")


if __name__ == "__main__":
    main()
