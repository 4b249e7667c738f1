"""Choose settings by the size of the text, from measured recipes."""

from dataclasses import dataclass
from typing import Any

EPOCHS = 16  # about as many as the measured recipes have
MICRO_BATCHES = 4  # of different lengths in a step; on CUDA one packed micro-batch of all lengths
CUDA_BATCH_TOKENS = 16_384  # of a search, where larger batches are faster
FILL_RATE = 850 / 1024  # fraction of a batch that is not padding
NUM_FIXED_PIECES = 256 + 4  # bytes; pad, unk, bos and eos


@dataclass(frozen=True)
class Size:
    """The size of a text: number of pairs, estimated tokens of both sides per pair, number of
    different words in a sample, and number of characters that a vocabulary must cover.
    """

    pairs: int
    tokens: float
    types: int
    characters: int


def recipe_for(size: Size, *, has_gpu: bool) -> tuple[str, dict[str, dict[str, Any]]]:
    """Choose the settings of the measured recipe whose text is nearest in size; return the origin
    and the settings by section.
    """
    pieces = 8000 if size.pairs < 300_000 else 16_000
    dropout = 0.3 if size.pairs < 1_000_000 else 0.1
    optimizer, schedule, peak_lr = "muon", "linear", 0.008
    warmup_steps = 500
    if size.pairs <= 50_000:
        origin = "configs/small.yaml with half of its d_ff (tried on 29,000 pairs)"
        model = _model(256, 4, 512, 3, dropout, "pre")
        step_tokens = 4096
        max_steps = min(4000, max(500, _steps(size, step_tokens)))
    elif size.pairs <= 1_000_000 or not has_gpu:
        origin = "configs/small.yaml (tried on 110,000 pairs)"
        model = _model(256, 4, 1024, 3, dropout, "pre")
        step_tokens = 16_384 if has_gpu else 4096
        max_steps = min(50_000, max(1000, _steps(size, step_tokens)))
    else:
        origin = "configs/transformer-base-wmt14-en-de.yaml (the paper's, for 4.5 million pairs)"
        pieces = 32_000
        model = _model(512, 8, 2048, 6, dropout, "post")
        optimizer, schedule, peak_lr = "adam", "noam", 7.0e-4
        step_tokens = 25_000
        warmup_steps = 4000
        max_steps = 100_000
    batches = {"max_tokens": step_tokens // MICRO_BATCHES, "step_batches": MICRO_BATCHES}
    decode = {"beam_size": 5, "length_penalty": 1.0, "length_norm": "power"}
    if has_gpu:
        batches = {"max_tokens": step_tokens, "step_batches": 1, "packing": True}
        decode["batch_tokens"] = CUDA_BATCH_TOKENS
    save_every = max(10, max_steps // 40 // 10 * 10)
    return origin, {
        "tokenizer": {"vocab_size": _vocab_size(pieces, size)},
        "model": model,
        "train": {
            "device": "auto",
            "threads": "auto",
            "max_steps": max_steps,
            **batches,
            "optimizer": optimizer,
            "schedule": schedule,
            "warmup_steps": min(warmup_steps, max_steps // 20),
            "peak_lr": peak_lr,
            "valid_every": 5 * save_every,
            "save_every": save_every,
            "patience": 0,  # no early stopping: the last steps, at low rates, gain much
            # averaging does not help if the rate ends at 0
            "average_last": 0 if schedule == "linear" else 5,
        },
        "decode": decode,
    }


def _model(
    d_model: int, num_heads: int, d_ff: int, layers: int, dropout: float, norm: str
) -> dict[str, Any]:
    """Return the settings of a model with as many encoder as decoder layers."""
    return {
        "d_model": d_model,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        "dropout": dropout,
        "norm": norm,
    }


def _steps(size: Size, step_tokens: int) -> int:
    """Return the number of steps of `EPOCHS` epochs, to the nearest 500."""
    tokens = size.tokens / 2 * max(1, size.pairs)
    return round(EPOCHS * tokens / (step_tokens * FILL_RATE) / 500) * 500


def _vocab_size(pieces: int, size: Size) -> int:
    """Choose a vocabulary size near `pieces` that covers the characters of the text and that its
    words can fill; the factors are estimates with a margin.
    """
    smallest = NUM_FIXED_PIECES + int(1.2 * size.characters) + 40
    largest = NUM_FIXED_PIECES + size.characters + int(0.7 * size.types)
    return max(smallest, min(max(pieces, 2 * size.characters), largest // 100 * 100))
