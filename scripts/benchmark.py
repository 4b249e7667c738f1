"""Measure training and translation speed on this machine, on the phrasebook or on your own text.

    scripts/benchmark.py [--src FILE --tgt FILE] [--sizes tiny,small] [--steps 40] [--turns 3]
    scripts/benchmark.py --model RUN_DIR [--src FILE] [--beam-size 4]

Training: target tokens a second without padding, for models of the given sizes. With --model:
sentences a second that a trained model translates. Warm-up is left out; figures are medians of
several turns. --json prints one JSON object a row.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mtrain.config import Config
from mtrain.corpus import read_text_file
from mtrain.phrasebook import pairs
from mtrain.prepare import Prepared, prepare
from mtrain.rundir import RunDirectory
from mtrain.stop import Stop
from mtrain.train import Trainer
from mtrain.translate import Translator, load_translator

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


def training_speed(trainer: Trainer, steps: int, turns: int) -> float:
    """Median target tokens a second over turns of `steps` steps, after a warm-up."""
    trainer.warm_up()
    stream = trainer.micro_batches()
    rates = []
    for turn in range(turns + 1):
        trainer.sum_tokens, started = 0, time.perf_counter()
        for _ in range(steps if turn else max(3, steps // 4)):
            trainer.take_step(stream)
        synchronize(trainer.device)
        rates.append(trainer.sum_tokens / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def translation_speed(translator: Translator, lines: list[str], turns: int) -> float:
    """Median sentences a second over whole passes, after one to warm up."""
    rates = []
    for _ in range(turns + 1):
        started = time.perf_counter()
        translator.best(lines)
        rates.append(len(lines) / (time.perf_counter() - started))
    return statistics.median(rates[1:])


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
            prepared: Prepared = prepare(config, run.tokenizer, Stop())
            trainer = Trainer(config, prepared, run, Stop())
            row: dict[str, Any] = {
                "size": size,
                "device": str(trainer.device),
                "precision": trainer.machine.precision,
                "threads": trainer.machine.threads,
                "parameters": trainer.model.num_parameters,
                "target_tokens_per_second": training_speed(trainer, args.steps, args.turns),
            }
            yield row


def measure_translation(args: argparse.Namespace) -> dict[str, Any]:
    """Translate a file, or the phrasebook's test set, with a trained model."""
    translator = load_translator(
        Path(args.model), device=args.device, precision=args.precision, beam_size=args.beam_size
    )
    lines = read_text_file(Path(args.src)) if args.src else [src for src, _ in pairs("test", 1000)]
    return {
        "model": args.model,
        "device": str(translator.device),
        "threads": torch.get_num_threads(),
        "lines": len(lines),
        "beam_size": translator.decode.beam_size,
        "sentences_per_second": translation_speed(translator, lines, args.turns),
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
    for row in rows:
        print(json.dumps(row) if args.json else as_text(row), flush=True)


def as_text(row: dict[str, Any]) -> str:
    """Write a row for people."""
    parts = [f"{v:,.0f}" if isinstance(v, float) else f"{v}" for v in row.values()]
    return "  ".join(f"{key} {part}" for key, part in zip(row, parts, strict=True))


if __name__ == "__main__":
    main()
