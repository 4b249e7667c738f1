"""The encoder for translation, and the base class of its layers and those of `model.decoder`.

For a single line, the overhead of calling torch is as large as the arithmetic. Modules are
therefore replaced by functions, and matrices have the layout that is multiplied fastest.

Shapes: `B` sentences, `S` source length, `P` the same with padding, `R` rows (B x S, then padding),
`D` d_model, `H` heads, `K` head width.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtrain.model.transformer import DecoderLayer, EncoderLayer, Parts, Transformer, attend_step

# Length to pad keys and values to: torch computes softmax and products of shorter ones value by
# value, up to ten times slower.
VECTOR = 16


class Encoder:
    """Encodes sources. It copies weights: make it once they are final."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.layers = [_Layer(layer, model.parts) for layer in model.encoder_layers]
        self.norm = norm_function(model.encoder_norm)

    def __call__(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, S): return the memory (R, D), and a bias (B, H, 1, P), which is 0 at real
        tokens and minus infinity elsewhere.
        """
        model = self.model
        B, S = src.shape
        H = model.shape.num_heads
        x = model.embed(src, model.src_embedding, model.src_positions).flatten(0, 1)
        if padding := model.parts.pad_rows(B * S) - B * S:
            x = F.pad(x, (0, 0, 0, padding))
        P = max(S, VECTOR)
        K = x.shape[1] // H
        bias = x.new_full((B, H, 1, P), float("-inf"), dtype=model.attention_dtype)
        bias[..., :S].masked_fill_((src != model.shape.pad_id)[:, None, None], 0.0)
        heads = bias.new_zeros(3, B, H, P, K)
        joined = x.new_zeros(x.shape)
        for layer in self.layers:
            x = layer.run(x, heads, bias, joined, S)
        return self.norm(x), bias


class InferenceLayer:
    """Common part of encoder and decoder layers: norms before or after each sublayer, products of
    self-attention, and feed-forward.
    """

    def __init__(
        self, layer: EncoderLayer | DecoderLayer, norms: Sequence[nn.LayerNorm], parts: Parts
    ) -> None:
        functions = [norm_function(norm) for norm in norms]
        no_norms = [norm_function(nn.Identity()) for _ in norms]
        self.before, self.after = (functions, no_norms) if layer.pre_norm else (no_norms, functions)
        attention, feed = layer.self_attention, layer.feed_forward
        self.project = parts.product(attention.project_in.weight, attention.project_in.bias)
        self.join = parts.product(attention.project_out.weight, attention.project_out.bias)
        self.inner = parts.product(feed.inner.weight, feed.inner.bias)
        self.outer = parts.product(feed.outer.weight, feed.outer.bias)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the last sublayer: (rows, D) -> (rows, D)."""
        inner = self.inner(self.before[-1](x)).relu_()
        return self.after[-1](self.outer(inner).add_(x))


class _Layer(InferenceLayer):
    """An encoder layer without gradients."""

    def __init__(self, layer: EncoderLayer, parts: Parts) -> None:
        super().__init__(layer, (layer.self_norm, layer.feed_norm), parts)

    def run(self, x: Tensor, heads: Tensor, bias: Tensor, joined: Tensor, S: int) -> Tensor:
        """Apply `EncoderLayer`: (R, D) -> (R, D). `heads` (3, B, H, P, K) is a buffer for queries,
        keys and values, `joined` (R, D) one for the output of attention; padding in both is 0.
        """
        _, B, H, _, K = heads.shape
        projected = self.project(self.before[0](x))[: B * S].view(B, S, 3, H, K)
        heads[..., :S, :].copy_(projected.permute(2, 0, 3, 1, 4))
        query, key, value = heads.flatten(1, 2).unbind(0)
        attended = query.new_empty(B * H, S, K)
        attend_step(query[:, :S], key.mT, value, bias.flatten(0, 1), attended)
        joined[: B * S].view(B, S, H, K).copy_(attended.view(B, H, S, K).transpose(1, 2))
        return self.feed_forward(self.after[0](self.join(joined).add_(x)))


def norm_function(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a layer norm (the identity for any other module) as a function: calling a module takes
    longer than the norm itself.
    """
    if not isinstance(module, nn.LayerNorm):
        return lambda x: x
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
