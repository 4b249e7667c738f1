"""Measure training and translation speed on this machine, on the phrasebook or on your own text.

    scripts/benchmark.py [--src FILE --tgt FILE] [--sizes tiny,small] [--steps 40] [--turns 3]
    scripts/benchmark.py --model RUN_DIR [--src FILE] [--beam-size 4]

Training: target tokens a second without padding, for models of the given sizes, and the share of
the machine's limit: what matrix products with the weights take of the speed at which it multiplies
large matrices, measured before and after. With --model: sentences a second that a trained model
translates, and how long it takes over one alone. Warm-up is left out; figures are medians of
several turns. Rows of a Markdown table, or with --json one object a row.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mtrain.config.schema import Config
from mtrain.corpus.lines import read_text_file
from mtrain.corpus.phrasebook import pairs
from mtrain.data.batches import Batch, MicroBatch
from mtrain.data.prepare import Prepared, prepare
from mtrain.model.transformer import Shape
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import Stop
from mtrain.training.resume import Session
from mtrain.training.trainer import Trainer
from mtrain.translation import loading
from mtrain.translation.translator import Translator

SIZES = {
    "tiny": (4, 128, 256, 4),
    "small": (3, 256, 1024, 4),
    "base": (6, 512, 2048, 8),
    "big": (6, 1024, 4096, 16),
}


def make_config(args: argparse.Namespace, size: str, run_dir: Path) -> Config:
    """Build the settings of one size: dropout 0.3, batches of 4,096 padded tokens."""
    layers, d_model, d_ff, heads = SIZES[size]
    if args.src:
        train: dict[str, Any] = {"src": args.src, "tgt": args.tgt}
    else:
        train = {"generated": "phrasebook", "split": "train", "pairs": 30000}
    settings = {
        "run_dir": str(run_dir),
        "data": {
            "src_lang": "en",
            "tgt_lang": "de",
            "train": [train],
            "valid": {"generated": "phrasebook", "split": "valid", "pairs": 100},
        },
        "tokenizer": {"path": args.tokenizer, "vocab_size": args.vocab_size},
        "model": {
            "num_encoder_layers": layers,
            "num_decoder_layers": layers,
            "d_model": d_model,
            "d_ff": d_ff,
            "num_heads": heads,
            "dropout": 0.3,
        },
        "train": {
            "max_tokens": args.max_tokens,
            "precision": args.precision,
            "compile": args.compile,
            "device": args.device,
        },
    }
    return Config.model_validate(settings)


def matmul_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a product of large square matrices."""
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    speeds = []
    for _ in range(8):
        synchronize(device)
        started = time.perf_counter()
        left @ right
        synchronize(device)
        speeds.append(2 * size**3 / (time.perf_counter() - started))
    return statistics.median(speeds[3:])


def operations(shape: Shape, src_tokens: int, tgt_tokens: int) -> float:
    """What products with the weights take in training: forward once, backward twice."""
    D, F = shape.d_model, shape.d_ff
    encoder = shape.num_encoder_layers * (4 * D * D + 2 * D * F)
    keys_and_values = shape.num_decoder_layers * 2 * D * D
    decoder = shape.num_decoder_layers * (6 * D * D + 2 * D * F) + D * shape.vocab_size
    return 6.0 * (src_tokens * (encoder + keys_and_values) + tgt_tokens * decoder)


@dataclass
class Tokens:
    """Tokens of the batches that pass, and places that they and their padding take."""

    src: int = 0
    tgt: int = 0
    places: int = 0

    def counting(
        self, read: Callable[[MicroBatch], Batch], pad: int
    ) -> Callable[[MicroBatch], Batch]:
        """Count the batches that are read."""

        def read_and_count(planned: MicroBatch) -> Batch:
            batch = read(planned)
            self.src += int((batch.src != pad).sum())
            self.tgt += batch.num_tokens
            self.places += batch.src.numel() + batch.tgt_in.numel()
            return batch

        return read_and_count


