"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), section by section.

Shapes: `B` batch, `S` source length, `T` target length, `D` d_model, `H` heads, `K` head width, `V`
vocabulary, `N` hypotheses (batch x beam), `L` decoder layers.

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
    max_positions: int = 256  # of learned positions; sinusoidal ones have no end
    tie_embeddings: str = "all"


@dataclass(frozen=True)
class Dropout:
    """Shares of values set to zero while training: residual and embedding, attention weights, after
    the ReLU.
    """

    residual: float = 0.0
    attention: float = 0.0
    activation: float = 0.0


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Set a share `p` of `x` to zero and scale the rest (section 5.4).

    On the CPU the mask is cut from 64-bit random integers read as 16-bit ones, several times faster
    than one Bernoulli draw a value; `p` is met to 2**-16.
    """
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= round(p * 65536) - 32768
    return (x * (1 / (1 - p))) * kept.to(x.dtype)  # the factor itself has no place in bf16


def sinusoids(length: int, width: int) -> Tensor:
    """Position encodings (length, width): PE(pos, 2i) = sin(pos / 10000^(2i/D)), 2i+1 the cosine
    (section 3.5).
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    angles = position * torch.exp(pair * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1).float()


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1) over (B, H, ?, K); `mask` is True where attention may
    go.

    On the CPU explicit matrix products: for sentences they train several times faster than torch's
    fused kernel.
    """
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=p)
    weights = attention_weights(query, key, mask)
    return dropout(weights, p, p > 0) @ value


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(K)): what each query position takes from each key position, (B, H, ?,
    ?).
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights: Tensor = scores.softmax(-1)
    return weights


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2); `watch` is filled with its weights where a caller asks
    for them.
    """

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.rate = rates.attention
        # W^Q, W^K and W^V of all heads, one below the other: one matrix product where the input is
        # one
        self.project_in = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.project_out = nn.Linear(shape.d_model, shape.d_model)
        self.watch: list[Tensor] | None = None

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, T, parts * D) -> parts x (B, H, T, K)."""
        B, T, _ = x.shape
        return x.view(B, T, parts, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def project(self, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        """Project to some of query (0), key (1) and value (2): numbers `first` to `last` - 1."""
        D = x.shape[-1]
        rows = slice(first * D, last * D)
        projected = F.linear(x, self.project_in.weight[rows], self.project_in.bias[rows])
        return self.split(projected, last - first)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend and join the heads: (B, H, T, K) and two of (B, H, S, K) -> (B, T, D)."""
        if self.watch is not None:
            self.watch.append(attention_weights(query, key, mask))
        heads = attend(query, key, value, mask, self.rate if self.training else 0.0)
        joined: Tensor = self.project_out(heads.transpose(1, 2).flatten(2))
        return joined


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2)."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.d_model, shape.d_ff)
        self.outer = nn.Linear(shape.d_ff, shape.d_model)
        self.rate = rates.activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        out: Tensor = self.outer(dropout(self.inner(x).relu(), self.rate, self.training))
        return out


class Layer(nn.Module):
    """What encoder and decoder layers share: residual connections around normed blocks."""

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
        x = x + dropout(block, self.rate, self.training)
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
        """(B, S, D), (B, 1, 1, S) -> (B, S, D)."""
        q, k, v = self.self_attention.project(self.before(self.self_norm, x), 0, 3)
        x = self.after(self.self_norm, x, self.self_attention(q, k, v, mask))
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
        """(B, T, D), (T, T), (B, S, D), (B, 1, 1, S) -> (B, T, D)."""
        q, k, v = self.self_attention.project(self.before(self.self_norm, x), 0, 3)
        x = self.after(self.self_norm, x, self.self_attention(q, k, v, causal))
        return self.rest(x, self.cross_attention.project(memory, 1, 3), src_mask)

    def step(
        self, x: Tensor, past: Tensor, time: int, source: tuple[Tensor, ...], src_mask: Tensor
    ) -> Tensor:
        """One position: (N, 1, D) -> (N, 1, D); its key and value go to place `time` of `past` (2,
        N, H, T, K).

        The hypotheses of a sentence attend to its source together, as if they were positions of one
        target.
        """
        q, k, v = self.self_attention.project(self.before(self.self_norm, x), 0, 3)
        past[0, :, :, time : time + 1], past[1, :, :, time : time + 1] = k, v
        seen = past[:, :, :, : time + 1]
        x = self.after(self.self_norm, x, self.self_attention(q, seen[0], seen[1], None))
        B, D = len(src_mask), x.shape[-1]
        return self.rest(x.view(B, -1, D), source, src_mask).view(-1, 1, D)

    def rest(self, x: Tensor, source: tuple[Tensor, ...], src_mask: Tensor) -> Tensor:
        """Attend to the source's keys and values, then feed forward."""
        (q,) = self.cross_attention.project(self.before(self.cross_norm, x), 0, 1)
        x = self.after(self.cross_norm, x, self.cross_attention(q, *source, src_mask))
        return self.after(self.feed_norm, x, self.feed_forward(self.before(self.feed_norm, x)))


