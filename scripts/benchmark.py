"""Measure how fast this machine trains and translates.

    python scripts/benchmark.py                              two small models
    python scripts/benchmark.py --sizes base --lines 200     the paper's base model
    python scripts/benchmark.py --busy                       training with one core busy, too
    python scripts/benchmark.py --model runs/NAME --peer     a trained model and CTranslate2

Without --model, weights are random. Training is measured in target tokens without padding, on
made-up text with lines as long as captions, or on --src and --tgt. Translation is measured for all
lines together, and for one line at a time; random models translate to the length of the source.

"of limit" is the rate of operations in products with weights, which dominate the arithmetic, as a
fraction of the rate of large matrix products in the same precision, measured before and after.
Results are medians of several turns after a warm-up; compared programs take turns. The output is a
Markdown table, or with --json one object per row, which also has padding and memory.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any, TypeVar

import torch

import mtrain
from mtrain.config.schema import Config
from mtrain.corpus.lines import read_text_file
from mtrain.corpus.phrasebook import pairs
from mtrain.data.batches import Batch, MicroBatch
from mtrain.data.prepare import Preparation
from mtrain.export import ctranslate2_format
from mtrain.model.cpu import cpu_capabilities, keep_freed_memory, packed_product
from mtrain.model.transformer import Shape
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.device import pick_device
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import Stop
from mtrain.training.gradients import Blocks
from mtrain.training.resume import Session
from mtrain.training.trainer import Trainer
from mtrain.translation import loading
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import Translator

SHAPE = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads")
SIZES = {  # values of SHAPE
    "tiny": (4, 4, 128, 256, 4),
    "fast": (6, 2, 128, 256, 4),
    "small": (3, 3, 256, 1024, 4),
    "base": (6, 6, 512, 2048, 8),
    "big": (6, 6, 1024, 4096, 16),
}
# torch's names of instruction sets -> usual names, weakest first
INSTRUCTIONS = {"avx2": "AVX2", "avx512_f": "AVX512", "avx512_bf16": "AVX512-BF16"}
INSTRUCTIONS |= {"amx_bf16": "AMX", "neon": "NEON", "bf16": "BF16", "sve": "SVE"}
LINES_ALONE = 50  # lines that are translated one at a time
SETTLE = 0.5  # seconds between programs: idle OpenMP threads keep cores busy for 0.2 s

Result = TypeVar("Result")
# Translates lines and returns the tokens of the translations, with eos.
Translate = Callable[[list[str]], int]


@dataclass
class Row:
    """A measured speed; `operations` counts those in products with weights, per second."""

    what: str
    precision: str
    speed: float
    unit: str
    operations: float | None = None
    limit: float | None = None
    ratio: float | None = None  # to the speed without a core kept busy
    padding: float | None = None
    peak_megabytes: float | None = None

    def __str__(self) -> str:
        speed = f"{self.speed:,.0f}" if self.speed >= 100 else f"{self.speed:.3g}"
        ratio = f", {self.ratio:.0%} of quiet" if self.ratio else ""
        used = f"{self.operations / self.limit:.1%}" if self.operations and self.limit else ""
        return f"| {self.what} | {self.precision} | {speed} {self.unit}{ratio} | {used} |"


def describe_machine(device: torch.device) -> str:
    """Name versions, GPU, processor, its instruction sets, and the number of threads."""
    cpu_info = cpu_capabilities()
    names = ", ".join(name for key, name in INSTRUCTIONS.items() if cpu_info.get(key))
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    names += f", limited to {limit}" if limit else ""
    cpu = f"{cpu_info.get('cpu_name', 'CPU')} ({names or torch.backends.cpu.get_cpu_capability()})"
    gpu = f"{torch.cuda.get_device_name(device)}, " if device.type == "cuda" else ""
    versions = f"mtrain {mtrain.__version__}, torch {torch.__version__}"
    return f"{versions}, {gpu}{cpu}, threads: {torch.get_num_threads()}"


def make_up_text(folder: Path) -> dict[str, str]:
    """Write source and target lines of random words, as long as captions; return their paths."""
    draw, paths = random.Random(1), {"src": str(folder / "src"), "tgt": str(folder / "tgt")}
    lengths = [max(3, round(draw.gauss(11, 3.5))) for _ in range(20000)]
    for path in paths.values():
        words = ["".join(draw.choices(ascii_lowercase, k=draw.randint(2, 7))) for _ in range(5000)]
        frequencies = [1 / (rank + 10) for rank in range(len(words))]
        text = [" ".join(draw.choices(words, frequencies, k=n)) + "\n" for n in lengths]
        Path(path).write_text("".join(text))
    return paths


def make_config(args: argparse.Namespace, size: str, run_dir: str, text: dict[str, str]) -> Config:
    """Return the config of one size, with dropout 0.3."""
    train_options = ("max_tokens", "precision", "compile", "device")
    settings: dict[str, Any] = {
        "run_dir": run_dir,
        "data": {
            "src_lang": "en",
            "tgt_lang": "de",
            "train": [text],
            "valid": {"generated": "phrasebook", "split": "valid", "pairs": 100},
        },
        "tokenizer": {"path": args.tokenizer, "vocab_size": args.vocab_size},
        "model": {**dict(zip(SHAPE, SIZES[size], strict=True)), "dropout": 0.3},
        "train": {name: getattr(args, name) for name in train_options},
    }
    return Config.model_validate(settings)


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on an accelerator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a product of large square matrices, by torch's product or
    that of translation, whichever is faster.
    """
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    products = [partial(torch.matmul, left, right)]
    if device.type == "cpu":
        products.append(partial(packed_product(right, None), left))
    return max(statistics.median(product_speeds(device, product, size)) for product in products)


