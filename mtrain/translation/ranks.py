"""Translation by the ranks of a job. They share out the very batches that one process would make:
the text does not depend on how many there are.
"""

from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from mtrain.runs import checkpoint
from mtrain.runtime.device import available_threads
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.translation.translator import Group, Translated, Translator, load_translator

# Batches of each rank between two exchanges of translations.
ROUND = 8
PATHS, BATCHES = TypeAdapter(list[Path]), TypeAdapter(list[Translated])


def load_over_ranks(
    paths: list[Path], ranks: Ranks, *, device: str, precision: str, **settings: Any
) -> Translator:
    """Load models on this rank's own device, to translate together with the other ranks."""
    # by rank 0 alone: the best checkpoint of a run that still trains may change
    chosen = ranks.share(lambda: [checkpoint.resolve(path) for path in paths], PATHS)

    def load() -> Translator:
        if ranks.size > 1:
            torch.set_num_threads(max(1, available_threads() // ranks.local_size))
        name = str(device_of(device, ranks))
        return load_translator(*chosen, device=name, precision=precision, **settings)

    translator = ranks.together(load)
    share_among(ranks, translator)
    return translator


def share_among(ranks: Ranks, translator: Translator) -> None:
    """Divide the batches of a translator among the ranks of a job; all must get the same lines."""
    if ranks.size > 1:
        translator.share_out = partial(_by_ranks, ranks, translator)


def _by_ranks(ranks: Ranks, translator: Translator, batches: list[Group]) -> Generator[Translated]:
    """Translate this rank's batches and gather the rest."""
    step = ROUND * ranks.size
    for start in range(0, len(batches), step):
        some = batches[start : start + step]
        mine = translator.translate_batches(some[ranks.rank :: ranks.size])
        parts = [iter(found) for found in ranks.gather(partial(list, mine), BATCHES)]
        for number in range(len(some)):
            yield next(parts[number % ranks.size])
