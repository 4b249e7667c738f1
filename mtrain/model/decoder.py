"""The decoder as translation runs it: one position at a time, with cached keys and values.

For one line, calls of torch, views among them, take as long as the arithmetic. So a step cuts all
layers' caches at once, and works on buffers whose views are made only when B or W changes.

Shapes: `B` sentences, `W` hypotheses of each, `N` of all (B x W), `S` source length, `T` positions
of the cache, `D` d_model, `H` heads, `K` head width, `V` vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.transformer import DecoderLayer, Transformer

# The softmax of shorter rows is computed value by value, in ten times the time.
VECTOR = 16

Heads = tuple[Tensor, Tensor, Tensor]  # keys, values and bias, as `attend_step` takes them


@dataclass(frozen=True)
class DecoderState:
    """The cache of `N` hypotheses of `B` sentences, `W` each.

    `past` (layers, 2, B, H, T, W', K) holds keys and values of `time` positions, with W' >= W slots
    per sentence. They stay in the slot where they were written: `lineage` (N, time * W') is 0 at
    the slots of a hypothesis's own past, elsewhere minus infinity (None: there is one slot).
    """

    past: Tensor
    time: int
    lineage: Tensor | None
    newest: "StepBuffers"

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "DecoderState":
        """Select hypotheses by index: `rows` of the N, in that order and equally many per sentence,
        and `sentences` of the B (None: all). This overwrites the cache of the given state.
        """
        past, newest, lineage = self.past, self.newest, self.lineage
        source, src_bias, slots = newest.source, newest.src_bias, past.shape[5]
        if sentences is not None:
            past, source = _keep(past, sentences), _keep(source, sentences)
            src_bias = src_bias.index_select(0, sentences)
        if lineage is not None:
            lineage = lineage.index_select(0, rows)
        W = len(rows) // max(1, len(src_bias))
        if sentences is None and W == newest.W:
            return DecoderState(past, self.time, lineage, newest)
        if (missing := W - slots) > 0:
            past = _with_room(past, self.time, past.shape[4], W)
            if lineage is None:
                lineage = src_bias.new_zeros(len(rows), self.time)
            lineage = lineage.view(len(rows), self.time, slots)
            lineage = F.pad(lineage, (0, missing), value=float("-inf")).flatten(1)
        newest = StepBuffers(source, src_bias, W, past.shape[5], newest.projected.dtype)
        return DecoderState(past, self.time, lineage, newest)

    def longer(self) -> "DecoderState":
        """Make room for one more position, where each hypothesis sees its own slot."""
        past, lineage = self.past, self.lineage
        if self.time == past.shape[4]:
            past = _with_room(past, self.time, max(VECTOR, 2 * self.time), past.shape[5])
        if past.shape[5] > self.newest.W:
            past[..., self.time, self.newest.W :, :] = 0.0
        if lineage is not None:
            lineage = torch.cat((lineage, self.newest.own), 1)
        return DecoderState(past, self.time + 1, lineage, self.newest)

    def by_layer(self) -> Iterator[tuple[Tensor, Heads, Heads]]:
        """Yield for each layer the part of the cache for the newest keys and values, the whole of
        it, and the keys and values of the source.
        """
        B, H, W = *self.past.shape[2:4], self.newest.W
        bias = self.newest.unbiased
        if self.lineage is not None:  # all heads are alike
            bias = self.lineage.view(B, 1, W, -1)
            bias = bias[0] if B == 1 else bias.expand(-1, H, -1, -1).flatten(0, 1)
        now = self.past[:, :, :, :, self.time - 1, :W].unbind(0)
        past = _by_layer(self.past[:, :, :, :, : self.time].flatten(4, 5), bias)
        return zip(now, past, self.newest.sources, strict=True)


class StepBuffers:
    """Buffers for the newest tokens, and what stays as long as B and W: keys and values of the
    `source` (layers, 2, B, H, S, K), `src_bias` (B, H, 1, S), which is 0 at its real tokens, and
    `own` (N, W'), 0 at a hypothesis's own slot.
    """

    def __init__(
        self, source: Tensor, src_bias: Tensor, W: int, slots: int, dtype: torch.dtype
    ) -> None:
        _, _, B, H, _, K = source.shape
        self.W, self.source, self.src_bias = W, source, src_bias
        self.sources = list(_by_layer(source, src_bias.flatten(0, 1)))
        self.unbiased = src_bias.new_zeros(1, 1, 1)
        self.own = src_bias.new_full((W, slots), float("-inf")).fill_diagonal_(0.0).repeat(B, 1)
        self.projected = source.new_empty(B * W, 3 * H * K, dtype=dtype)  # query, key and value
        self.queries = self.projected[:, : H * K]
        heads = self.projected.view(B, W, 3, H, K).permute(2, 0, 3, 1, 4)
        self.key_value = heads[1:]
        self.query = _reordered(heads[0], (B * H, W, K), source.dtype)
        self.attended = source.new_empty(B * H, W, K)
        joined = self.attended.view(B, H, W, K).transpose(1, 2)
        self.joined = _reordered(joined, (B * W, H * K), dtype)


def _reordered(buffer: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], Tensor]:
    """Return a function that returns the buffer's values in another shape and type."""
    target = buffer.to(dtype).reshape(shape)
    if target.data_ptr() == buffer.data_ptr():  # a view
        return lambda: target
    written = target.view(buffer.shape)

    def reorder() -> Tensor:
        written.copy_(buffer)
        return target

    return reorder


def _keep(cache: Tensor, sentences: Tensor) -> Tensor:
    """Keep some sentences of (layers, 2, B, ...), in place: a copy takes as long as a step."""
    kept = len(sentences)
    moved = (sentences != torch.arange(kept, device=sentences.device)).nonzero()[:, 0]
    cache[:, :, moved] = cache.index_select(2, sentences[moved])
    return cache[:, :, :kept]


def _with_room(past: Tensor, time: int, positions: int, slots: int) -> Tensor:
    """Return a cache of more positions or slots. Slots without a hypothesis are 0: a product with
    what memory happens to hold might not be a number.
    """
    roomy = past.new_empty(*past.shape[:4], positions, slots, past.shape[6])
    roomy[..., :time, :, :] = F.pad(past[..., :time, :, :], (0, 0, 0, slots - past.shape[5]))
    return roomy


def _by_layer(heads: Tensor, bias: Tensor) -> Iterator[Heads]:
    """Split (layers, 2, B, H, L, K): keys (B * H, K, L), values (B * H, L, K) of each layer."""
    keys, values = heads.flatten(2, 3).unbind(1)
    return zip(keys.mT.unbind(0), values.unbind(0), [bias] * len(keys), strict=True)


class Decoder:
    """The step function of a model. Build it after the weights are final: some are copied."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.scale = model.shape.d_model**0.5
        self.embedding = model.tgt_embedding.weight
        self.layers = [_Layer(layer, model) for layer in model.decoder_layers]
        self.norm = _norm(model.decoder_norm)
        self.project = model.parts.product(model.output.weight.to(model.dtype), None)

    def begin(self, src: Tensor) -> DecoderState:
        """Encode sources and project their keys and values once: (B, S) -> state of B empty
        hypotheses.
        """
        memory, src_mask = self.model.encode(src)
        attentions = [layer.cross_attention for layer in self.model.decoder_layers]
        layers, (B, S, D), H = len(attentions), memory.shape, self.model.shape.num_heads
        sizes = layers, 2, B, H, max(S, VECTOR), D // H
        source = memory.new_zeros(sizes, dtype=self.model.attention_dtype)
        for own, attention in zip(source[..., :S, :], attentions, strict=True):
            own[0], own[1] = attention.heads(attention.project(memory, 1, 3))
        bias = source.new_full((B, H, 1, sizes[4]), float("-inf"))
        bias[..., :S].masked_fill_(src_mask, 0.0)
        past = source.new_empty(layers, 2, B, H, 0, 1, D // H)
        return DecoderState(past, 0, None, StepBuffers(source, bias, 1, 1, memory.dtype))

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return log-probabilities of the next token in fp32: (N,), state -> (N, V), next state.

        This overwrites the cache of the given state: continue with the returned state only.
        """
        logits, state = self.logits(tokens, state)
        logits = logits.float()
        return torch.log_softmax(logits, -1, out=logits), state

    def logits(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return logits, which order tokens as their probabilities do, otherwise as `step`."""
        positions = self.model.positions(self.model.tgt_positions, state.time, 1)
        x = torch.add(positions, self.embedding.index_select(0, tokens), alpha=self.scale)
        x = x.to(self.model.dtype)
        state = state.longer()
        for layer, caches in zip(self.layers, state.by_layer(), strict=True):
            x = layer.step(x, state.newest, *caches)
        return self.project(self.norm(x)), state


class EnsembleState(tuple[DecoderState, ...]):
    """The caches of an ensemble's decoders."""

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "EnsembleState":
        """Keep some hypotheses and sentences, as `DecoderState` does."""
        return EnsembleState(state.select(rows, sentences) for state in self)


class Ensemble:
    """The step function of several models of one vocabulary: the mean of their probabilities."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.members = [Decoder(model) for model in models]

    def begin(self, src: Tensor) -> EnsembleState:
        """Encode sources: (B, S) -> state of B empty hypotheses."""
        return EnsembleState(member.begin(src) for member in self.members)

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Return log-probabilities of the next token: (N,), state -> (N, V), next state."""
        pairs = zip(self.members, state, strict=True)
        log_probs, states = zip(*(member.step(tokens, own) for member, own in pairs), strict=True)
        return mean_log_probs(log_probs), EnsembleState(states)

    logits = step  # as good for a choice of tokens


def mean_log_probs(members: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of probabilities, given their logarithms."""
    return torch.stack(tuple(members)).logsumexp(0) - math.log(len(members))


class _Layer:
    """A decoder layer applied to the newest token of each hypothesis."""

    def __init__(self, layer: DecoderLayer, model: Transformer) -> None:
        own, source, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        D, product = model.shape.d_model, model.parts.product
        self.attend = model.parts.attend_step
        norms = [_norm(norm) for norm in (layer.self_norm, layer.cross_norm, layer.feed_norm)]
        none = [_norm(nn.Identity())] * 3
        self.before, self.after = (norms, none) if layer.pre_norm else (none, norms)
        self.project = product(own.project_in.weight, own.project_in.bias)
        self.join = product(own.project_out.weight, own.project_out.bias)
        self.query = product(source.project_in.weight[:D], source.project_in.bias[:D])
        self.join_source = product(source.project_out.weight, source.project_out.bias)
        self.inner = product(feed.inner.weight, feed.inner.bias)
        self.outer = product(feed.outer.weight, feed.outer.bias)

    def step(
        self, x: Tensor, newest: StepBuffers, now: Tensor, past: Heads, source: Heads
    ) -> Tensor:
        """Apply `DecoderLayer` to one position: (N, D) -> (N, D)."""
        self.project(self.before[0](x), out=newest.projected)
        now.copy_(newest.key_value)
        self.attend(newest.query(), *past, newest.attended)
        x = self.after[0](self.join(newest.joined()).add_(x))
        self.query(self.before[1](x), out=newest.queries)
        self.attend(newest.query(), *source, newest.attended)
        x = self.after[1](self.join_source(newest.joined()).add_(x))
        return self.after[2](self.outer(self.inner(self.before[2](x)).relu_()).add_(x))


def _norm(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a layer norm, or none, as a function: calling a module takes longer than it."""
    if not isinstance(module, nn.LayerNorm):
        return lambda x: x
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
