"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), section by section.

Shapes: `B` batch, `S` source length, `T` target length, `L` either of the two, `D` d_model, `H`
heads, `K` head width (the paper's d_k and d_v), `V` vocabulary.

Departures from the paper, all common practice: weights are initialized as in fairseq (Xavier, the
projections of query, key and value as one matrix), dropout may also be applied to attention
weights and after the ReLU, and `norm="pre"` puts layer norm before each sublayer, with one more
at the end of each stack.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import get_ident
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A value for each token of src (B, S), and for each of tgt_in (B, T).
PerToken = tuple[Tensor, Tensor]
# Names of the weights (V, D); tied matrices are listed under the first of their names only.
VOCABULARY_MATRICES = ("tgt_embedding.weight", "src_embedding.weight", "output.weight")


@dataclass(frozen=True)
class Shape:
    """The settings that inference needs; models of equal shape can exchange weights."""

    vocab_size: int
    pad_id: int
    d_model: int
    num_heads: int
    d_ff: int
    num_encoder_layers: int
    num_decoder_layers: int
    norm: str
    positions: str
    max_positions: int  # of learned positions; sinusoidal ones are unlimited
    tie_embeddings: str


@dataclass(frozen=True)
class Dropout:
    """Fractions of values set to zero while training: of residuals and embeddings, of attention
    weights, and after the ReLU.
    """

    residual: float = 0.0
    attention: float = 0.0
    activation: float = 0.0


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, p: float) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1): query (B, H, T, K), key and value (B, H, S, K) ->
    (B, H, T, K). `mask` is True where attention is allowed; a two-dimensional mask must be causal.
    """
    if query.device.type == "cpu":  # torch's fused kernel is faster only for longer sequences
        return F.dropout(attention_weights(query, key, mask), p) @ value
    causal = mask.dim() == 2
    return F.scaled_dot_product_attention(
        query, key, value, None if causal else mask, p, is_causal=causal
    )


def attention_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(K)), the weight of each key for each query: (B, H, T, S)."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    weights: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2). `recorded` maps threads to lists for the weights."""

    def __init__(self, shape: Shape, rates: Dropout) -> None:
        super().__init__()
        self.num_heads, self.rate = shape.num_heads, rates.attention
        # W^Q, W^K and W^V of all heads, stacked in rows: one product for self-attention
        self.project_in = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.project_out = nn.Linear(shape.d_model, shape.d_model)  # W^O
        self.recorded: dict[int, list[Tensor]] = {}

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        """Attend from x to `memory` (None: to x itself): (B, T, D), (B, S, D) -> (B, T, D). `mask`,
        (B, 1, 1 or T, S) or (T, S), is True where attention is allowed.
        """
        if memory is None:
            q, k, v = self.heads(self.project(x, 0, 3))
        else:
            (q,), (k, v) = self.heads(self.project(x, 0, 1)), self.heads(self.project(memory, 1, 3))
        if self.recorded and get_ident() in self.recorded:
            self.recorded[get_ident()].append(attention_weights(q, k, mask))
        heads = attend(q, k, v, mask, self.rate if self.training else 0.0)
        out: Tensor = self.project_out(heads.transpose(1, 2).flatten(2))
        return out

    def project(self, x: Tensor, first: int, last: int) -> Tensor:
        """Apply projections number `first` to `last` - 1, of query (0), key (1) and value (2):
        (..., D) -> (..., (last - first) * D).
        """
        # avoid slicing if possible: the gradient of a slice is another full matrix, with zeros
        if (first, last) == (0, 3):
            return F.linear(x, self.project_in.weight, self.project_in.bias)
        rows = slice(first * x.shape[-1], last * x.shape[-1])
        return F.linear(x, self.project_in.weight[rows], self.project_in.bias[rows])

    def heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """Split into heads: (B, L, parts * D) -> parts x (B, H, L, K)."""
        B, L, _ = projected.shape
        width = self.project_out.in_features // self.num_heads
        parts = projected.view(B, L, -1, self.num_heads, width)
        return tuple(part.transpose(1, 2) for part in parts.unbind(2))


