"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), section by section.

Shapes: `B` batch, `S` source length, `T` target length, `L` either of the two, `D` d_model, `H`
heads, `K` head width, `V` vocabulary, `R` the rows of a flattened batch, `M` those of its memory.

Departures from the paper, each the field's practice: weights start as in fairseq (Xavier, the
projections of query, key and value as one matrix), dropout may also fall on attention weights and
after the ReLU, and `norm="pre"` puts layer norm before each block, with one more at the end of each
stack.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.attention import attend, attend_rows, attention_weights, dropout

# See `Transformer._rows`.
ROWS = 128


@dataclass(frozen=True)
class Shape:
    """What makes two models interchangeable: every setting that inference needs."""

    vocab_size: int
    pad_id: int
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    norm: str = "post"
    positions: str = "sinusoidal"
    max_positions: int = 256  # of learned positions; sinusoidal ones are unlimited
    tie_embeddings: str = "all"


@dataclass(frozen=True)
class Dropout:
    """Shares of values set to zero while training: residual and embedding, attention weights, after
    the ReLU.
    """

    residual: float = 0.0
    attention: float = 0.0
    activation: float = 0.0


def sinusoids(length: int, width: int) -> Tensor:
    """Position encodings (length, width): PE(pos, 2i) = sin(pos / 10000^(2i/D)), 2i+1 the cosine
    (section 3.5).
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    angles = position * torch.exp(pair * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1).float()


def _embedding(count: int, width: int) -> nn.Embedding:
    """An embedding without values, for `Transformer._initialise` to fill."""
    return nn.Embedding(count, width, _weight=torch.empty(count, width))


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2); its weights go to `watch` where a caller asks."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.rate = rates.attention
        # W^Q, W^K and W^V of all heads, stacked: one product if the input is the same
        self.project_in = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.project_out = nn.Linear(shape.d_model, shape.d_model)
        self.watch: list[Tensor] | None = None

    def project(self, x: Tensor, first: int, last: int) -> Tensor:
        """Project to some of query (0), key (1) and value (2), numbers `first` to `last` - 1: (R,
        D) -> (R, (last - first) * D).
        """
        if (first, last) == (0, 3):  # the gradient of a slice would be a full matrix with zeros
            whole: Tensor = self.project_in(x)
            return whole
        rows = slice(first * x.shape[-1], last * x.shape[-1])
        return F.linear(x, self.project_in.weight[rows], self.project_in.bias[rows])

    def heads(self, rows: Tensor, B: int, L: int) -> tuple[Tensor, ...]:
        """Cut projected rows into heads: (R, parts * D) -> parts x (B, H, L, K)."""
        width = self.project_out.in_features
        cut = rows[: B * L].view(B, L, -1, self.num_heads, width // self.num_heads)
        return tuple(part.transpose(1, 2) for part in cut.unbind(2))

    def over(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attend and join the heads: (B, H, T, K) and two of (B, H, S, K) -> (B * T, D)."""
        if self.watch is not None:
            self.watch.append(attention_weights(query, key, mask))
        heads = attend(query, key, value, mask, self.rate if self.training else 0.0)
        joined: Tensor = self.project_out(heads.transpose(1, 2).flatten(2).flatten(0, 1))
        return joined

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor, B: int, T: int) -> Tensor:
        """Attend from each position to its own sentence or to its memory: rows (R, D) -> (R, D).

        The rows are B sentences of T tokens, those of `memory` B sentences of S; rows after these
        are padding. `mask`, (B, 1, 1, S) or (T, S), is True where attention is allowed.
        """
        query = self.project(x, 0, 3 if memory is None else 1)
        source = None if memory is None else self.project(memory, 1, 3)
        S, p = mask.shape[-1], self.rate if self.training else 0.0
        if x.device.type == "cpu" and self.watch is None and not torch.compiler.is_compiling():
            sizes = B, T, S, self.num_heads
            out: Tensor = self.project_out(attend_rows(query, source, sizes, mask, p))
            return out
        q, *rest = self.heads(query, B, T)
        k, v = rest if source is None else self.heads(source, B, S)
        attended = self.over(q, k, v, mask)
        filling = len(x) - B * T
        return F.pad(attended, (0, 0, 0, filling)) if filling else attended


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2)."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.d_model, shape.d_ff)
        self.outer = nn.Linear(shape.d_ff, shape.d_model)
        self.rate = rates.activation

    def forward(self, x: Tensor) -> Tensor:
        """(R, D) -> (R, D)."""
        out: Tensor = self.outer(dropout(self.inner(x).relu_(), self.rate, self.training))
        return out


