"""What a placement asks of a torch that is imported already, and sets there."""

from __future__ import annotations

import os
import sys

from loongkit.activation import logs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def device_index(optimizer: Any) -> int | None:
    """Return the index of the device that holds what an optimiser steps; None: the CPU does."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type == "cuda":
                index: int = parameter.device.index
                return index
    return None


def limit_threads(cores: int, feature: str) -> None:
    """Let a pool that was sized before the process was bound not exceed what it may use now."""
    torch = sys.modules.get("torch")
    if torch is None or os.environ.get("OMP_NUM_THREADS"):
        return
    threads = torch.get_num_threads()
    if threads > cores:
        torch.set_num_threads(cores)
        logs.info(f"{feature}: torch's threads lowered from {threads} to {cores}")
