"""Build models: the shape from settings, the class for a device, and checks of stored weights."""

from pathlib import Path

import torch
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.model.cpu import RowTransformer
from mtrain.model.transformer import Dropout, Shape, Transformer
from mtrain.runtime.errors import UserError

MAX_WEIGHT = 1e5  # far above any useful weight; products of much larger ones overflow

_RATES = ("dropout", "attention_dropout", "activation_dropout")  # fields of `Dropout`, in order


def shape_of(config: Config, vocab_size: int, pad_id: int) -> Shape:
    """Return the shape of a model from its settings and vocabulary size."""
    settings = config.model.model_dump(exclude={*_RATES})
    return Shape(vocab_size, pad_id, max_positions=config.data.max_length, **settings)


def rates_of(config: Config) -> Dropout:
    """Return the rates of dropout in training."""
    return Dropout(*(getattr(config.model, name) for name in _RATES))


def build(
    shape: Shape, device: torch.device, rates: Dropout | None = None, *, compiled: bool = False
) -> Transformer:
    """Return a new model of the class that is fastest on `device`, not yet moved there. Only
    `Transformer` can be compiled.
    """
    model_class = RowTransformer if device.type == "cpu" and not compiled else Transformer
    return model_class(shape, rates)


def check_weights(
    parameters: dict[str, Tensor],
    weights: dict[str, Tensor],
    path: Path,
    largest: float = MAX_WEIGHT,
    advice: str = "use another checkpoint",
) -> None:
    """Raise `UserError` if weights, or an optimizer's moments, stored at `path` have wrong names,
    types or shapes, or values above `largest`; `advice` says what to do.
    """
    if unmatched := sorted(parameters.keys() ^ weights.keys()):
        names = ", ".join(unmatched[:3])
        raise UserError(f"{path}: missing or unknown weights: {names}; {advice}")
    for name, parameter in parameters.items():
        weight = weights[name]
        if weight.dtype != torch.float32:
            raise UserError(f"{path}: {name} is {weight.dtype}, not fp32; {advice}")
        if weight.shape != parameter.shape:
            shapes = f"shape {tuple(weight.shape)}, not {tuple(parameter.shape)}"
            raise UserError(f"{path}: {name} has {shapes}; {advice}")
        if not (weight.abs() <= largest).all():
            raise UserError(f"{path}: {name} has values that are not finite or too large; {advice}")
