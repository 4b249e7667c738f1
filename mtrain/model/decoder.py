"""The decoder at inference: one position at a time, with the keys and values of earlier ones.

Shapes: `B` sentences, `W` hypotheses of each, `N` of all (B x W), `S` source length, `T` past
positions, `D` d_model, `H` heads, `K` head width, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.attention import attend_step
from mtrain.model.transformer import DecoderLayer, Transformer
from mtrain.runtime.device import packed_product


@dataclass(frozen=True)
class DecoderState:
    """What decoding has seen of `N` hypotheses of `B` sentences, `W` each.

    Each layer's `past` (2, B, H, T, W', K) holds keys and values with `time` places filled, W' >= W
    of a sentence in each. They stay where they were written: `lineage` (B, W, T, W') is 0 where
    one belongs to a hypothesis's own past, and else minus infinity. `source` (layers, 2, B, H, S,
    K) holds keys and values of the source, `src_bias` (B, H, 1, S) is 0 at its real tokens.
    """

    past: tuple[Tensor, ...]
    time: int
    lineage: Tensor
    source: Tensor
    src_bias: Tensor

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "DecoderState":
        """Take some of the N hypotheses, in a new order and as many of each sentence, and (None:
        all) some of the B sentences.
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
            # copies of what is there, for what nobody looks at must still be numbers
            copies = torch.arange(slots + missing, device=rows.device) % slots
            past = tuple(layer.index_select(4, copies) for layer in past)
        return DecoderState(past, self.time, lineage, source, src_bias)

    def longer(self) -> "DecoderState":
        """Make room for another position, and let each hypothesis see its own there."""
        past, lineage = self.past, self.lineage
        if self.time == lineage.shape[2]:
            room = max(16, self.time)
            past = tuple(_with_room(layer, room) for layer in past)
            lineage = F.pad(lineage, (0, 0, 0, room), value=float("-inf"))
        lineage[:, :, self.time].diagonal(dim1=1, dim2=2).zero_()
        return DecoderState(past, self.time + 1, lineage, self.source, self.src_bias)


def _with_room(past: Tensor, room: int) -> Tensor:
    """Copy keys and values to where there are so many places more."""
    longer = past.new_empty(*past.shape[:3], past.shape[3] + room, *past.shape[4:])
    longer[:, :, :, : past.shape[3]] = past
    return longer


class Decoder:
    """A model's decoder, which maps newest tokens to what may follow them; see `DecoderState`.

    Its weights are those of the model as it is now, some of them copied.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.scale = model.shape.d_model**0.5
        self.layers = [_Layer(layer) for layer in model.decoder_layers]
        self.norm = model.decoder_norm
        self.project = packed_product(model.output.weight.to(model.dtype), None)

    def begin(self, src: Tensor) -> DecoderState:
        """Encode sources: (B, S) -> state of B empty hypotheses."""
        return self.start(*self.model.encode(src))

    def start(self, memory: Tensor, src_mask: Tensor) -> DecoderState:
        """Project the source's keys and values once: (B, S, D), (B, 1, 1, S) -> state of B empty
        hypotheses.
        """
        B, S, _ = memory.shape
        attentions = [layer.cross_attention for layer in self.model.decoder_layers]
        stacked = torch.stack(
            [torch.stack(a.heads(a.project(memory.flatten(0, 1), 1, 3), B, S)) for a in attentions]
        ).to(_attention_dtype(memory))
        layers, _, _, H, _, K = stacked.shape
        bias = stacked.new_zeros(B, H, 1, S).masked_fill(~src_mask, float("-inf"))
        past = tuple(stacked.new_empty(2, B, H, 0, 1, K) for _ in range(layers))
        return DecoderState(past, 0, stacked.new_empty(B, 1, 0, 1), stacked, bias)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities of the next token in fp32: (N,), state -> (N, V), state one position
        on.

        The given state's room is written into: go on from the returned one.
        """
        time, H = state.time, self.model.shape.num_heads
        state = state.longer()
        bias = None
        if state.lineage.shape[3] > 1:  # a single hypothesis has the whole past
            bias = state.lineage[:, None, :, : time + 1].expand(-1, H, -1, -1, -1)
            bias = bias.flatten(3).flatten(0, 1)
        src_bias = state.src_bias.flatten(0, 1)
        x = F.embedding(tokens, self.model.tgt_embedding.weight)
        x = torch.add(self.model.positions("tgt", time, 1), x, alpha=self.scale)
        x = x.to(self.model.dtype)
        for layer, past, source in zip(self.layers, state.past, state.source, strict=True):
            x = layer.step(x, past, time, source, bias, src_bias)
        return self.project(self.norm(x)).float().log_softmax(-1), state


