"""The decoder as translation runs it: one position at a time, with cached keys and values.

Shapes: `B` sentences, `W` hypotheses of each, `N` of all (B x W), `S` source length, `T` positions
of the cache, `D` d_model, `H` heads, `K` head width, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.model.transformer import DecoderLayer, Transformer


@dataclass(frozen=True)
class DecoderState:
    """The cache of `N` hypotheses of `B` sentences, `W` each.

    Each layer's `past` (2, B, H, T, W', K) holds keys and values of `time` positions, with W' >= W
    slots per sentence. They stay in the slot where they were written: `lineage` (B, W, T, W') is 0
    at the slots of a hypothesis's own past, elsewhere minus infinity. `source` (layers, 2, B, H, S,
    K) holds keys and values of the source, `src_bias` (B, H, 1, S) is 0 at its real tokens.
    """

    past: tuple[Tensor, ...]
    time: int
    lineage: Tensor
    source: Tensor
    src_bias: Tensor

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "DecoderState":
        """Select hypotheses by index: `rows` of the N, in that order and equally many per sentence,
        and `sentences` of the B (None: all).
        """
        past, source, src_bias = self.past, self.source, self.src_bias
        if sentences is not None:
            past = tuple(layer.index_select(1, sentences) for layer in past)
            source = source.index_select(2, sentences)
            src_bias = src_bias.index_select(0, sentences)
        B, slots = len(src_bias), self.lineage.shape[3]
        lineage = self.lineage.flatten(0, 1).index_select(0, rows)
        lineage = lineage.view(B, len(rows) // max(1, B), *lineage.shape[1:])
        if (missing := lineage.shape[1] - slots) > 0:
            lineage = F.pad(lineage, (0, missing), value=float("-inf"))
            past = tuple(F.pad(layer, (0, 0, 0, missing)) for layer in past)
        return DecoderState(past, self.time, lineage, source, src_bias)

    def longer(self) -> "DecoderState":
        """Make room for one more position, where each hypothesis sees its own slot."""
        past, lineage = self.past, self.lineage
        if self.time == lineage.shape[2]:
            room = max(16, self.time)
            past = tuple(F.pad(layer, (0, 0, 0, 0, 0, room)) for layer in past)
            lineage = F.pad(lineage, (0, 0, 0, room), value=float("-inf"))
        lineage[:, :, self.time].diagonal(dim1=1, dim2=2).zero_()
        return replace(self, past=past, time=self.time + 1, lineage=lineage)


class Decoder:
    """The step function of a model. Build it after the weights are final: some are copied."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.scale = model.shape.d_model**0.5
        self.layers = [_Layer(layer, model) for layer in model.decoder_layers]
        self.project = model.parts.product(model.output.weight.to(model.dtype), None)

    def begin(self, src: Tensor) -> DecoderState:
        """Encode sources and project their keys and values once: (B, S) -> state of B empty
        hypotheses.
        """
        memory, src_mask = self.model.encode(src)
        attentions = [layer.cross_attention for layer in self.model.decoder_layers]
        source = torch.stack([torch.stack(a.heads(a.project(memory, 1, 3))) for a in attentions])
        source = source.to(self.model.attention_dtype)
        layers, _, B, H, S, K = source.shape
        bias = source.new_zeros(B, H, 1, S).masked_fill(~src_mask, float("-inf"))
        past = tuple(source.new_empty(2, B, H, 0, 1, K) for _ in range(layers))
        return DecoderState(past, 0, source.new_empty(B, 1, 0, 1), source, bias)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return log-probabilities of the next token in fp32: (N,), state -> (N, V), next state.

        This overwrites the cache of the given state: continue with the returned state only.
        """
        time, H = state.time, self.model.shape.num_heads
        state = state.longer()
        bias = None
        if state.lineage.shape[3] > 1:  # a single hypothesis sees the whole past
            bias = state.lineage[:, None, :, : time + 1].expand(-1, H, -1, -1, -1)
            bias = bias.flatten(3).flatten(0, 1)
        src_bias = state.src_bias.flatten(0, 1)
        x = F.embedding(tokens, self.model.tgt_embedding.weight)
        x = torch.add(self.model.positions(self.model.tgt_positions, time, 1), x, alpha=self.scale)
        x = x.to(self.model.dtype)
        for layer, past, source in zip(self.layers, state.past, state.source, strict=True):
            x = layer.step(x, past[:, :, :, : time + 1], source, bias, src_bias)
        return self.project(self.model.decoder_norm(x)).float().log_softmax(-1), state


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


def mean_log_probs(members: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of probabilities, given their logarithms."""
    return torch.stack(tuple(members)).logsumexp(0) - math.log(len(members))


class _Layer:
    """A decoder layer applied to the newest token of each hypothesis."""

    def __init__(self, layer: DecoderLayer, model: Transformer) -> None:
        own, source, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        D, product = model.shape.d_model, model.parts.product
        self.residual, self.attend = layer.residual, model.parts.attend_step
        self.norms = layer.self_norm, layer.cross_norm, layer.feed_norm  # slow to look up
        self.project = product(own.project_in.weight, own.project_in.bias)
        self.join = product(own.project_out.weight, own.project_out.bias)
        self.query = product(source.project_in.weight[:D], source.project_in.bias[:D])
        self.join_source = product(source.project_out.weight, source.project_out.bias)
        self.inner = product(feed.inner.weight, feed.inner.bias)
        self.outer = product(feed.outer.weight, feed.outer.bias)

    def step(
        self, x: Tensor, past: Tensor, source: Tensor, bias: Tensor | None, src_bias: Tensor
    ) -> Tensor:
        """Apply `DecoderLayer` to one position: (N, D) -> (N, D)."""
        own, cross, feed = self.norms
        x = self.residual(own, x, lambda x: self._over_past(x, past, bias))
        x = self.residual(cross, x, lambda x: self._over_source(x, source, src_bias))
        return self.residual(feed, x, lambda x: self.outer(self.inner(x).relu_()))

    def _over_past(self, x: Tensor, past: Tensor, bias: Tensor | None) -> Tensor:
        """Attend from the newest tokens to their own pasts: (N, D) -> (N, D). Their keys and values
        are written to the last position of `past` (2, B, H, T, W', K).
        """
        _, B, H, _, _, K = past.shape
        projected = self.project(x).view(B, -1, 3, H, K).permute(2, 0, 3, 1, 4)
        past[:, :, :, -1, : projected.shape[3]] = projected[1:]
        key, value = past.view(2, B * H, -1, K)
        return self.join(self._attend(projected[0], key, value, bias, x.dtype))

    def _over_source(self, x: Tensor, source: Tensor, bias: Tensor) -> Tensor:
        """Attend from the newest tokens to their sources (2, B, H, S, K): (N, D) -> (N, D)."""
        _, B, H, S, K = source.shape
        query = self.query(x).view(B, -1, H, K).transpose(1, 2)
        key, value = source.view(2, B * H, S, K)
        return self.join_source(self._attend(query, key, value, bias, x.dtype))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Attend: query (B, H, W, K), key and value (B * H, T or S, K) -> (N, D)."""
        B, H, W, K = query.shape
        query = query.to(key.dtype).reshape(B * H, W, K)
        heads = self.attend(query, key, value, bias).view(B, H, W, K)
        return heads.transpose(1, 2).reshape(B * W, H * K).to(dtype)