@dataclass(frozen=True)
class DecoderState:
    """What decoding has seen of `N` hypotheses of `B` sentences, N / B each.

    `past` (L, 2, N, H, T', K) holds keys and values with `time` places filled, `source` (L, 2, B,
    H, S, K) those of the source, `src_mask` (B, 1, 1, S) is True at its real tokens.
    """

    past: Tensor
    time: int
    source: Tensor
    src_mask: Tensor

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "DecoderState":
        """Take some of the N hypotheses, in a new order, and (None: all) some of the B
        sentences.
        """
        past = self.past.index_select(2, rows)
        if sentences is None:
            return DecoderState(past, self.time, self.source, self.src_mask)
        source = self.source.index_select(2, sentences)
        return DecoderState(past, self.time, source, self.src_mask.index_select(0, sentences))


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
        """One matrix for source, target and output (section 3.4), or two, or three; and the
        positions.
        """
        self.tgt_embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        if shape.tie_embeddings == "all":
            self.src_embedding = self.tgt_embedding
        else:
            self.src_embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.output = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        if shape.tie_embeddings != "none":
            self.output.weight = self.tgt_embedding.weight
        if shape.positions == "learned":
            self.src_positions = nn.Embedding(shape.max_positions, shape.d_model)
            self.tgt_positions = nn.Embedding(shape.max_positions, shape.d_model)
        else:
            self.register_buffer(
                "sinusoids",
                sinusoids(max(512, shape.max_positions), shape.d_model),
                persistent=False,
            )

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # embeddings are scaled by sqrt(D) on the way in, so that this start gives them a variance
        # of 1
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
        """Trainable values, shared ones counted once."""
        return sum(p.numel() for p in self.parameters())

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
        x = self._embed(src, self.src_embedding, "src", 0)
        for layer in self.encoder_layers:
            x = layer(x, src_mask)
        return self.encoder_norm(x), src_mask

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(B, T), (B, S, D), (B, 1, 1, S) -> (B, T, D). Padding stands behind every real token: no
        mask for it.
        """
        T = tgt_in.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=tgt_in.device).tril()
        x = self._embed(tgt_in, self.tgt_embedding, "tgt", 0)
        for layer in self.decoder_layers:
            x = layer(x, causal, memory, src_mask)
        hidden: Tensor = self.decoder_norm(x)
        return hidden

    def start(self, memory: Tensor, src_mask: Tensor) -> DecoderState:
        """Project the source's keys and values once: (B, S, D), (B, 1, 1, S) -> state of B empty
        hypotheses.
        """
        stacked = torch.stack(
            [
                torch.stack(layer.cross_attention.project(memory, 1, 3))
                for layer in self.decoder_layers
            ]
        )
        L, _, B, H, _, K = stacked.shape
        return DecoderState(stacked.new_empty(L, 2, B, H, 0, K), 0, stacked, src_mask)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities of the next token in fp32: (N,), state -> (N, V), state one position
        on.

        The given state's room is written into: go on from the returned one.
        """
        past, time = state.past, state.time
        if time == past.shape[4]:
            room = past.new_empty(*past.shape[:4], max(16, time), past.shape[5])
            past = torch.cat((past, room), 4)
        x = self._embed(tokens[:, None], self.tgt_embedding, "tgt", time)
        for number, layer in enumerate(self.decoder_layers):
            source = state.source[number].unbind(0)
            x = layer.step(x, past[number], time, source, state.src_mask)
        logits = self.project(self.decoder_norm(x[:, 0]))
        after = DecoderState(past, time + 1, state.source, state.src_mask)
        return logits.float().log_softmax(-1), after

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

    def _embed(self, ids: Tensor, embedding: nn.Embedding, side: str, start: int) -> Tensor:
        """Scaled embeddings plus positions, with dropout (sections 3.4, 3.5, 5.4): (B, T) -> (B, T,
        D).

        The matrix stays in fp32, so that the gradients of frequent tokens are summed up there.
        """
        x = embedding(ids) * self.shape.d_model**0.5
        x = x + self._positions(side, start, ids.shape[1])
        return dropout(x.to(self.dtype), self.rate, self.training)

    def _positions(self, side: str, start: int, length: int) -> Tensor:
        """Position encodings of places `start` to `start + length` - 1, (length, D)."""
        if self.shape.positions == "learned":
            table = self.src_positions if side == "src" else self.tgt_positions
            if start + length > self.shape.max_positions:
                raise ValueError(
                    f"{start + length} positions, but {self.shape.max_positions} learned"
                )
            rows: Tensor = table.weight[start : start + length] * self.shape.d_model**0.5
            return rows
        if start + length > self.sinusoids.shape[0]:
            longer = sinusoids(2 * (start + length), self.shape.d_model)
            self.sinusoids = longer.to(self.sinusoids.device)
        return self.sinusoids[start : start + length]


def set_compute_dtype(model: Transformer, dtype: torch.dtype) -> None:
    """Have the layers compute in `dtype`; embeddings and positions stay in fp32."""
    layers: tuple[nn.Module, ...] = (
        model.encoder,
        model.decoder,
        model.encoder_norm,
        model.decoder_norm,
    )
    for module in layers:
        module.to(dtype)