def product_speeds(device: torch.device, product: Callable[[], object], size: int) -> list[float]:
    """Return the operations per second of several calls."""
    speeds = []
    for _ in range(8):
        synchronize(device)
        started = time.perf_counter()
        product()
        synchronize(device)
        speeds.append(2 * size**3 / (time.perf_counter() - started))
    return speeds[3:]


def around(
    device: torch.device, dtype: torch.dtype, measure: Callable[[], Result]
) -> tuple[Result, float]:
    """Return the measurement and the limit: the mean of `matmul_speed` before and after it."""
    before, result = matmul_speed(device, dtype), measure()
    return result, (before + matmul_speed(device, dtype)) / 2


def operations(shape: Shape, src_tokens: float, tgt_tokens: float) -> float:
    """Count the operations of products with weights in a forward pass; a training step takes three
    times as many, since each product has two gradients.
    """
    D, F = shape.d_model, shape.d_ff
    encoder = shape.num_encoder_layers * (4 * D * D + 2 * D * F)
    keys_and_values = shape.num_decoder_layers * 2 * D * D
    decoder = shape.num_decoder_layers * (6 * D * D + 2 * D * F) + D * shape.vocab_size
    return 2.0 * (src_tokens * (encoder + keys_and_values) + tgt_tokens * decoder)


