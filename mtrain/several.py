"""Translation by several devices of one machine, or by the ranks of a job. They share out the very
batches that one device would make, so that the text does not depend on how many there are.
"""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mtrain import checkpoint
from mtrain.device import available_threads, pick_device
from mtrain.distributed import Ranks
from mtrain.errors import RefusedError
from mtrain.log import silence
from mtrain.machine import device_of
from mtrain.translate import Group, Translated, Translation, Translator, load_translator
from mtrain.workers import Workers

DEATH = (
    "a process that translates was killed, perhaps for lack of memory; lower --batch-tokens, or "
    "name fewer devices"
)
# Batches for each rank before all of them give what they found to the first.
ROUND = 8


@contextmanager
def over_devices(
    paths: list[Path], devices: list[str], *, precision: str, **settings: Any
) -> Iterator[Translator]:
    """Load models in a process for each device; this one only reads and writes."""
    if not all(devices) or "auto" in devices:
        raise RefusedError("--device: several devices must be named, such as cuda:0,cuda:1")
    for device in devices:
        pick_device(device)
    # once: the best one of a run that still trains may change
    paths = [checkpoint.resolve(path) for path in paths]
    settings = {"precision": precision, **settings}
    translator = load_translator(*paths, device="cpu", **settings)
    threads = max(1, available_threads() // max(1, devices.count("cpu")))
    start = partial(_batch_translator, paths, settings=settings, threads=threads)
    with closing(Workers([partial(start, device) for device in devices], DEATH)) as crew:
        translator.share_out = crew.map
        yield translator


def _batch_translator(
    paths: list[Path], device: str, *, settings: dict[str, Any], threads: int
) -> Callable[[Group], Translated]:
    """Load the models into this process and return what translates a batch."""
    silence()  # what there is to say of the models was said where they were loaded first
    torch.set_num_threads(threads)
    translator = load_translator(*paths, device=device, **settings)
    return translator.translate_batch


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
