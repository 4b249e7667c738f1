"""mtrain: raw parallel text in, a translation model and its score out.

The line through the packages: `corpus` reads files as pairs of strings, `data` turns them into
batches of ids, `model` is the Transformer, `training` fits its weights, `translation` searches,
`scoring` compares strings, `runs` keeps what is on disk, and `cli` is the command line.

From Python, a trained run translates:

    model = mtrain.load("runs/NAME")
    model.translate(["A dog."])
"""

from os import PathLike, fspath
from os.path import expanduser
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from mtrain.runtime.errors import UserError as UserError
    from mtrain.translation.api import Model as Model
    from mtrain.translation.attention import Attention as Attention
    from mtrain.translation.translator import Translation as Translation

__version__ = "0.1.0"
__all__ = ["Attention", "Model", "Translation", "UserError", "__version__", "load"]

_HOMES = {
    "Attention": "mtrain.translation.attention",
    "Model": "mtrain.translation.api",
    "Translation": "mtrain.translation.translator",
    "UserError": "mtrain.runtime.errors",
}


def load(
    *paths: str | PathLike[str], device: "str | torch.device" = "auto", precision: str = "auto"
) -> "Model":
    """Load a run's best model or a checkpoint directory, or several as an ensemble.

    `device` is auto, cpu, cuda, cuda:N or mps, `precision` auto, fp32 or bf16; `~` in a path is the
    home directory. Raises `UserError`.
    """
    from pathlib import Path

    from mtrain.runtime.errors import RefusedError, as_user_error
    from mtrain.translation import api, loading  # these load torch, which takes seconds

    if not paths:
        raise RefusedError("mtrain.load: needs a run or checkpoint directory")
    names = [fspath(path) if isinstance(path, PathLike) else path for path in paths]
    if not all(isinstance(name, str) for name in names):
        raise RefusedError("mtrain.load: expected paths, as in load(a, b) for an ensemble")
    if "" in names:  # would be the working directory
        raise RefusedError("mtrain.load: an empty path; name a run or checkpoint directory")
    expanded = [Path(expanduser(name)) for name in names]
    try:
        return api.Model(loading.load(*expanded, device=str(device), precision=precision))
    except OSError as error:
        raise as_user_error(error) from None


def __getattr__(name: str) -> Any:
    """Import a public class when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mtrain' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