def training_speed(trainer: Trainer, steps: int, turns: int) -> dict[str, float]:
    """Medians over turns of `steps` steps, after a warm-up."""
    learner = trainer.learner
    learner.warm_up()
    tokens = Tokens()
    trainer.batches.read = tokens.counting(trainer.batches.read, trainer.ids.pad)  # type: ignore[method-assign]
    stream = trainer.micro_batches()
    rates, speeds = [], []
    for turn in range(turns + 1):
        before, started = replace(tokens), time.perf_counter()
        for _ in range(steps if turn else max(3, steps // 4)):
            trainer.take_step(stream)
        synchronize(trainer.device)
        seconds = time.perf_counter() - started
        src, tgt = tokens.src - before.src, tokens.tgt - before.tgt
        rates.append(tgt / seconds)
        speeds.append(operations(trainer.model.shape, src, tgt) / seconds)
    return {
        "target tokens/s": statistics.median(rates[1:]),
        "GFLOP/s": statistics.median(speeds[1:]) / 1e9,
        "padding %": 100 * (1 - (tokens.src + tokens.tgt) / tokens.places),
    }


def peak_memory(device: torch.device) -> float:
    """The most memory held so far, in MB: of the GPU, or else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def translation_speed(translator: Translator, lines: list[str], turns: int) -> float:
    """Median sentences a second over whole passes, after one to warm up."""
    rates = []
    for _ in range(turns + 1):
        started = time.perf_counter()
        translator.best(lines)
        rates.append(len(lines) / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def latencies(translator: Translator, lines: list[str]) -> dict[str, float]:
    """Milliseconds that sentences take one by one: the middle, and what 9 and 99 in 100 keep to."""
    times = []
    for line in [*lines[:10], *lines]:
        started = time.perf_counter()
        translator.best([line])
        times.append(1000 * (time.perf_counter() - started))
    cuts = statistics.quantiles(times[10:], n=100)
    return {"ms alone, median": cuts[49], "90 %": cuts[89], "99 %": cuts[98]}


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on an accelerator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_training(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row a size."""
    for size in args.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            config = make_config(args, size, Path(folder))
            run = RunDirectory(Path(folder))
            prepared: Prepared = prepare(config, Stop())
            trainer = Trainer(Session(config, prepared, run, Stop()))
            device, dtype = trainer.device, trainer.model.dtype
            before = matmul_speed(device, dtype)
            speed = training_speed(trainer, args.steps, args.turns)
            limit = (before + matmul_speed(device, dtype)) / 2e9
            yield {
                "size": size,
                "parameters": trainer.model.num_parameters,
                "device": str(device),
                "precision": trainer.learner.machine.precision,
                "threads": trainer.learner.machine.threads,
                **speed,
                "limit": limit,
                "share %": 100 * speed["GFLOP/s"] / limit,
                "peak MB": peak_memory(device),
            }


def measure_translation(args: argparse.Namespace) -> dict[str, Any]:
    """Translate a file, or the phrasebook's test set, with a trained model."""
    model, beam = Path(args.model), args.beam_size
    translator = Translator(
        loading.load(model, device=args.device, precision=args.precision, beam_size=beam)
    )
    lines = read_text_file(Path(args.src)) if args.src else [src for src, _ in pairs("test", 1000)]
    return {
        "model": args.model,
        "device": str(translator.loaded.device),
        "threads": torch.get_num_threads(),
        "lines": len(lines),
        "beam": translator.decode.beam_size,
        "sentences/s": translation_speed(translator, lines, args.turns),
        **latencies(translator, lines[:200]),
        "peak MB": peak_memory(translator.loaded.device),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", default="tiny,small", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--model", help="a run directory: measure translation with it")
    parser.add_argument("--beam-size", type=int)
    parser.add_argument("--src", help="source text (default: the phrasebook)")
    parser.add_argument("--tgt", help="target text")
    parser.add_argument("--tokenizer", help="an existing SentencePiece model")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    args = parser.parse_args()
    if bool(args.src) != bool(args.tgt) and not args.model:
        parser.error("--src and --tgt go together")
    rows = iter([measure_translation(args)]) if args.model else measure_training(args)
    for number, row in enumerate(rows):
        if args.json:
            print(json.dumps(row), flush=True)
            continue
        if number == 0:
            print(as_row(row), as_row("---" for _ in row), sep="\n", flush=True)
        print(as_row(as_text(value) for value in row.values()), flush=True)


def as_row(cells: Iterable[str]) -> str:
    """Write a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def as_text(value: object) -> str:
    """Write a figure with three digits or more."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"benchmark.py: {error}")
