"""What a run's `auto` settings come to on this machine."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from mtrain.config import Config
from mtrain.device import available_threads, compute_dtype, pick_device
from mtrain.errors import RefusedError
from mtrain.log import logger


@dataclass(frozen=True)
class Machine:
    """What `auto` settings came to on this machine."""

    device: str
    threads: int
    precision: str
    compile: bool

    @classmethod
    def of(cls, config: Config) -> "Machine":
        """Resolve a config's `auto` settings; raises `RefusedError` for a device that is not
        there.
        """
        train = config.train
        device = pick_device(train.device)
        dtype = compute_dtype(train.precision, device, training=True)
        return cls(
            device=device.type,
            threads=available_threads() if train.threads == "auto" else train.threads,
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            compile=False if train.compile == "auto" else train.compile,
        )

    def check_against(self, config: Config, before: dict[str, Any]) -> None:
        """Refuse to go on where a setting comes to something else than it did; `precision` and
        `compile` may be changed by naming them.
        """
        for key, now in asdict(self).items():
            was = before.get(key)
            if was == now:
                continue
            if key in ("precision", "compile") and getattr(config.train, key) != "auto":
                logger.warning(
                    "train.%s: from here on %s, not %s: bit for bit the same weights "
                    "are no longer promised",
                    key,
                    now,
                    was,
                )
                continue
            raise RefusedError(
                f"train.{key}: this run was trained with {was}, and here it comes to "
                f"{now}; to go on, set train.{key}: {str(was).lower()}"
            )
