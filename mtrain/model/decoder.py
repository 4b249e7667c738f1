"""The decoder as translation runs it: one position at a time, with cached keys and values.

For a single line, calling torch, even for a view, takes as long as the arithmetic. So a step
slices the caches of all layers in one call, and makes views of buffers only when B or W changes.

Shapes: `B` sentences, `W` hypotheses per sentence, `N` hypotheses in all (B x W, sorted by
sentence), `R` rows (N, then padding), `S` source length, `T` positions that the cache has room for,
`D` d_model, `H` heads, `K` head width, `V` vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.model.encoder import VECTOR, Encoder, InferenceLayer, norm_function
from mtrain.model.transformer import DecoderLayer, Parts, Transformer, attend_step
from mtrain.runtime.device import as_output

KeysValuesBias = tuple[Tensor, Tensor, Tensor]  # as `attend_step` takes them
Caches = tuple[Tensor, KeysValuesBias, KeysValuesBias]  # of a layer: see `DecoderState.by_layer`


@dataclass(frozen=True)
class DecoderState:
    """The cache of N hypotheses.

    `past` (layers, 2, B, H, T, W, K) holds keys and values, of `time` positions so far. At each
    position, a sentence has W slots; hypothesis w of the sentence writes its keys and values into
    slot w. They stay there when hypotheses are reordered: `lineage` (N, time * W) is a bias for
    attention, 0 at the slots of a hypothesis's ancestors, elsewhere minus infinity. It is None
    while W is 1. Slots without a hypothesis are finite.

    Example with W = 2: after positions 0 and 1, two hypotheses that both continue the one in slot
    1 of position 0 have the lineages (-inf, 0; 0, -inf) and (-inf, 0; -inf, 0).
    """

    past: Tensor
    time: int
    lineage: Tensor | None
    buffers: "StepBuffers"

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "DecoderState":
        """Select hypotheses by index: `rows` of the N, in that order, as many per sentence as now
        or more, and `sentences` of the B (None: all). This overwrites the cache of this state.
        """
        past, buffers, lineage = self.past, self.buffers, self.lineage
        source, src_bias, slots = buffers.source, buffers.src_bias, buffers.W
        if lineage is not None:
            lineage = lineage.index_select(0, rows)
        if sentences is not None:
            past, source = keep_sentences(sentences, past, source)
            src_bias = src_bias.index_select(0, sentences)
        W = len(rows) // len(src_bias)
        if sentences is None and slots == W:
            return DecoderState(past, self.time, lineage, buffers)
        if slots < W:
            past = _enlarged(past, self.time, past.shape[4], W)
            if lineage is None:
                lineage = src_bias.new_zeros(len(rows), self.time)
            lineage = lineage.view(len(rows), self.time, slots)
            lineage = F.pad(lineage, (0, W - slots), value=float("-inf")).flatten(1)
        buffers = StepBuffers(source, src_bias, W, buffers.projected.dtype, buffers.pad_rows)
        return DecoderState(past, self.time, lineage, buffers)

    def longer(self) -> "DecoderState":
        """Make room for one more position, where each hypothesis sees its own slot."""
        past, lineage = self.past, self.lineage
        if self.time == past.shape[4]:
            past = _enlarged(past, self.time, max(VECTOR, 2 * self.time), self.buffers.W)
        if lineage is not None:
            lineage = torch.cat((lineage, self.buffers.slot_bias), 1)
        return DecoderState(past, self.time + 1, lineage, self.buffers)

    def by_layer(self) -> Iterator[Caches]:
        """Yield for each layer a view of the cache to write the newest keys and values to, (2, B,
        H, W, K), the cache up to them, and the keys and values of the source.
        """
        positions = max(self.time, _min_positions(self.buffers.W))
        newest = self.past[:, :, :, :, self.time - 1].unbind(0)
        cache = self.past[:, :, :, :, :positions].flatten(4, 5)
        past = split_layers(cache, self._bias(positions))
        return zip(newest, past, self.buffers.sources, strict=True)

    def _bias(self, positions: int) -> Tensor:
        """Return the bias for a number of positions of the cache, which hides those that are not
        written yet: (1 or B * H, 1 or W, positions * W).
        """
        unwritten = positions - self.time
        if self.lineage is None:
            return self.buffers.first_biases[self.time - 1] if unwritten else self.buffers.zero_bias
        (B, H), lineage = self.past.shape[2:4], self.lineage
        if unwritten:
            lineage = F.pad(lineage, (0, unwritten * self.buffers.W), value=float("-inf"))
        bias = lineage.view(B, 1, self.buffers.W, -1)  # the same for all heads
        return bias[0] if B == 1 else bias.expand(-1, H, -1, -1).flatten(0, 1)


class StepBuffers:
    """Buffers for the newest tokens, and what changes only with B and W: keys and values of the
    `source` (layers, 2, B, H, S, K), `src_bias` (B, H, 1, S), which is 0 at its real tokens and
    minus infinity elsewhere, and biases for the cache, made when first needed.
    `pad_rows` returns R for N, as `Parts.pad_rows` does; rows after the first N are computed, but
    not used.
    """

    def __init__(
        self,
        source: Tensor,
        src_bias: Tensor,
        W: int,
        dtype: torch.dtype,
        pad_rows: Callable[[int], int] = int,
    ) -> None:
        _, _, B, H, _, K = source.shape
        N, R = B * W, pad_rows(B * W)
        self.B, self.W = B, W
        self.source, self.src_bias = source, src_bias
        self.pad_rows = pad_rows
        self.padding = R - N
        self.sources = list(split_layers(source, src_bias.flatten(0, 1)))
        self.projected = source.new_empty(R, 3 * H * K, dtype=dtype)  # query, key and value
        self.queries = self.projected[:, : H * K]
        heads = self.projected[:N].view(B, W, 3, H, K).permute(2, 0, 3, 1, 4)
        self.key_value = heads[1:]
        self.query = _reordered(heads[0], (B * H, W, K), source.dtype)
        self.attended = source.new_empty(B * H, W, K)
        joined = self.attended.view(B, H, W, K).transpose(1, 2)
        self.joined = _reordered(joined, (N, H * K), dtype, self.padding)

    @cached_property
    def zero_bias(self) -> Tensor:
        """0, in the shape of a bias that is the same for all hypotheses and slots: (1, 1, 1)."""
        return self.src_bias.new_zeros(1, 1, 1)

    @cached_property
    def first_biases(self) -> tuple[Tensor, ...]:
        """For each of the first positions, 0 up to it, then minus infinity: each (1, 1, VECTOR)."""
        causal = self.src_bias.new_full((VECTOR, VECTOR), float("-inf")).triu_(1)
        return causal[:, None, None].unbind(0)

    @cached_property
    def slot_bias(self) -> Tensor:
        """0 at a hypothesis's own slot, elsewhere minus infinity: (N, W)."""
        one_sentence = self.src_bias.new_full((self.W, self.W), float("-inf"))
        return one_sentence.fill_diagonal_(0.0).repeat(self.B, 1)