class Layer(nn.Module):
    """Residual connections around normalized blocks, for encoder and decoder layers."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__()
        self.pre_norm = shape.norm == "pre"
        self.rate = rates.residual

    def before(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """Input of a block: x, or LayerNorm(x) with pre-norm."""
        normed: Tensor = norm(x) if self.pre_norm else x
        return normed

    def after(self, norm: nn.LayerNorm, x: Tensor, block: Tensor) -> Tensor:
        """LayerNorm(x + Sublayer(x)) as in section 3.1, or x + Sublayer(LayerNorm(x)) with
        pre-norm.
        """
        x = dropout(block, self.rate, self.training).add_(x)
        normed: Tensor = x if self.pre_norm else norm(x)
        return normed


class EncoderLayer(Layer):
    """Self-attention and feed-forward."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__(shape, rates)
        self.self_attention = Attention(shape, rates)
        self.self_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, rates)
        self.feed_norm = nn.LayerNorm(shape.d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(R, D), (B, 1, 1, S) -> (R, D)."""
        B, S = len(mask), mask.shape[-1]
        block = self.self_attention(self.before(self.self_norm, x), None, mask, B, S)
        x = self.after(self.self_norm, x, block)
        return self.after(self.feed_norm, x, self.feed_forward(self.before(self.feed_norm, x)))


class DecoderLayer(Layer):
    """Masked self-attention, attention over the source, and feed-forward."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__(shape, rates)
        self.self_attention = Attention(shape, rates)
        self.self_norm = nn.LayerNorm(shape.d_model)
        self.cross_attention = Attention(shape, rates)
        self.cross_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, rates)
        self.feed_norm = nn.LayerNorm(shape.d_model)

    def forward(self, x: Tensor, causal: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(R, D), (T, T), (M, D), (B, 1, 1, S) -> (R, D)."""
        B, T = len(src_mask), len(causal)
        block = self.self_attention(self.before(self.self_norm, x), None, causal, B, T)
        x = self.after(self.self_norm, x, block)
        block = self.cross_attention(self.before(self.cross_norm, x), memory, src_mask, B, T)
        x = self.after(self.cross_norm, x, block)
        return self.after(self.feed_norm, x, self.feed_forward(self.before(self.feed_norm, x)))


class Transformer(nn.Module):
    """Encoder, decoder, embeddings and output projection."""

    sinusoids: Tensor

    def __init__(self, shape: Shape, rates: Dropout | None = None) -> None:
        super().__init__()
        rates = rates or Dropout()
        self.shape = shape
        self.rate = rates.residual
        self._build_embeddings(shape)
        self.encoder = nn.ModuleList(
            EncoderLayer(shape, rates) for _ in range(shape.num_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(shape, rates) for _ in range(shape.num_decoder_layers)
        )
        last = nn.LayerNorm if shape.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = last(shape.d_model), last(shape.d_model)
        self._initialise()

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
        """Copy weights by the names of `named_parameters`; a shared matrix has one name."""
        copies = {name: weight.clone() for name, weight in weights.items()}
        self.load_state_dict(copies, strict=False, assign=True)
        self._tie_output()
        self._fill_sinusoids()

    def _fill_sinusoids(self) -> None:
        if self.shape.positions == "sinusoidal":
            self.sinusoids = sinusoids(*self.sinusoids.shape)

    def _initialise(self) -> None:
        if self.output.weight.is_meta:  # only shapes: computing there would load torch's compiler
            return
        self._fill_sinusoids()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # embeddings are scaled by sqrt(D) on the way in: this start gives them a variance of 1
        for embedding in (m for m in self.modules() if isinstance(m, nn.Embedding)):
            nn.init.normal_(embedding.weight, std=self.shape.d_model**-0.5)
        nn.init.normal_(self.output.weight, std=self.shape.d_model**-0.5)

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder's layers, first to last."""
        return [layer for layer in self.encoder if isinstance(layer, EncoderLayer)]

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers, first to last."""
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    @property
    def num_parameters(self) -> int:
        """Number of trainable values; shared ones count once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def hidden_matrices(self) -> dict[str, int]:
        """Names of the layers' matrices, and how many matrices are stacked in each: 3 for W^Q, W^K
        and W^V.
        """
        return {
            name: 3 if name.endswith("project_in.weight") else 1
            for name, parameter in self.named_parameters()
            if name.startswith(("encoder.", "decoder.")) and parameter.dim() == 2
        }

    @property
    def dtype(self) -> torch.dtype:
        """Type that activations are computed in."""
        return self.encoder_layers[0].feed_norm.weight.dtype

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits of every next token: (B, S), (B, T) -> (B, T, V)."""
        return self.project(self.hidden(src, tgt_in))

    def hidden(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """The decoder's output before the projection to the vocabulary: (B, S), (B, T) -> (B, T,
        D).
        """
        return self.decode(tgt_in, *self.encode(src))

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        return F.linear(hidden, self.output.weight.to(hidden.dtype))

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) -> memory (B, S, D) and src_mask (B, 1, 1, S), True at real tokens."""
        src_mask = (src != self.shape.pad_id)[:, None, None, :]
        x = self._rows(self._embed(src, self.src_embedding, "src", 0))
        for layer in self.encoder_layers:
            x = layer(x, src_mask)
        return self.encoder_norm(x)[: src.numel()].view(*src.shape, -1), src_mask

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(B, T), (B, S, D), (B, 1, 1, S) -> (B, T, D). Padding comes after every real token, so it
        needs no mask.
        """
        T = tgt_in.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=tgt_in.device).tril()
        x = self._rows(self._embed(tgt_in, self.tgt_embedding, "tgt", 0))
        memory = self._rows(memory)
        for layer in self.decoder_layers:
            x = layer(x, causal, memory, src_mask)
        hidden: Tensor = self.decoder_norm(x)[: tgt_in.numel()].view(*tgt_in.shape, -1)
        return hidden

    def attention_maps(self, src: Tensor, tgt_in: Tensor) -> dict[str, list[Tensor]]:
        """Attention weights of every layer, each (B, H, ?, ?): encoder self, decoder self,
        encoder-decoder.
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

    def _rows(self, x: Tensor) -> Tensor:
        """Flatten a batch to rows: (B, L, D) -> (R, D). In bf16 on the CPU zero rows fill it up to
        a multiple of `ROWS`: oneDNN generates code for every new shape.
        """
        rows = x.flatten(0, 1)
        if x.device.type != "cpu" or x.dtype != torch.bfloat16 or torch.compiler.is_compiling():
            return rows
        return F.pad(rows, (0, 0, 0, -len(rows) % ROWS))

    def _embed(self, ids: Tensor, embedding: nn.Embedding, side: str, start: int) -> Tensor:
        """Scaled embeddings plus positions, with dropout (sections 3.4, 3.5, 5.4): (B, T) -> (B, T,
        D).

        The matrix stays in fp32, so that the gradients of frequent tokens are summed up there.
        """
        x = embedding(ids) * self.shape.d_model**0.5
        x = x + self.positions(side, start, ids.shape[1])
        return dropout(x.to(self.dtype), self.rate, self.training)

    def positions(self, side: str, start: int, length: int) -> Tensor:
        """Positional encodings of positions `start` to `start + length` - 1, (length, D)."""
        if self.shape.positions == "learned":
            table = self.src_positions if side == "src" else self.tgt_positions
            if start + length > self.shape.max_positions:
                raise ValueError(
                    f"{start + length} positions, but {self.shape.max_positions} learned"
                )
            rows: Tensor = table.weight[start : start + length] * self.shape.d_model**0.5
            return rows
        encodings = self.sinusoids
        if start + length > len(encodings):  # several threads may be here: each keeps its own
            encodings = sinusoids(2 * (start + length), self.shape.d_model).to(encodings.device)
            self.sinusoids = encodings
        return encodings[start : start + length]


def set_compute_dtype(model: Transformer, dtype: torch.dtype) -> None:
    """Make the layers compute in `dtype`; embeddings and positions stay in fp32."""
    layers: tuple[nn.Module, ...] = (
        model.encoder,
        model.decoder,
        model.encoder_norm,
        model.decoder_norm,
    )
    for module in layers:
        module.to(dtype)
