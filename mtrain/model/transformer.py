"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), section by section.

Shapes: `B` batch, `S` source length, `T` target length, `L` either of the two, `D` d_model, `H`
heads, `V` vocabulary.

Departures from the paper, each the field's practice: weights start as in fairseq (Xavier, the
projections of query, key and value as one matrix), dropout may also be applied to attention
weights and after the ReLU, and `norm="pre"` puts layer norm before each block, with one more at
the end of each stack.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.attention import Attention


@dataclass(frozen=True)
class Shape:
    """The settings that inference needs; models of equal shape are interchangeable."""

    vocab_size: int
    pad_id: int
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    norm: str = "post"
    positions: str = "sinusoidal"
    max_positions: int = 256  # of learned positions; sinusoidal ones have no end
    tie_embeddings: str = "all"


@dataclass(frozen=True)
class Dropout:
    """Fractions of values set to zero while training: of residuals and embeddings, of attention
    weights, and after the ReLU.
    """

    residual: float = 0.0
    attention: float = 0.0
    activation: float = 0.0


def fixed_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return the function that maps (N, in) to (N, out) by a fixed matrix (out, in)."""
    return partial(F.linear, weight=weight.detach(), bias=bias)


class Parts(NamedTuple):
    """What a model is built of; a kind of device may have its own."""

    attention: type[Attention] = Attention
    dropout: type[nn.Dropout] = nn.Dropout
    # of decoding: products with fixed matrices, and attention (G, W, K), (G, S, K) -> (G, W, K)
    product: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]] = fixed_product
    attend_step: Callable[..., Tensor] = F.scaled_dot_product_attention


def sinusoids(length: int, width: int) -> Tensor:
    """Position encodings (length, width): PE(pos, 2i) = sin(pos / 10000^(2i/D)), 2i+1 the cosine
    (section 3.5).
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    angles = position * torch.exp(pair * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1).float()