@dataclass(frozen=True)
class EnsembleState:
    """What each decoder of an ensemble has seen."""

    members: tuple[DecoderState, ...]

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "EnsembleState":
        """Take some hypotheses and sentences, as `DecoderState` does."""
        return EnsembleState(tuple(state.select(rows, sentences) for state in self.members))


class Ensemble:
    """Several models of one vocabulary as one: what follows is as likely as on average of them."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.members = [Decoder(model) for model in models]

    def begin(self, src: Tensor) -> EnsembleState:
        """Encode sources: (B, S) -> state of B empty hypotheses."""
        return EnsembleState(tuple(member.begin(src) for member in self.members))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Log-probabilities of the next token: (N,), state -> (N, V), state one position on."""
        pairs = zip(self.members, state.members, strict=True)
        found = [member.step(tokens, own) for member, own in pairs]
        log_probs = mean_log_probs([log_probs for log_probs, _ in found])
        return log_probs, EnsembleState(tuple(after for _, after in found))


def mean_log_probs(members: list[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities, given the logarithms of each."""
    return torch.stack(members).logsumexp(0) - math.log(len(members))


class _Layer:
    """A layer over the newest tokens of hypotheses."""

    def __init__(self, layer: DecoderLayer) -> None:
        own, source, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        D = own.project_out.in_features
        self.pre_norm = layer.pre_norm
        self.norms = [_normalizer(n) for n in (layer.self_norm, layer.cross_norm, layer.feed_norm)]
        self.project = packed_product(own.project_in.weight, own.project_in.bias)
        self.join = packed_product(own.project_out.weight, own.project_out.bias)
        self.ask = packed_product(source.project_in.weight[:D], source.project_in.bias[:D])
        self.join_source = packed_product(source.project_out.weight, source.project_out.bias)
        self.inner = packed_product(feed.inner.weight, feed.inner.bias)
        self.outer = packed_product(feed.outer.weight, feed.outer.bias)

    def step(
        self,
        x: Tensor,
        past: Tensor,
        time: int,
        source: Tensor,
        past_bias: Tensor | None,
        src_bias: Tensor,
    ) -> Tensor:
        """One position: (N, D) -> (N, D)."""
        x = self._after(0, x, self._over_past(self._before(0, x), past, time, past_bias))
        x = self._after(1, x, self._over_source(self._before(1, x), source, src_bias))
        return self._after(2, x, self.outer(self.inner(self._before(2, x)).relu_()))

    def _before(self, block: int, x: Tensor) -> Tensor:
        return self.norms[block](x) if self.pre_norm else x

    def _after(self, block: int, x: Tensor, out: Tensor) -> Tensor:
        x = out.add_(x)
        return x if self.pre_norm else self.norms[block](x)

    def _over_past(self, x: Tensor, past: Tensor, time: int, bias: Tensor | None) -> Tensor:
        """Attend from newest tokens to their own pasts: (N, D) -> (N, D). Keys and values of the
        tokens go to place `time` of `past` (2, B, H, T, W', K).
        """
        _, B, H, _, _, K = past.shape
        projected = self.project(x).view(B, -1, 3, H, K).permute(2, 0, 3, 1, 4)
        W, places = projected.shape[3], past[:, :, :, time]
        places[:, :, :, :W] = projected[1:]
        if places.shape[3] > W:  # what nobody looks at must still be numbers
            places[:, :, :, W:] = 0
        key, value = past[:, :, :, : time + 1].view(2, B * H, -1, K)
        return self.join(_attended(projected[0], key, value, bias, x.dtype))

    def _over_source(self, x: Tensor, source: Tensor, bias: Tensor) -> Tensor:
        """From newest tokens to their sources (2, B, H, S, K): (N, D) -> (N, D)."""
        _, B, H, S, K = source.shape
        query = self.ask(x).view(B, -1, H, K).transpose(1, 2)
        key, value = source.view(2, B * H, S, K)
        return self.join_source(_attended(query, key, value, bias, x.dtype))


def _attended(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """(B, H, W, K) and two of (B * H, ?, K) -> (N, D)."""
    B, H, W, K = query.shape
    query = query.to(key.dtype).reshape(B * H, W, K)
    heads = attend_step(query, key, value, bias).view(B, H, W, K)
    return heads.transpose(1, 2).reshape(B * W, H * K).to(dtype)


def _attention_dtype(x: Tensor) -> torch.dtype:
    """On a CPU at least fp32: for its small products in bf16 oneDNN would generate code at every
    new length.
    """
    return torch.promote_types(x.dtype, torch.float32) if x.device.type == "cpu" else x.dtype


def _normalizer(norm: nn.LayerNorm) -> partial[Tensor]:
    return partial(
        torch.layer_norm,
        normalized_shape=norm.normalized_shape,
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
    )