def _reordered(
    buffer: Tensor, shape: tuple[int, ...], dtype: torch.dtype, padding: int = 0
) -> Callable[[], Tensor]:
    """Return a function that returns the buffer's present values in another shape and type; rows of
    zeros follow them if there is `padding`.
    """
    target = buffer.to(dtype).reshape(shape)
    if not padding and target.data_ptr() == buffer.data_ptr():  # a view: no copy is needed
        return lambda: target
    target = F.pad(target, (0, 0, 0, padding)) if padding else target
    like_buffer = target[: shape[0]].view(buffer.shape)

    def reorder() -> Tensor:
        like_buffer.copy_(buffer)
        return target

    return reorder


def keep_sentences(sentences: Tensor, *caches: Tensor) -> list[Tensor]:
    """Keep the sentences with these indices of caches (layers, 2, B, ...), in place: only sentences
    whose index changes are moved, because copying all takes as long as a step.
    """
    count = len(sentences)
    moved = (sentences != torch.arange(count, device=sentences.device)).nonzero()[:, 0]
    for cache in caches:
        cache[:, :, moved] = cache.index_select(2, sentences[moved])
    return [cache[:, :, :count] for cache in caches]


def _enlarged(past: Tensor, time: int, positions: int, slots: int) -> Tensor:
    """Return a copy of the cache with more positions or slots. New slots of old positions are 0; so
    are positions that a step may read before they are written: memory may hold NaN, which an
    attention weight of 0 does not hide.
    """
    larger = past.new_empty(*past.shape[:4], positions, slots, past.shape[6])
    larger[..., :time, : past.shape[5], :] = past[..., :time, :, :]
    larger[..., :time, past.shape[5] :, :] = 0.0
    larger[..., time : _min_positions(slots), :, :] = 0.0
    return larger


def _min_positions(slots: int) -> int:
    """Return the number of positions that a step reads at least: those of `VECTOR` slots."""
    return math.ceil(VECTOR / slots)


def split_layers(heads: Tensor, bias: Tensor) -> Iterator[KeysValuesBias]:
    """Split (layers, 2, B, H, L, K): keys (B * H, K, L) and values (B * H, L, K) of each layer."""
    keys, values = heads.flatten(2, 3).unbind(1)
    return zip(keys.mT.unbind(0), values.unbind(0), [bias] * len(keys), strict=True)