def _embedding(count: int, width: int) -> nn.Embedding:
    """Return an embedding without values, for `Transformer._initialise` to fill."""
    return nn.Embedding(count, width, _weight=torch.empty(count, width))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2)."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.d_model, shape.d_ff)
        self.outer = nn.Linear(shape.d_ff, shape.d_model)
        self.dropout = parts.dropout(rates.activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        out: Tensor = self.outer(self.dropout(self.inner(x).relu_()))
        return out


class Layer(nn.Module):
    """Residual connections around blocks with layer norm, for encoder and decoder layers."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__()
        self.pre_norm = shape.norm == "pre"
        self.dropout = parts.dropout(rates.residual)

    def before(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """Return the input of a block: x, or LayerNorm(x) with pre-norm."""
        normed: Tensor = norm(x) if self.pre_norm else x
        return normed

    def after(self, norm: nn.LayerNorm, x: Tensor, block: Tensor) -> Tensor:
        """LayerNorm(x + Sublayer(x)) as in section 3.1, or x + Sublayer(LayerNorm(x)) with
        pre-norm.
        """
        x = self.dropout(block).add_(x)
        normed: Tensor = x if self.pre_norm else norm(x)
        return normed


class EncoderLayer(Layer):
    """Self-attention and feed-forward."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__(shape, rates, parts)
        self.self_attention = parts.attention(shape.d_model, shape.num_heads, rates.attention)
        self.self_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, rates, parts)
        self.feed_norm = nn.LayerNorm(shape.d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D), (B, 1, 1, S) -> (B, S, D)."""
        x = self.after(
            self.self_norm, x, self.self_attention(self.before(self.self_norm, x), None, mask)
        )
        return self.after(self.feed_norm, x, self.feed_forward(self.before(self.feed_norm, x)))


class DecoderLayer(Layer):
    """Masked self-attention, attention over the source, and feed-forward."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__(shape, rates, parts)
        self.self_attention = parts.attention(shape.d_model, shape.num_heads, rates.attention)
        self.self_norm = nn.LayerNorm(shape.d_model)
        self.cross_attention = parts.attention(shape.d_model, shape.num_heads, rates.attention)
        self.cross_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, rates, parts)
        self.feed_norm = nn.LayerNorm(shape.d_model)

    def forward(self, x: Tensor, causal: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(B, T, D), (T, T), (B, S, D), (B, 1, 1, S) -> (B, T, D)."""
        block = self.self_attention(self.before(self.self_norm, x), None, causal)
        x = self.after(self.self_norm, x, block)
        block = self.cross_attention(self.before(self.cross_norm, x), memory, src_mask)
        x = self.after(self.cross_norm, x, block)
        return self.after(self.feed_norm, x, self.feed_forward(self.before(self.feed_norm, x)))


class Transformer(nn.Module):
    """Encoder, decoder, embeddings and output projection."""

    parts = Parts()
    sinusoids: Tensor

    def __init__(self, shape: Shape, rates: Dropout | None = None) -> None:
        super().__init__()
        rates, parts = rates or Dropout(), self.parts
        self.shape = shape
        self.dropout = parts.dropout(rates.residual)
        self._build_embeddings(shape)
        self.encoder = nn.ModuleList(
            EncoderLayer(shape, rates, parts) for _ in range(shape.num_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(shape, rates, parts) for _ in range(shape.num_decoder_layers)
        )
        last = nn.LayerNorm if shape.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = last(shape.d_model), last(shape.d_model)
        _initialise(self)

    def _build_embeddings(self, shape: Shape) -> None:
        """One matrix for source, target and output (section 3.4), or more; and the positions."""
        self.tgt_embedding = _embedding(shape.vocab_size, shape.d_model)
        if shape.tie_embeddings == "all":
            self.src_embedding = self.tgt_embedding
        else:
            self.src_embedding = _embedding(shape.vocab_size, shape.d_model)
        self.output = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self._tie_output()
        if shape.positions == "learned":
            self.src_positions = _embedding(shape.max_positions, shape.d_model)
            self.tgt_positions = _embedding(shape.max_positions, shape.d_model)
        else:
            table = torch.empty(max(512, shape.max_positions), shape.d_model)
            self.register_buffer("sinusoids", table, persistent=False)

    def _tie_output(self) -> None:
        if self.shape.tie_embeddings != "none":
            self.output.weight = self.tgt_embedding.weight

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights, by the names of `named_parameters`: a shared matrix has one name."""
        copies = {name: weight.clone() for name, weight in weights.items()}
        self.load_state_dict(copies, strict=False, assign=True)
        self._tie_output()
        _fill_sinusoids(self)

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        """Layers of the encoder, first to last."""
        return [layer for layer in self.encoder if isinstance(layer, EncoderLayer)]

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """Layers of the decoder, first to last."""
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    @property
    def num_parameters(self) -> int:
        """Number of trainable values; shared ones count once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def hidden_matrices(self) -> dict[str, int]:
        """Names of the layers' matrices, each with the number of matrices stacked in it: 3 are
        W^Q, W^K and W^V.
        """
        return {
            name: 3 if name.endswith("project_in.weight") else 1
            for name, parameter in self.named_parameters()
            if name.startswith(("encoder.", "decoder.")) and parameter.dim() == 2
        }

    @property
    def dtype(self) -> torch.dtype:
        """Type of activations."""
        return self.encoder_layers[0].feed_norm.weight.dtype

    @property
    def attention_dtype(self) -> torch.dtype:
        """Type of queries, keys and values in decoding."""
        return self.dtype

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits of every next token: (B, S), (B, T) -> (B, T, V)."""
        return self.project(self.hidden(src, tgt_in))

    def hidden(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Output of the decoder, without the projection to the vocabulary: (B, S), (B, T) -> (B,
        T, D).
        """
        return self.decode(tgt_in, *self.encode(src))

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        return F.linear(hidden, self.output.weight.to(hidden.dtype))

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) -> memory (B, S, D) and src_mask (B, 1, 1, S), True at real tokens."""
        src_mask = (src != self.shape.pad_id)[:, None, None, :]
        return self.run_encoder(self._embed(src, self.src_embedding, "src"), src_mask), src_mask

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(B, T), (B, S, D), (B, 1, 1, S) -> (B, T, D). Padding follows the real tokens, so the
        causal mask hides it from them.
        """
        T = tgt_in.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=tgt_in.device).tril()
        x = self._embed(tgt_in, self.tgt_embedding, "tgt")
        return self.run_decoder(x, causal, memory, src_mask)

    def run_encoder(self, x: Tensor, src_mask: Tensor) -> Tensor:
        """Apply the encoder's layers: (B, S, D), (B, 1, 1, S) -> (B, S, D)."""
        for layer in self.encoder_layers:
            x = layer(x, src_mask)
        out: Tensor = self.encoder_norm(x)
        return out

    def run_decoder(self, x: Tensor, causal: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """Apply the decoder's layers: (B, T, D), (T, T), (B, S, D), (B, 1, 1, S) -> (B, T, D)."""
        for layer in self.decoder_layers:
            x = layer(x, causal, memory, src_mask)
        out: Tensor = self.decoder_norm(x)
        return out

    def attention_maps(self, src: Tensor, tgt_in: Tensor) -> dict[str, list[Tensor]]:
        """Return the attention weights of every layer: "encoder" (B, H, S, S), "decoder" (B, H, T,
        T) and "cross" (B, H, T, S).
        """
        groups = {
            "encoder": [layer.self_attention for layer in self.encoder_layers],
            "decoder": [layer.self_attention for layer in self.decoder_layers],
            "cross": [layer.cross_attention for layer in self.decoder_layers],
        }
        maps: dict[str, list[Tensor]] = {name: [] for name in groups}
        for name, modules in groups.items():
            for module in modules:
                module.watch = maps[name]
        try:
            self.hidden(src, tgt_in)
        finally:
            for module in (module for modules in groups.values() for module in modules):
                module.watch = None
        return maps

    def _embed(self, ids: Tensor, embedding: nn.Embedding, side: str) -> Tensor:
        """Scaled embeddings plus positions, with dropout (sections 3.4, 3.5, 5.4): (B, L) -> (B, L,
        D).

        The matrix stays in fp32, so that the gradients of frequent tokens are summed in fp32.
        """
        x = embedding(ids) * self.shape.d_model**0.5
        x = x + self.positions(side, 0, ids.shape[1])
        embedded: Tensor = self.dropout(x.to(self.dtype))
        return embedded

    def positions(self, side: str, start: int, length: int) -> Tensor:
        """Return the encodings of positions `start` to `start + length` - 1: (length, D)."""
        if self.shape.positions == "learned":
            table = self.src_positions if side == "src" else self.tgt_positions
            if start + length > self.shape.max_positions:
                raise ValueError(
                    f"{start + length} positions, but {self.shape.max_positions} learned"
                )
            rows: Tensor = table.weight[start : start + length] * self.shape.d_model**0.5
            return rows
        encodings = self.sinusoids
        if start + length > len(encodings):  # several threads may do this: each uses its own
            encodings = sinusoids(2 * (start + length), self.shape.d_model).to(encodings.device)
            self.sinusoids = encodings
        return encodings[start : start + length]


def set_compute_dtype(model: Transformer, dtype: torch.dtype) -> None:
    """Make the layers compute in `dtype`; embeddings and positions stay in fp32."""
    for module in (model.encoder, model.decoder, model.encoder_norm, model.decoder_norm):
        module.to(dtype)


def _fill_sinusoids(model: Transformer) -> None:
    if model.shape.positions == "sinusoidal":
        model.sinusoids = sinusoids(*model.sinusoids.shape)


def _initialise(model: Transformer) -> None:
    if model.output.weight.is_meta:  # shapes only: computing there would load torch's compiler
        return
    _fill_sinusoids(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    # embeddings are multiplied by sqrt(D): this start gives them a variance of 1
    for embedding in (m for m in model.modules() if isinstance(m, nn.Embedding)):
        nn.init.normal_(embedding.weight, std=model.shape.d_model**-0.5)
    nn.init.normal_(model.output.weight, std=model.shape.d_model**-0.5)