def peak_memory(device: torch.device) -> float:
    """Return the peak memory in MB, of the GPU or else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy with another process, pinned to it if the system supports that."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(child.pid, {max(os.sched_getaffinity(0))})
        yield
    finally:
        child.kill()
        child.wait()


class Training:
    """Steps of a trainer, timed, and the tokens of their batches."""

    def __init__(self, trainer: Trainer, name: str) -> None:
        self.trainer, self.name = trainer, name
        self.src = self.tgt = self.positions = 0  # tokens; positions include padding
        trainer.learner.warm_up()
        self.read = trainer.batches.read
        trainer.batches.read = self._read_and_count  # type: ignore[method-assign]
        self.stream = trainer.micro_batches()

    def _read_and_count(self, planned: MicroBatch) -> Batch:
        batch = self.read(planned)
        self.src += int((batch.src != self.trainer.ids.pad).sum())
        self.tgt += batch.num_tokens
        self.positions += batch.src.numel() + batch.tgt_in.numel()
        return batch

    def turn(self, steps: int) -> tuple[float, float]:
        """Take steps; return target tokens and operations per second."""
        src, tgt, started = self.src, self.tgt, time.perf_counter()
        for _ in range(steps):
            self.trainer.take_step(self.stream)
        synchronize(self.trainer.learner.device)
        seconds = time.perf_counter() - started
        src, tgt = self.src - src, self.tgt - tgt
        return tgt / seconds, 3 * operations(self.trainer.learner.model.shape, src, tgt) / seconds

    def measure(self, steps: int, turns: int) -> Row:
        """Return medians over turns, after a warm-up."""
        self.turn(max(3, steps // 4))
        speeds, used = zip(*(self.turn(steps) for _ in range(turns)), strict=True)
        padding = 1 - (self.src + self.tgt) / self.positions
        return replace(self._row("", speeds), operations=statistics.median(used), padding=padding)

    def measure_busy(self, steps: int, turns: int) -> Row:
        """Take turns with and without a busy core."""
        quiet, busy = [], []
        for _ in range(turns):
            quiet.append(self.turn(steps)[0])
            with busy_core():
                busy.append(self.turn(steps)[0])
        row = self._row(", one core busy", busy)
        return replace(row, ratio=row.speed / statistics.median(quiet))

    def _row(self, what: str, speeds: Sequence[float]) -> Row:
        precision = self.trainer.learner.machine.precision
        return Row(self.name + what, precision, statistics.median(speeds), "target tokens/s")


def measure_sizes(args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of each size."""
    for size in args.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            own_text = {"src": args.src, "tgt": args.tgt}
            text = own_text if args.src else make_up_text(Path(folder))
            config, run = make_config(args, size, folder, text), RunDirectory(Path(folder))
            prepared = Preparation(config, Stop()).prepared
            blocks = Blocks(config.train.micro_batches(1))
            trainer = Trainer(Session(config, prepared, run, Stop(), Ranks(), blocks))
            lines = read_text_file(Path(text["src"]))[: args.lines]
        weights = {name: weight.clone() for name, weight in trainer.learner.weights.items()}
        random_model = trainer.checkpoints.snapshot(weights)
        training = Training(trainer, f"training {size}, {args.max_tokens:,} padded tokens")
        device, dtype = trainer.learner.device, trainer.learner.model.dtype
        row, limit = around(device, dtype, partial(training.measure, args.steps, args.turns))
        yield replace(row, limit=limit, peak_megabytes=peak_memory(device))
        if args.busy:
            yield training.measure_busy(args.steps, args.turns)
        for beam in (1, args.beam_size):
            decode = {"beam_size": beam, "max_len_a": 1.0, "max_len_b": 0}
            options = {"device": args.device, "precision": args.precision}
            loaded = loading.unpack(random_model, Path(size), decode, **options)
            yield from measure_translation(args, size, loaded, lines)


def measure_model(args: argparse.Namespace) -> Iterator[Row]:
    """Translate a file, or the phrasebook's test set, with a trained model."""
    lines = read_text_file(Path(args.src)) if args.src else [src for src, _ in pairs("test", 1000)]
    for beam in (1, args.beam_size):
        loaded = loading.load(
            Path(args.model), device=args.device, precision=args.precision, beam_size=beam
        )
        yield from measure_translation(args, Path(args.model).name, loaded, lines[: args.lines])


def measure_translation(
    args: argparse.Namespace, name: str, loaded: LoadedModel, lines: list[str]
) -> Iterator[Row]:
    """Yield each program's row for all lines together and its row for one line at a time."""
    device, dtype, beam = loaded.device, loaded.model.dtype, loaded.decode.beam_size
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    search = "greedy" if beam == 1 else f"beam {beam}"
    many, alone = {"": own_translate(loaded)}, {"": own_translate(loaded)}
    if args.peer:
        many["CTranslate2: "], alone["CTranslate2: "] = peer_translate(loaded)
    turns, limit = around(device, dtype, partial(in_turn, many, [lines], args.turns))
    times = in_turn(alone, [[line] for line in lines[:LINES_ALONE]], args.turns)
    src = sum(len(ids) + 1 for ids in loaded.encode_sources(lines)[0])
    for program, (seconds, tokens) in turns.items():
        what, speed = f"{program}translating {name}, {search}", len(lines) / seconds
        row = Row(what, precision, speed, "lines/s")
        used = operations(loaded.model.shape, src, beam * tokens) / seconds
        yield replace(row, operations=used, limit=limit, peak_megabytes=peak_memory(device))
    for program, (seconds, _) in times.items():
        yield Row(f"{program}one line, {name}, {search}", precision, 1000 * seconds, "ms")


def own_translate(loaded: LoadedModel) -> Translate:
    """Return a function that translates like `mtrain translate`, without scores."""
    if loaded.device.type == "cpu":
        keep_freed_memory()
    translate = partial(Translator(loaded, in_processes=True).translate, scored=False)
    return lambda lines: sum(n_best[0].tokens for n_best in translate(lines)[0])