class Decoder:
    """Encodes sources and extends hypotheses. It copies weights: build it when they are final."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.lock = nullcontext()  # none is needed: several searches may use it at a time
        self.scale = model.shape.d_model**0.5
        self.embedding = model.tgt_embedding.weight
        self.encode = Encoder(model)
        self.layers = [_Layer(layer, model.parts) for layer in model.decoder_layers]
        self.norm = norm_function(model.decoder_norm)
        self.project = model.parts.product(model.output.weight.to(model.dtype), None)

    def begin(self, src: Tensor) -> DecoderState:
        """Encode sources: (B, S) -> state of B empty hypotheses."""
        source, bias = self.encode_keys(src)
        past = source.new_empty(*source.shape[:4], 0, 1, source.shape[5])
        buffers = StepBuffers(source, bias, 1, self.model.dtype, self.model.parts.pad_rows)
        return DecoderState(past, 0, None, buffers)

    def encode_keys(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Encode sources (B, S) and project their keys and values for all layers: return `source`
        and `src_bias` as in `StepBuffers`.
        """
        memory, bias = self.encode(src)
        B, S = src.shape
        _, H, _, P = bias.shape
        K = memory.shape[1] // H
        source = bias.new_empty(len(self.layers), 2, B, H, P, K)
        source[..., S:, :] = 0.0
        for layer, keys_values in zip(self.layers, source[..., :S, :].unbind(0), strict=True):
            projected = layer.cross_source(memory)[: B * S].view(B, S, 2, H, K)
            keys_values.copy_(projected.permute(2, 0, 3, 1, 4))
        return source, bias

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return log-probabilities of the next token in fp32: (N,), state -> (N, V), next state.

        This overwrites the cache of the given state: continue with the returned state only.
        """
        logits, state = self.logits(tokens, state)
        return log_probs_of(logits), state

    def logits(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Do the same as `step`, but return logits, which rank tokens as probabilities do."""
        position, state = self.position(state.time), state.longer()
        return self.compute(tokens, position, state.buffers, state.by_layer()), state

    def position(self, time: int) -> Tensor:
        """Return the encoding of a target position: (1, D)."""
        return self.model.positions(self.model.tgt_positions, time, 1)

    def compute(
        self,
        tokens: Tensor,
        position: Tensor,
        buffers: StepBuffers,
        by_layer: Iterable[Caches],
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (N, V) of the tokens that follow `tokens` (N,) at a position (1, D), in
        `out` if given. The caches of each layer are those of `DecoderState.by_layer`.
        """
        rows = F.pad(tokens, (0, buffers.padding)) if buffers.padding else tokens
        x = torch.add(position, self.embedding.index_select(0, rows), alpha=self.scale)
        x = x.to(self.model.dtype)
        for layer, caches in zip(self.layers, by_layer, strict=True):
            x = layer.step(x, buffers, *caches)
        logits = self.project(self.norm(x), out=out)
        return logits[: len(tokens)] if buffers.padding else logits


def log_probs_of(logits: Tensor) -> Tensor:
    """Return log-probabilities in fp32: (N, V) -> (N, V). Logits in fp32 may be overwritten."""
    logits = logits.float()
    return torch.log_softmax(logits, -1, out=as_output(logits))


class EnsembleState(tuple[Any, ...]):
    """The states of an ensemble's decoders."""

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "EnsembleState":
        """Select hypotheses and sentences, as `DecoderState.select` does."""
        return EnsembleState(state.select(rows, sentences) for state in self)


class Ensemble:
    """The step function of several models of one vocabulary: the mean of their probabilities."""

    def __init__(self, members: Sequence[Any]) -> None:
        """`members` are instances of `Decoder` or of `recorded.RecordedDecoder`."""
        self.members = members
        self.lock = members[0].lock

    def begin(self, src: Tensor) -> EnsembleState:
        """Encode sources: (B, S) -> state of B empty hypotheses."""
        return EnsembleState(member.begin(src) for member in self.members)

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Return log-probabilities of the next token: (N,), state -> (N, V), next state."""
        pairs = zip(self.members, state, strict=True)
        results = [member.step(tokens, member_state) for member, member_state in pairs]
        states = EnsembleState(next_state for _, next_state in results)
        return mean_log_probs([log_probs for log_probs, _ in results]), states

    logits = step  # greedy search only ranks tokens, so log-probabilities serve as logits


def mean_log_probs(members: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of probabilities, given their logarithms."""
    return torch.stack(tuple(members)).logsumexp(0) - math.log(len(members))


class _Layer(InferenceLayer):
    """A decoder layer applied to the newest token of each hypothesis."""

    def __init__(self, layer: DecoderLayer, parts: Parts) -> None:
        norms = layer.self_norm, layer.cross_norm, layer.feed_norm
        super().__init__(layer, norms, parts)
        cross = layer.cross_attention
        D = layer.cross_norm.normalized_shape[0]
        self.cross_query = parts.product(cross.project_in.weight[:D], cross.project_in.bias[:D])
        self.cross_source = parts.product(cross.project_in.weight[D:], cross.project_in.bias[D:])
        self.join_cross = parts.product(cross.project_out.weight, cross.project_out.bias)

    def step(
        self,
        x: Tensor,
        buffers: StepBuffers,
        newest: Tensor,
        past: KeysValuesBias,
        source: KeysValuesBias,
    ) -> Tensor:
        """Apply `DecoderLayer` to one position, with the caches of `by_layer`: (R, D) -> (R, D)."""
        self.project(self.before[0](x), out=buffers.projected)
        newest.copy_(buffers.key_value)
        attend_step(buffers.query(), *past, buffers.attended)
        x = self.after[0](self.join(buffers.joined()).add_(x))
        self.cross_query(self.before[1](x), out=buffers.queries)
        attend_step(buffers.query(), *source, buffers.attended)
        x = self.after[1](self.join_cross(buffers.joined()).add_(x))
        return self.feed_forward(x)
