"""Print the complete rows of configs/paper-table-3/run.sh as a Markdown table.

    python scripts/paper_table.py runs/paper-table-3/small

"Order" ranks the complete rows by perplexity or NLL, the lowest first. NLL is per token, on the
validation set, without label smoothing. Seconds are for all steps at the median speed, without
validation.
"""

import argparse
import json
import statistics
import sys
from itertools import pairwise
from pathlib import Path

from mtrain.config.changes import changed_keys
from mtrain.config.loading import load_stored_config
from mtrain.runs import checkpoint, layout, reader

# name of the row in run.sh -> the paper's perplexity and BLEU on newstest2013, its development set
PAPER = {
    "base": (4.92, 25.8),
    "heads-1": (5.29, 24.9),
    "heads-4": (5.00, 25.5),
    "heads-16": (4.91, 25.8),
    "heads-32": (5.01, 25.4),
    "layers-2": (6.11, 23.7),
    "layers-4": (5.19, 25.3),
    "layers-8": (4.88, 25.5),
    "d_model-256": (5.75, 24.5),
    "d_model-1024": (4.66, 26.0),
    "d_ff-1024": (5.12, 25.4),
    "d_ff-4096": (4.75, 26.2),
    "dropout-0.0": (5.77, 24.6),
    "dropout-0.2": (4.95, 25.5),
    "smoothing-0.0": (4.67, 25.3),
    "smoothing-0.2": (5.47, 25.7),
    "learned": (4.92, 25.7),
    "big": (4.33, 26.4),
}
HEAD = """\
| paper | here | PPL, paper | BLEU, paper | order | NLL | BLEU | order | parameters | seconds |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def measure(run: Path, base: Path) -> tuple[str, float, float, int, float]:
    """Return a row's changes from the base, its NLL and BLEU, parameters, and seconds."""
    config = load_stored_config(run / layout.CONFIG)
    changes = changed_keys(load_stored_config(base / layout.CONFIG), config)
    text = ", ".join(f"{key.split('.')[1]} {new}" for key, _, new in changes if "." in key)
    last = json.loads((run / layout.BEST).read_text())["history"][-1]
    weights = checkpoint.load(reader.resolve(run)).weights
    records = map(json.loads, (run / layout.METRICS).read_text().splitlines())
    times = [record["time"] for record in records if "train/loss" in record]
    intervals = [later - earlier for earlier, later in pairwise(times)]
    if not intervals:
        raise SystemExit(f"{run}: fewer than two records of steps; train longer")
    seconds = statistics.median(intervals) / config.train.log_every * last["step"]
    return text, last["nll"], last["bleu"], sum(w.numel() for w in weights.values()), seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="directory that holds a run for each row")
    folder = parser.parse_args().folder
    if not (folder / "base" / layout.CONFIG).exists():
        sys.exit(f"{folder}: no run named base; train it, since other rows are compared with it")
    names = [name for name in PAPER if reader.read_run(folder / name).state == "complete"]
    rows = {name: measure(folder / name, folder / "base") for name in names}
    perplexities, losses = sorted(PAPER[n][0] for n in names), sorted(r[1] for r in rows.values())
    print(HEAD)
    for name, (text, nll, bleu, parameters, seconds) in rows.items():
        ppl, paper_bleu = PAPER[name]
        orders = perplexities.index(ppl) + 1, losses.index(nll) + 1
        print(
            f"| {name.replace('-', ' ')} | {text} | {ppl:.2f} | {paper_bleu} | {orders[0]} "
            f"| {nll:.3f} | {bleu:.2f} | {orders[1]} | {parameters / 1e6:.1f} M | {seconds:,.0f} |"
        )


if __name__ == "__main__":
    main()