def attend_step(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, out: Tensor) -> None:
    """Equation 1 without gradients, for the newest tokens of W hypotheses or W tokens of a source,
    with G = B x H: queries (G, W, K), keys (G, K, S), values (G, S, K), and a bias that broadcasts
    to (G, W, S) -> (G, W, K), in `out`. For few queries this is faster than torch's fused kernels.
    """
    scores = torch.baddbmm(bias, query, key, alpha=query.shape[-1] ** -0.5)
    torch.bmm(scores.softmax(-1), value, out=out)


def fixed_product(weight: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """Return a function that multiplies by a fixed matrix: (N, in) -> (N, out), into `out=`."""
    weight = weight.detach().t()
    if bias is None:
        return partial(torch.mm, mat2=weight)
    return partial(torch.addmm, bias.detach(), mat2=weight)


class Parts(NamedTuple):
    """Building blocks of a model; a subclass for a kind of device may replace them."""

    attention: type[Attention] = Attention
    dropout: type[nn.Dropout] = nn.Dropout
    # for decoding: products with fixed matrices, and the number of rows to pad a number of rows to
    product: Callable[[Tensor, Tensor | None], Callable[..., Tensor]] = fixed_product
    pad_rows: Callable[[int], int] = int


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
    """A layer of sublayers, with a residual connection and layer norm around each (section 3.1)."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__()
        self.pre_norm = shape.norm == "pre"
        self.dropout = parts.dropout(rates.residual)

    def residual(
        self, norm: nn.LayerNorm, x: Tensor, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) with pre-norm."""
        out = self.dropout(sublayer(norm(x) if self.pre_norm else x))
        added: Tensor = out.add_(x)
        return added if self.pre_norm else norm(added)


class EncoderLayer(Layer):
    """Self-attention and feed-forward."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__(shape, rates, parts)
        self.self_attention = parts.attention(shape, rates)
        self.self_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, rates, parts)
        self.feed_norm = nn.LayerNorm(shape.d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D), (B, 1, 1 or S, S) -> (B, S, D)."""
        x = self.residual(self.self_norm, x, lambda x: self.self_attention(x, None, mask))
        return self.residual(self.feed_norm, x, self.feed_forward)


class DecoderLayer(Layer):
    """Masked self-attention, attention over the source, and feed-forward."""

    def __init__(self, shape: Shape, rates: Dropout, parts: Parts) -> None:
        super().__init__(shape, rates, parts)
        self.self_attention = parts.attention(shape, rates)
        self.self_norm = nn.LayerNorm(shape.d_model)
        self.cross_attention = parts.attention(shape, rates)
        self.cross_norm = nn.LayerNorm(shape.d_model)
        self.feed_forward = FeedForward(shape, rates, parts)
        self.feed_norm = nn.LayerNorm(shape.d_model)

    def forward(self, x: Tensor, causal: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """(B, T, D), (T, T) or (B, 1, T, T), (B, S, D), (B, 1, 1 or T, S) -> (B, T, D)."""
        x = self.residual(self.self_norm, x, lambda x: self.self_attention(x, None, causal))
        x = self.residual(self.cross_norm, x, lambda x: self.cross_attention(x, memory, src_mask))
        return self.residual(self.feed_norm, x, self.feed_forward)


def sinusoids(start: int, end: int, width: int) -> Tensor:
    """Encodings of positions `start` to `end` - 1, (end - start, width): PE(pos, 2i) =
    sin(pos / 10000^(2i/D)), 2i+1 the cosine (section 3.5).
    """
    position = torch.arange(start, end, dtype=torch.float64, device="cpu")[:, None]
    pair = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
    angles = position * torch.exp(pair * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1).float()


def _embedding(count: int, width: int) -> nn.Embedding:
    """Return an embedding without values, for `_initialize` to fill."""
    return nn.Embedding(count, width, _weight=torch.empty(count, width))


class Transformer(nn.Module):
    """Encoder, decoder, embeddings and output projection."""

    parts = Parts()
    sinusoids: Tensor
    src_positions: nn.Embedding | None
    tgt_positions: nn.Embedding | None

    def __init__(self, shape: Shape, rates: Dropout | None = None) -> None:
        super().__init__()
        self.shape, parts, rates = shape, self.parts, rates or Dropout()
        self.dropout = parts.dropout(rates.residual)
        self._build_embeddings(shape)
        self.encoder_layers = [
            EncoderLayer(shape, rates, parts) for _ in range(shape.num_encoder_layers)
        ]
        self.decoder_layers = [
            DecoderLayer(shape, rates, parts) for _ in range(shape.num_decoder_layers)
        ]
        self.encoder = nn.ModuleList(self.encoder_layers)
        self.decoder = nn.ModuleList(self.decoder_layers)
        final_norm = nn.LayerNorm if shape.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = final_norm(shape.d_model), final_norm(shape.d_model)
        _initialize(self)

    def _build_embeddings(self, shape: Shape) -> None:
        """Make the embeddings and the output matrix, tied (section 3.4) or not, and positions."""
        self.tgt_embedding = _embedding(shape.vocab_size, shape.d_model)
        if shape.tie_embeddings == "all":
            self.src_embedding = self.tgt_embedding
        else:
            self.src_embedding = _embedding(shape.vocab_size, shape.d_model)
        self.output = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self._tie_output()
        self.src_positions = self.tgt_positions = None
        if shape.positions == "learned":
            self.src_positions = _embedding(shape.max_positions, shape.d_model)
            self.tgt_positions = _embedding(shape.max_positions, shape.d_model)
        else:
            table = torch.empty(max(512, shape.max_positions), shape.d_model)
            self.register_buffer("sinusoids", table, persistent=False)

    def _tie_output(self) -> None:
        if self.shape.tie_embeddings != "none":
            self.output.weight = self.tgt_embedding.weight

    def assign_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights, by the names of `named_parameters`: a tied matrix has one name."""
        copies = {name: weight.clone() for name, weight in weights.items()}
        self.load_state_dict(copies, strict=False, assign=True)
        self._tie_output()
        _fill_sinusoids(self)

    @property
    def num_parameters(self) -> int:
        """Number of trainable values; tied ones count once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def hidden_matrices(self) -> dict[str, int]:
        """Names of the layers' matrices, and the number stacked in each: 3 for W^Q, W^K and W^V."""
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

    def hidden(
        self,
        src: Tensor,
        tgt_in: Tensor,
        keep_masks: PerToken | None = None,
        segments: PerToken | None = None,
    ) -> Tensor:
        """Output of the decoder before projection: (B, S), (B, T) -> (B, T, D). Token embeddings
        are multiplied by `keep_masks`, 0 or 1. In packed rows, `segments` numbers the sentence
        of each token: attention stays within a sentence. Padding of tgt_in also needs the number of
        a sentence, because a query without any key would give NaN.
        """
        src_keep, tgt_keep = keep_masks or (None, None)
        if segments is None:
            memory, src_mask = self.encode(src, src_keep)
            return self.decode(tgt_in, memory, src_mask, tgt_keep)
        s, t = (numbers[:, None, :, None] for numbers in segments)  # (B, 1, S, 1), (B, 1, T, 1)
        src_mask, causal, cross = s == s.mT, (t == t.mT).tril(), t == s.mT
        x = self.embed(src, self.src_embedding, self.src_positions, src_keep, src_mask.tril())
        memory = self.run_encoder(x, src_mask)
        x = self.embed(tgt_in, self.tgt_embedding, self.tgt_positions, tgt_keep, causal)
        return self.run_decoder(x, causal, memory, cross)

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        return F.linear(hidden, self.output.weight.to(hidden.dtype))

    def encode(self, src: Tensor, keep_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, S) -> memory (B, S, D) and src_mask (B, 1, 1, S), True at real tokens."""
        src_mask = (src != self.shape.pad_id)[:, None, None, :]
        x = self.embed(src, self.src_embedding, self.src_positions, keep_mask)
        return self.run_encoder(x, src_mask), src_mask

    def decode(
        self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, keep_mask: Tensor | None = None
    ) -> Tensor:
        """(B, T), (B, S, D), (B, 1, 1, S) -> (B, T, D). The causal mask also hides padding, because
        padding follows the real tokens.
        """
        T = tgt_in.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=tgt_in.device).tril()
        x = self.embed(tgt_in, self.tgt_embedding, self.tgt_positions, keep_mask)
        return self.run_decoder(x, causal, memory, src_mask)

    def run_encoder(self, x: Tensor, src_mask: Tensor) -> Tensor:
        """Apply the encoder's layers, with a mask as in `Attention`: (B, S, D) -> (B, S, D)."""
        for layer in self.encoder_layers:
            x = layer(x, src_mask)
        out: Tensor = self.encoder_norm(x)
        return out

    def run_decoder(self, x: Tensor, causal: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """Apply the decoder's layers, with masks as in `Attention`: (B, T, D) -> (B, T, D)."""
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
                module.recorded[get_ident()] = maps[name]
        try:
            self.hidden(src, tgt_in)
        finally:
            for module in chain(*groups.values()):
                del module.recorded[get_ident()]
        return maps

    def embed(
        self,
        ids: Tensor,
        embedding: nn.Embedding,
        learned: nn.Embedding | None,
        keep_mask: Tensor | None = None,
        causal: Tensor | None = None,
    ) -> Tensor:
        """Embeddings times sqrt(D) plus positions, with dropout (sections 3.4, 3.5, 5.4): (B, L) ->
        (B, L, D). Where `keep_mask` (B, L) is 0, only the position remains. With the mask `causal`
        (B, 1, L, L) of several sentences per row, positions restart at 0 in each sentence.

        The matrix stays in fp32, so that the gradients of frequent tokens are summed in fp32.
        """
        x = embedding(ids) * self.shape.d_model**0.5
        if keep_mask is not None:
            x = x * keep_mask[..., None]
        positions = self.positions(learned, 0, ids.shape[1])
        if causal is not None:
            positions = F.embedding(causal.sum(-1)[:, 0] - 1, positions)  # (B, L, D)
        x = x + positions
        embedded: Tensor = self.dropout(x.to(self.dtype))
        return embedded

    def positions(self, learned: nn.Embedding | None, start: int, length: int) -> Tensor:
        """Encodings of positions `start` to `start + length` - 1, from `learned` or sinusoidal if
        that is None: (length, D).
        """
        end = start + length
        if learned is not None:
            if end > len(learned.weight):
                raise ValueError(f"{end} positions, but {len(learned.weight)} learned")
            rows: Tensor = learned.weight[start:end] * self.shape.d_model**0.5
            return rows
        if end <= len(self.sinusoids):
            return self.sinusoids[start:end]
        # do not enlarge the table: recorded training steps read its memory
        return sinusoids(start, end, self.shape.d_model).to(self.sinusoids.device)


def set_compute_dtype(model: Transformer, dtype: torch.dtype) -> None:
    """Make the layers compute in `dtype`; embeddings and positions stay in fp32."""
    for module in (model.encoder, model.decoder, model.encoder_norm, model.decoder_norm):
        module.to(dtype)


def _fill_sinusoids(model: Transformer) -> None:
    if model.shape.positions == "sinusoidal":
        model.sinusoids = sinusoids(0, *model.sinusoids.shape)


def _initialize(model: Transformer) -> None:
    if model.output.weight.is_meta:  # no values yet: operations there would load torch's compiler
        return
    _fill_sinusoids(model)
    for linear in (m for m in model.modules() if isinstance(m, nn.Linear)):
        nn.init.xavier_uniform_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    # embeddings are multiplied by sqrt(D), so this deviation gives them a variance of 1
    for embedding in (m for m in model.modules() if isinstance(m, nn.Embedding)):
        nn.init.normal_(embedding.weight, std=model.shape.d_model**-0.5)
    nn.init.normal_(model.output.weight, std=model.shape.d_model**-0.5)
