"""What a run's `auto` settings come to on this machine."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from mtrain.config.schema import Config
from mtrain.runtime.device import available_threads, compute_dtype
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.log import logger


@dataclass(frozen=True)
class Machine:
    """What `auto` settings came to on this machine."""

    device: str
    threads: int
    precision: str
    compile: bool
    ranks: int = 1

    @classmethod
    def of(cls, config: Config, ranks: Ranks) -> "Machine":
        """Resolve a config's `auto` settings; raises `RefusedError` for a device that is not
        there.
        """
        train = config.train
        device = device_of(train.device, ranks)
        dtype = compute_dtype(train.precision, device, training=True)
        return cls(
            device=device.type,
            threads=max(1, available_threads() // ranks.local_size)
            if train.threads == "auto"
            else train.threads,
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            compile=False if train.compile == "auto" else train.compile,
            ranks=ranks.size,
        )

    def check_against(self, config: Config, before: dict[str, Any]) -> None:
        """Refuse to go on where a setting comes to something else than it did; `precision` and
        `compile` may be changed by naming them.
        """
        was_ranks = before.get("ranks", 1)
        if was_ranks != self.ranks:
            logger.warning(
                "from here on %d processes train, not %d: bit for bit the same weights are no "
                "longer promised",
                self.ranks,
                was_ranks,
            )
        for key, now in asdict(self).items():
            was = before.get(key)
            if was is None or was == now or key == "ranks":
                continue
            if key == "threads" and (was_ranks != self.ranks or self.device != "cpu"):
                continue  # they decide on nothing but speed
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
