"""The Python interface of a trained model: `mtrain.load` returns a `Model`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, overload

import numpy as np
import torch

from mtrain.config.schema import DecodeConfig, override_decode
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import TruncatedLines
from mtrain.translation.attention import Attention, attention_of
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.threads import prepare_forks
from mtrain.translation.translator import (
    Translation,
    Translator,
    UnfinishedLines,
    at_limit,
    check_options,
)


class Model:
    """A trained model or an ensemble. Lines that are too long are cut, with a warning."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        prepare_forks()

    @overload
    def translate(self, text: str, *, n_best: None = None, **search: Any) -> str: ...
    @overload
    def translate(self, text: str, *, n_best: int, **search: Any) -> list[Translation]: ...
    @overload
    def translate(
        self, text: Iterable[str], *, n_best: None = None, **search: Any
    ) -> list[str]: ...
    @overload
    def translate(
        self, text: Iterable[str], *, n_best: int, **search: Any
    ) -> list[list[Translation]]: ...

    def translate(
        self,
        text: str | Iterable[str],
        *,
        n_best: int | None = None,
        mbr: int | None = None,
        tag: str | None = None,
        seed: int | None = None,
        target_prefix: str | Iterable[str] | None = None,
        **search: Any,
    ) -> str | list[str] | list[Translation] | list[list[Translation]]:
        """Translate one line or several. With `n_best`, return up to this number of hypotheses for
        each line; with `mbr`, choose from this number of hypotheses by minimum Bayes risk. `tag` is
        put before each line. With `sample=True`, draw translations with `seed` (default: that of
        the run). Translations begin with `target_prefix`: one text for a line, or one for each of
        several lines.

        `search` overrides settings of the run's `decode` section, such as `beam_size` or
        `length_penalty`. Raises `UserError`.
        """
        if unknown := sorted(search.keys() - DecodeConfig.model_fields):
            own = ["n_best", "mbr", "tag", "seed", "target_prefix"]
            known = ", ".join([*own, *DecodeConfig.model_fields])
            raise RefusedError(f"{unknown[0]}: unknown option; choose one of {known}")
        search = {k: v.item() if isinstance(v, np.generic) else v for k, v in search.items()}
        decode = override_decode(self.loaded.decode, **search)
        given = {**search, "n_best": n_best, "mbr": mbr, "seed": seed}
        check_options(decode, given, lambda name: "sample=True" if name == "sample" else name)
        lines = [text] if isinstance(text, str) else _as_lines(text, "text")
        prefixes = None if target_prefix is None else _as_prefixes(target_prefix, text, lines)
        loaded = replace(self.loaded.tagged(tag), decode=decode)
        with self._own_precision():
            # reuse the decoder: packing its matrices takes time
            loaded.decoder = self.loaded.decoder
            translator = Translator(loaded, seed=seed, n_best=n_best or 1, mbr=mbr)
            found, cut = translator.translate(lines, prefixes=prefixes, scored=n_best is not None)
        TruncatedLines(cut).warn(loaded.max_source_length, "text")
        if n_best is not None:
            lists = [hypotheses[:n_best] for hypotheses in found]
            return lists[0] if isinstance(text, str) else lists
        UnfinishedLines(at_limit(found)).warn("max_len_a or max_len_b")
        best = [hypotheses[0].text for hypotheses in found]
        return best[0] if isinstance(text, str) else best

    def score(
        self, sources: Iterable[str], targets: Iterable[str], *, tag: str | None = None
    ) -> list[float]:
        """Return the natural log-probability of each target with eos, given its source; raises
        `UserError`.
        """
        src, tgt = _as_lines(sources, "sources"), _as_lines(targets, "targets")
        if len(src) != len(tgt):
            raise UserError(
                f"{len(src)} sources but {len(tgt)} targets: give one target for each source"
            )
        with self._own_precision():
            scores, (cut_sources, cut_targets) = Scorer(self.loaded.tagged(tag)).score(src, tgt)
        TruncatedLines(cut_sources).warn(self.loaded.max_source_length, "sources")
        TruncatedLines(cut_targets).warn(self.loaded.max_target_length, "targets")
        return scores

    def attention(
        self, source: str, target: str | None = None, *, tag: str | None = None
    ) -> Attention:
        """Return the attention weights of a sentence pair; the default `target` is the model's
        translation. An ensemble returns the weights of its first model. Raises `UserError`.
        """
        _check_line(source, "source")
        if target is not None:
            _check_line(target, "target")
        loaded = self.loaded.tagged(tag)
        text = self.translate(source, tag=tag) if target is None else target
        (src,), cut_source = loaded.encode_sources([source])
        (tgt,), cut_target = loaded.encode_targets([text])
        if target is not None:  # or `translate` has warned
            TruncatedLines(cut_source).warn(loaded.max_source_length, "source")
            TruncatedLines(cut_target).warn(loaded.max_target_length, "target")
        with self._own_precision():
            return attention_of(loaded, src, tgt)

    def _own_precision(self) -> torch.autocast:
        """Return a context in which the caller's autocast has no effect."""
        return torch.autocast(self.loaded.device.type, enabled=False)


def _as_lines(lines: Iterable[str], name: str) -> list[str]:
    """Return lines as a list; raises `RefusedError` unless all are strings."""
    if isinstance(lines, str | bytes) or not isinstance(lines, Iterable):
        raise RefusedError(f"{name}: expected a list of lines, not {type(lines).__name__}")
    result = list(lines)
    for index, line in enumerate(result):
        _check_line(line, f"{name}[{index}]")
    return result


def _as_prefixes(given: Any, text: object, lines: list[str]) -> list[str]:
    """Return a prefix for each line; raises `RefusedError` if their numbers or types differ."""
    if isinstance(text, str):
        _check_line(given, "target_prefix")
        return [given]
    prefixes = _as_lines(given, "target_prefix")
    if len(prefixes) != len(lines):
        numbers = f"{len(prefixes)} given for {len(lines)} lines"
        raise RefusedError(f"target_prefix: {numbers}; give one for each line")
    return prefixes


def _check_line(line: object, name: str) -> None:
    """Raise `RefusedError` unless a line is a string."""
    if not isinstance(line, str):
        raise RefusedError(f"{name}: expected a line, not {type(line).__name__}")
