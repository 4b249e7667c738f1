"""Choose settings by the size of the text, from measured recipes."""

from dataclasses import dataclass
from typing import Any

from mtrain.check.words import PIECES_PER_WORD

EPOCHS = 28  # about those of the measured recipes


@dataclass(frozen=True)
class Size:
    """The size of the text: pairs, words of both sides per pair, and the numbers of different words
    and characters in a sample.
    """

    pairs: int
    words: float
    types: int
    characters: int


def recipe_for(size: Size, *, has_gpu: bool) -> tuple[str, dict[str, dict[str, Any]]]:
    """Choose the settings of the measured recipe whose text is nearest in size; return the origin
    and the settings by section.
    """
    width, heads, layers, schedule, rate = 256, 4, 3, "cosine", 0.002
    dropout = 0.3 if size.pairs < 1_000_000 else 0.1
    pieces = 8000 if size.pairs < 300_000 else 16_000
    if size.pairs <= 50_000:
        origin, d_ff, wide = "configs/multi30k-en-de.yaml (29,000 pairs)", 512, 1
        least, most, warmup = 500, 8000, 800
    else:
        origin, d_ff = "configs/small.yaml (110,000 pairs were tried)", 1024
        least, most, warmup = 2000, 100_000, 1000
        wide = 4 if has_gpu else 1
    batch, tokens = 1024 * wide, PIECES_PER_WORD * size.words / 2 * max(1, size.pairs)
    steps = min(most, max(least, round(EPOCHS * tokens / (3400 * wide) / 500) * 500))
    if size.pairs > 1_000_000 and has_gpu:
        origin = "configs/transformer-base-wmt14-en-de.yaml (the paper's, for 4.5 million pairs)"
        width, heads, layers, schedule, rate = 512, 8, 6, "noam", 7.0e-4
        pieces, d_ff, batch, steps, warmup = 32_000, 2048, 6250, 100_000, 4000
    save_every = max(10, steps // 40 // 10 * 10)
    return origin, {
        "tokenizer": {"vocab_size": _vocabulary(pieces, size)},
        "model": {
            "d_model": width,
            "num_heads": heads,
            "d_ff": d_ff,
            "num_encoder_layers": layers,
            "num_decoder_layers": layers,
            "dropout": dropout,
        },
        "train": {
            "device": "auto",
            "threads": "auto",
            "max_steps": steps,
            "max_tokens": batch,
            "step_batches": 4,
            "schedule": schedule,
            "warmup_steps": min(warmup, steps // 10),
            "peak_lr": rate,
            "valid_every": 5 * save_every,
            "save_every": save_every,
            "patience": 0,  # no early stopping: the last steps, at low rates, gain much
            "average_last": 5,
        },
        "decode": {"beam_size": 5, "length_penalty": 1.0, "length_norm": "power"},
    }


def _vocabulary(wanted: int, size: Size) -> int:
    """Choose a vocabulary size that the text can fill and that covers its characters."""
    room = 260 + size.characters + int(0.7 * size.types)
    least = 260 + int(1.2 * size.characters) + 40
    return max(least, min(max(wanted, 2 * size.characters), room // 100 * 100))
