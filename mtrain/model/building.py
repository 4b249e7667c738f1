"""Build models: their shape from settings, the class for a device, and checks of stored weights."""

from pathlib import Path

import torch
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.model.cpu import RowTransformer
from mtrain.model.transformer import Dropout, Shape, Transformer
from mtrain.runtime.errors import UserError

RATES = ("dropout", "attention_dropout", "activation_dropout")  # settings of `Dropout`, in order


def shape_of(config: Config, vocab_size: int, pad_id: int) -> Shape:
    """Return the shape of a model from its settings and vocabulary size."""
    settings = config.model.model_dump(exclude={*RATES})
    return Shape(vocab_size, pad_id, max_positions=config.data.max_length, **settings)


def build(
    shape: Shape, device: torch.device, rates: Dropout | None = None, *, compiled: bool = False
) -> Transformer:
    """Return a new model of the class that is fastest on `device`, not yet moved there. Only the
    plain `Transformer` can be compiled.
    """
    model_class = RowTransformer if device.type == "cpu" and not compiled else Transformer
    return model_class(shape, rates)


def check_weights(parameters: dict[str, Tensor], weights: dict[str, Tensor], name: Path) -> None:
    """Raise `UserError` if the weights in `name` have wrong names, types, shapes or values."""
    if parameters.keys() != weights.keys():
        unmatched = sorted(parameters.keys() ^ weights.keys())
        raise UserError(f"{name}: its weights do not fit this model: {', '.join(unmatched[:3])}")
    for key, parameter in parameters.items():
        if weights[key].dtype != torch.float32:
            raise UserError(f"{name}: {key} is {weights[key].dtype}, not fp32")
        if parameter.shape != weights[key].shape:
            shapes = f"{tuple(weights[key].shape)} instead of {tuple(parameter.shape)}"
            raise UserError(f"{name}: {key} has shape {shapes}")
        if not weights[key].isfinite().all():
            raise UserError(f"{name}: {key} holds values that are not finite")
