"""Translation by the ranks of a job. They share out the very batches that one process would make:
the text does not depend on how many there are.
"""

import json
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mtrain import checkpoint
from mtrain.device import available_threads
from mtrain.distributed import Ranks
from mtrain.machine import device_of
from mtrain.translate import Group, Translated, Translation, Translator, load_translator

# Batches for each rank before all of them give what they found to the first.
ROUND = 8


def load_over_ranks(
    paths: list[Path], ranks: Ranks, *, device: str, precision: str, **settings: Any
) -> Translator:
    """Load models on this rank's own device, to translate together with the others; by itself,
    one rank translates alone.
    """
    found: list[Translator] = []

    def choose() -> bytes:
        return json.dumps([str(checkpoint.resolve(path)) for path in paths]).encode()

    chosen = [Path(name) for name in json.loads(ranks.share(choose))]

    def load() -> None:
        if ranks.size > 1:
            torch.set_num_threads(max(1, available_threads() // ranks.local_size))
        name = str(device_of(device, ranks))
        found.append(load_translator(*chosen, device=name, precision=precision, **settings))

    ranks.together(load)
    share_among(ranks, found[0])
    return found[0]


def share_among(ranks: Ranks, translator: Translator) -> None:
    """Have the ranks of a job translate together; each of them must be given the same lines."""
    if ranks.size > 1:
        translator.share_out = partial(_by_ranks, ranks, translator)


def _by_ranks(ranks: Ranks, translator: Translator, batches: list[Group]) -> Generator[Translated]:
    """Translate every so manieth batch, and have the others from the other ranks."""
    step = ROUND * ranks.size
    for start in range(0, len(batches), step):
        some = batches[start : start + step]

        def part(some: list[Group] = some) -> bytes:
            mine = some[ranks.rank :: ranks.size]
            found = [list(map(_plain, batch)) for batch in translator.translate_batches(mine)]
            return json.dumps(found).encode()

        parts = [iter(json.loads(message)) for message in ranks.gather(part)]
        for number in range(len(some)):
            found = next(parts[number % ranks.size])
            yield [[Translation(*fields) for fields in hypotheses] for hypotheses in found]


def _plain(hypotheses: list[Translation]) -> list[tuple[str, float]]:
    return [(each.text, each.score) for each in hypotheses]