def peer_translate(loaded: LoadedModel) -> tuple[Translate, Translate]:
    """Return two functions that translate with CTranslate2: many lines, with one thread for each of
    several batches, and one line, with all threads.
    """
    ctranslate2_format.check(loaded.model.shape, "float32")  # its error says how to install it
    import ctranslate2

    decode, tokenizer, threads = loaded.decode, loaded.tokenizer, torch.get_num_threads()
    pieces = tokenizer.all_pieces
    piece_ids = {piece: i for i, piece in enumerate(pieces)}
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2_format.write(Path(folder), loaded, "float32")
        many, one = (
            ctranslate2.Translator(folder, inter_threads=inter, intra_threads=threads // inter)
            for inter in (threads, 1)
        )

    def translate(translator: Any, lines: list[str]) -> int:
        results = translator.translate_batch(
            [[pieces[i] for i in ids] for ids in tokenizer.encode(lines)],
            beam_size=decode.beam_size,
            length_penalty=decode.length_penalty,
            max_batch_size=decode.batch_tokens,
            batch_type="tokens",
        )
        translations = [[piece_ids[p] for p in result.hypotheses[0]] for result in results]
        tokenizer.decode(translations)
        return sum(len(ids) + 1 for ids in translations)

    return partial(translate, many), partial(translate, one)


def in_turn(
    programs: dict[str, Translate], groups: list[list[str]], turns: int
) -> dict[str, tuple[float, int]]:
    """Let programs translate groups of lines in turn; return for each the median seconds per group,
    after a warm-up turn, and the tokens of the last group's translations.
    """
    times: dict[str, list[float]] = {name: [] for name in programs}
    tokens = {}
    for turn in range(turns + 1):
        for name, translate in programs.items():
            time.sleep(SETTLE if len(programs) > 1 else 0)
            for group in groups:
                started = time.perf_counter()
                tokens[name] = translate(group)
                seconds = time.perf_counter() - started
                if turn > 0:
                    times[name].append(seconds)
    return {name: (statistics.median(times[name]), tokens[name]) for name in programs}


def positive(text: str) -> int:
    """Read a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 1")
    return number


def parse(words: list[str] | None) -> argparse.Namespace:
    """Parse and check the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option(
        "--sizes", default="tiny,small", help=f"sizes, of {','.join(SIZES)} (default: tiny,small)"
    )
    option("--model", help="run directory: measure only translation, with its model")
    option("--peer", action="store_true", help="with --model: also CTranslate2; on the CPU in fp32")
    option("--busy", action="store_true", help="also measure training while one core is kept busy")
    option("--beam-size", type=positive, default=5, help="beam of the second search (default: 5)")
    option("--lines", type=positive, default=1000, help="lines to translate (default: 1000)")
    option("--src", help="source text (default: made-up text; with --model, the phrasebook)")
    option("--tgt", help="target text for training")
    option("--tokenizer", help="SentencePiece model (default: train one)")
    option("--vocab-size", type=positive, default=8000, help="pieces (default: 8000)")
    option("--max-tokens", type=positive, default=4096, help="padded tokens a step (default: 4096)")
    option("--steps", type=positive, default=20, help="training steps per turn (default: 20)")
    option("--turns", type=positive, default=3, help="measurements per row (default: 3)")
    option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    option("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    option("--compile", action="store_true", help="train with torch.compile")
    option("--json", action="store_true", help="print one JSON object per row")
    args = parser.parse_args(words)
    if not args.model and bool(args.src) != bool(args.tgt):
        parser.error("give both --src and --tgt, or neither")
    if args.peer and not args.model:
        parser.error("--peer needs --model")
    if args.peer:
        args.device, args.precision = "cpu", "fp32"
    if unknown := set(args.sizes.split(",")) - set(SIZES):
        parser.error(f"--sizes: {', '.join(sorted(unknown))}: choose from {', '.join(SIZES)}")
    return args


def main(words: list[str] | None = None) -> None:
    """Measure, and print each row as soon as it is measured."""
    args = parse(words)
    device = pick_device(args.device)
    rows = measure_model(args) if args.model else measure_sizes(args)
    for number, row in enumerate(rows):
        if args.json:
            print(json.dumps({"machine": describe_machine(device), **asdict(row)}), flush=True)
            continue
        if number == 0:
            print(f"{describe_machine(device)}\n")
            print("| what | precision | speed | of limit |\n| --- | --- | --- | --- |")
        print(row, flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"benchmark.py: {error}")
