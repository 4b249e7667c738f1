"""Translate lists of lines.

1. lines -> ids, cut at the limit    `LoadedModel.encode_sources`
2. -> batches of similar lengths     within a token budget
3. -> beam search or sampling        on CPUs, several batches at a time in threads or processes
4. -> texts in the order of lines    gathered from all ranks
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mtrain.config.schema import DecodeConfig, override_decode
from mtrain.corpus.lines import is_blank
from mtrain.data.batches import batch_by_length, pad
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import CountedLines
from mtrain.runtime.workers import CAN_FORK, map_tasks
from mtrain.scoring.mbr import min_risk_index
from mtrain.translation.loading import NOT_A_NUMBER, LoadedModel
from mtrain.translation.sampling import Sampling, TokenSampler
from mtrain.translation.search import BeamSearch, GreedySearch, Hypothesis, Rules, length_normalizer
from mtrain.translation.threads import MAX_THREADS, in_threads, kept_threads

MAX_PROCESSES = 32  # on a CPU; more processes would only wait for memory
MIN_PROCESSES = 3  # two threads seldom wait for Python's lock, and share oneDNN's generated code
MAX_HYPOTHESES = 1000  # per line; the limit of `decode.beam_size`
# Options of the search, which sampling does not use, and options of sampling.
SEARCH_ONLY, SAMPLING_ONLY = ["beam_size"], ["temperature", "top_k", "top_p", "seed"]
# Smallest number of source tokens x beam size per thread. With fewer, another thread saves little,
# and costs much if other programs use its core: each of many small products waits for it.
MIN_TOKENS_PER_THREAD = 512
# Batches that each rank translates before the ranks exchange their translations.
BATCHES_PER_EXCHANGE = 8
# Lines in the first window; `Translator.in_windows` doubles the size of each next window.
FIRST_WINDOW = 1000
WORKER_DIED = (
    "a translation process died, perhaps for lack of memory; set OMP_NUM_THREADS to use fewer "
    "processes, or lower decode.batch_tokens (--batch-tokens)"
)

T = TypeVar("T")


@dataclass(frozen=True)
class Translation:
    """A translated line, the natural log-probability and the number of its tokens with eos, and
    whether it has reached the length limit: then it may be incomplete.
    """

    text: str
    score: float
    tokens: int = 1
    is_at_limit: bool = False


@dataclass(frozen=True)
class Line:
    """A line to translate: ids of the source and of the target prefix, without eos, and the number
    of the line in the input, which seeds sampling.
    """

    source: NDArray[np.int64]
    prefix: list[int] = field(default_factory=list)
    number: int = 0


# Lines of a batch, and the hypotheses of each line, best first.
Group = list[Line]
Translated = list[list[Translation]]


def check_options(
    decode: DecodeConfig, given: Mapping[str, Any], display_name: Callable[[str], str]
) -> None:
    """Raise `RefusedError` for numbers of a wrong type or range, and for options that exclude each
    other. `decode` has the settings to use, `given` the values of options (None: not given);
    `display_name` returns the name of an option for messages.
    """
    options = {name: value for name, value in given.items() if value is not None}
    _check_integers(options, display_name)
    for name in options:
        if "mbr" in options and name in ("n_best", "beam_size"):
            advice = (
                f"cannot be combined with {display_name('mbr')}, which chooses one of N hypotheses"
            )
            raise RefusedError(f"{display_name(name)}: {advice}")
        if decode.sample and name in SEARCH_ONLY:
            source = display_name("sample") if "sample" in options else "decode.sample of this run"
            raise RefusedError(
                f"{display_name(name)}: cannot be combined with {source}; leave it out"
            )
        if not decode.sample and name in SAMPLING_ONLY:
            raise RefusedError(f"{display_name(name)}: needs {display_name('sample')}; add it")
    n_best = options.get("n_best", 1)
    if "beam_size" in options and n_best > decode.beam_size:
        larger = f"use {display_name('beam_size')} {n_best} or more"
        raise RefusedError(f"{display_name('n_best')} {n_best}: more than the beam holds; {larger}")


def _check_integers(options: Mapping[str, Any], display_name: Callable[[str], str]) -> None:
    """Raise `RefusedError` for numbers of a wrong type or range."""
    for name, lowest, highest in (
        ("n_best", 1, MAX_HYPOTHESES),
        ("mbr", 2, MAX_HYPOTHESES),
        ("seed", 0, math.inf),
    ):
        value = options.get(name, lowest)
        expected = "0 or larger" if name == "seed" else f"from {lowest} to {highest}"
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise RefusedError(f"{display_name(name)} {value!r}: must be an integer, {expected}")
        if not lowest <= value <= highest:
            raise RefusedError(f"{display_name(name)} {value}: must be {expected}")


class Translator:
    """Translates lists of lines of any length. With several ranks, all must call it with the same
    lines; each rank translates a part of the batches.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        ranks: Ranks | None = None,
        *,
        seed: int | None = None,
        n_best: int = 1,
        mbr: int | None = None,
        threads: int | None = None,
        in_processes: bool = False,
    ) -> None:
        """`seed` is the seed of sampling (None: the run's), `n_best` the number of hypotheses or
        samples per line, which the beam is widened to hold. With `mbr`, minimum Bayes risk chooses
        from this number of hypotheses or samples. `threads` fixes the number of CPU threads per
        batch, on which rounding depends. `in_processes` allows processes of one thread each when
        there are many batches and at least `MIN_PROCESSES` threads, on CPUs under Linux.
        """
        self.threads = threads
        self.loaded = loaded
        self.decode = loaded.decode
        self.ranks = ranks or Ranks()
        self.in_processes = in_processes and CAN_FORK and self.ranks.size == 1
        self.seed = loaded.config.seed if seed is None else seed
        self.samples = int(mbr or n_best)
        self.mbr = mbr
        if mbr is not None or self.samples > self.decode.beam_size:
            self.decode = override_decode(loaded.decode, beam_size=self.samples)
        self.normalize = length_normalizer(self.decode.length_norm, self.decode.length_penalty)

    def translate(
        self,
        lines: list[str],
        progress: Callable[[int], object] = lambda lines: None,
        *,
        prefixes: list[str] | None = None,
        first: int = 0,
        scored: bool = True,
    ) -> tuple[list[list[Translation]], list[int]]:
        """Return the hypotheses of each line, best first, and the indices of lines that were cut.

        Translations start with the `prefixes` of their lines, if given; `first` is the number of
        the first line. Without `scored`, translation is faster, but scores may be 0.
        """
        results: list[list[Translation]] = [[Translation("", 0.0)] for _ in lines]
        encoded, cut = self._encode(lines, prefixes, first)
        sources = [line.source for line in encoded]
        translate = self._translate_on_ranks if self.ranks.size > 1 else self._translate_batches
        with kept_threads():
            self._limit_threads(sources)
            batches = [[encoded[index] for index in batch] for batch in self._batches(sources)]
            progress(len(lines) - len(encoded))
            with closing(translate(batches, scored)) as translated:
                for batch, translations in zip(batches, translated, strict=True):
                    for line, hypotheses in zip(batch, translations, strict=True):
                        results[line.number - first] = hypotheses
                    progress(len(batch))
        return results, cut

    def _encode(
        self, lines: list[str], prefixes: list[str] | None, first: int
    ) -> tuple[list[Line], list[int]]:
        """Encode the lines that are not blank. Return them, and the indices in `lines` of those of
        which a part is not translated, or whose prefix leaves no room for a translation.
        """
        indices = [index for index, line in enumerate(lines) if not is_blank(line)]
        sources, cut = self.loaded.encode_sources([lines[index] for index in indices])
        prefix_ids: list[list[int]] = [[] for _ in indices]
        if prefixes is not None:
            prefix_ids = self.loaded.tokenizer.encode([prefixes[index] for index in indices])
        limit = self.loaded.positions_limit
        full = [i for i, ids in enumerate(prefix_ids) if len(ids) >= limit]
        encoded = list(map(Line, sources, prefix_ids, [first + index for index in indices]))
        return encoded, [indices[i] for i in sorted({*cut, *full})]

    def in_windows(self, lines: Iterable[T], limit: int | None = None) -> Iterator[list[T]]:
        """Yield windows of up to `limit` lines (None: `decode.window`) to translate together. The
        first windows are smaller, so that a command that is stopped early has written some lines.
        """
        rest = iter(lines)
        size = FIRST_WINDOW
        while window := list(islice(rest, min(size, limit or self.decode.window))):
            yield window
            size *= 2

    def best(
        self,
        lines: list[str],
        progress: Callable[[int], object] = lambda lines: None,
        cut: Callable[[Iterable[int]], object] = lambda indices: None,
        unfinished: Callable[[Iterable[int]], object] = lambda indices: None,
    ) -> list[str]:
        """Return the best translation of each line. `cut` is called with the indices of lines that
        were cut, `unfinished` with those of translations that have reached the length limit.
        """
        texts: list[str] = []
        for window in self.in_windows(lines):
            results, indices = self.translate(window, progress, first=len(texts), scored=False)
            cut(len(texts) + index for index in indices)
            unfinished(len(texts) + index for index in at_limit(results))
            texts += [hypotheses[0].text for hypotheses in results]
        return texts

    def _translate_on_ranks(self, batches: list[Group], scored: bool) -> Generator[Translated]:
        """Translate this rank's batches and gather the rest."""
        ranks = self.ranks
        count = BATCHES_PER_EXCHANGE * ranks.size
        for start in range(0, len(batches), count):
            of_all_ranks = batches[start : start + count]
            own = self._translate_batches(of_all_ranks[ranks.rank :: ranks.size], scored)
            by_rank = ranks.gather(partial(list[Translated], own), list[Translated])
            for index in range(len(of_all_ranks)):
                yield by_rank[index % ranks.size][index // ranks.size]

    def _translate_batches(self, batches: list[Group], scored: bool) -> Generator[Translated]:
        """Translate batches; on a CPU, several at a time (see `translation.threads`)."""
        # make the decoder before several threads or processes use it
        _ = self.loaded.decoder
        translate = partial(self.translate_batch, scored=scored)
        results: Generator[Translated]
        processes = self._max_at_once if self.in_processes else 0
        if self.loaded.device.type != "cpu":
            results = (translate(batch) for batch in batches)
        elif processes >= MIN_PROCESSES and len(batches) >= processes:
            results = _in_processes(translate, batches, processes)
        else:
            results = in_threads(translate, batches, self.threads)
        with closing(results):
            for translated in results:
                self.loaded.check_stop()
                yield translated

    @property
    def _width(self) -> int:
        """Number of hypotheses that a search extends for each line."""
        return self.samples if self.decode.sample else self.decode.beam_size

    def _limit_threads(self, sources: list[NDArray[np.int64]]) -> None:
        """Lower torch's number of threads to those that have enough work, unless `threads` fixes
        it.
        """
        if self.threads is None:
            tokens = sum(len(ids) + 1 for ids in sources) * self._width
            useful = tokens // (MIN_TOKENS_PER_THREAD * self.ranks.size)
            torch.set_num_threads(max(1, min(useful, torch.get_num_threads())))

    @property
    def _max_at_once(self) -> int:
        """Number of batches that this process may search at a time."""
        if self.loaded.device.type != "cpu":
            return 1
        limit = MAX_PROCESSES if self.in_processes else MAX_THREADS
        return min(torch.get_num_threads(), limit)

    def translate_batch(self, group: Group, scored: bool) -> Translated:
        """Translate the lines of a batch."""
        longest = max(len(line.source) for line in group)
        with out_of_memory_as(out_of_memory_message(len(group), longest)):
            results = self._sample(group) if self.decode.sample else self.search(group, scored)
        if scored and any(math.isnan(hypothesis.score) for hypothesis in chain(*results)):
            raise UserError(NOT_A_NUMBER)
        texts = iter(self.loaded.decode_targets([h.ids for h in chain(*results)]))
        translations = []
        for hypotheses, limit in zip(results, self._limits(group), strict=True):
            lengths = [len(hypothesis.ids) + 1 for hypothesis in hypotheses]
            translations.append(
                [
                    Translation(next(texts), hypothesis.score, length, length >= limit)
                    for hypothesis, length in zip(hypotheses, lengths, strict=True)
                ]
            )
        if self.mbr is None:
            return translations
        return [[_min_risk(hypotheses[: self.mbr])] for hypotheses in translations]

    def _batches(self, sources: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Return batches of indices of sources, similar in length and within the token budget,
        longest first. They are about equally large, and their number is a multiple of the number
        of batches searched at a time, so that all CPU cores finish at about the same time.
        """
        lengths = np.fromiter((len(ids) + 1 for ids in sources), np.int64, len(sources))
        budget = max(1, self.decode.batch_tokens // self._width)
        total = int(lengths.sum())
        # with `threads` given, batches must not depend on the machine
        at_once = 1 if self.threads is not None else self._max_at_once * self.ranks.size
        split = partial(batch_by_length, lengths)
        count = at_once * math.ceil(len(split(budget)) / at_once)
        if count < 2:  # for a single line, this also saves the time of looking for a budget
            return split(budget)
        # the smallest budget that gives no more batches; a larger budget never gives more
        budgets = range(min(budget, max(1, total // count)), budget)
        index = bisect_left(budgets, True, key=lambda tokens: len(split(tokens)) <= count)
        return split(budgets.start + index)[::-1]

    def search(self, group: Group, scored: bool = True) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line by beam search, best first."""
        rules = self._rules(group)
        device = self.loaded.device
        if self.decode.beam_size == 1 and not scored:
            return self._run(GreedySearch(rules, device), group)
        search = BeamSearch(rules, self.decode.beam_size, self.normalize, device)
        return self._run(search, group)

    def _sample(self, group: Group) -> list[list[Hypothesis]]:
        """Draw hypotheses of each line, best first."""
        repeated = [line for line in group for _ in range(self.samples)]
        seeds = [[self.seed, line.number, k] for line in group for k in range(self.samples)]
        sampler = TokenSampler(self.decode.temperature, self.decode.top_k, self.decode.top_p)
        rules = self._rules(repeated)
        sampling = Sampling(rules, self.normalize, sampler, seeds, self.loaded.device)
        drawn = list(chain(*self._run(sampling, repeated)))
        starts = range(0, len(drawn), self.samples)
        return [sampling.ranked(drawn[start : start + self.samples]) for start in starts]

    def _run(self, search: BeamSearch, group: Group) -> list[list[Hypothesis]]:
        loaded = self.loaded
        sources = [line.source for line in group]
        src = pad(sources, loaded.ids).to(loaded.device)
        decoder: Any = loaded.decoder  # each kind of decoder has another type of state
        step = decoder.logits if isinstance(search, GreedySearch) else decoder.step
        with torch.inference_mode(), decoder.lock:
            return search.run(step, decoder.begin(src), loaded.ids.bos)

    def _limits(self, group: Group) -> list[int]:
        """Return the longest allowed translation of each line, in tokens with eos."""
        return [self.loaded.target_limit(len(line.source), len(line.prefix)) for line in group]

    def _rules(self, group: Group) -> Rules:
        ids = self.loaded.ids
        tokenizer = self.loaded.tokenizer
        banned: tuple[int, ...] = ids.pad, ids.bos
        prefixes = [line.prefix for line in group]
        if tokenizer.has_byte_fallback:  # so that the training text has no unknown piece
            banned += (tokenizer.unk_id,)
        return Rules(
            self._limits(group),
            ids.eos,
            banned=banned,
            prefixes=prefixes if any(prefixes) else None,  # None saves time in each step
            no_repeat_ngram=self.decode.no_repeat_ngram,
        )


def at_limit(results: Translated) -> list[int]:
    """Return the indices of the lines whose best translation has reached the length limit."""
    return [index for index, (best, *_) in enumerate(results) if best.is_at_limit]


class UnfinishedLines(CountedLines):
    """Lines whose translations have reached the length limit, and may be incomplete."""

    def warn(self, settings: str = "--max-len-a or --max-len-b") -> None:
        """Warn of these lines, if there are any; `settings` names those of the limit."""
        self.warn_of(
            "translations that reached the length limit and may be incomplete",
            f"; look at them, and raise {settings} if they stop short",
        )


def _in_processes(
    translate: Callable[[Group], Translated], batches: list[Group], count: int
) -> Generator[Translated]:
    """Translate in `count` processes of one thread each, which share the memory of the model."""

    def work(index: int) -> Translated:
        torch.set_num_threads(1)
        return translate(batches[index])

    return map_tasks(work, range(len(batches)), count, WORKER_DIED, forked=True)


def _min_risk(hypotheses: list[Translation]) -> Translation:
    """Return the hypothesis with the minimum Bayes risk."""
    return hypotheses[min_risk_index([h.text for h in hypotheses], [h.score for h in hypotheses])]


def out_of_memory_message(
    num_lines: int,
    longest: int,
    lower: str = "decode.batch_tokens or decode.beam_size (--batch-tokens, --beam-size)",
) -> str:
    """Return the message for a batch that does not fit into memory; `lower` names the settings to
    lower.
    """
    lines = f"{num_lines} lines of up to {longest} tokens"
    return f"out of memory on {lines}; free memory, or lower {lower}"
