"""Puts copying ahead into torch's DataLoader, for either generation of MMCV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loongkit.data import accelerator
from loongkit.data.loaders import LoaderSwitch
from loongkit.data.prefetch import Prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    import torch

    from loongkit.activation.patching import Patcher

_made: dict[int, Prefetch] = {}


def shared(
    patcher: Patcher, feature: str, leaves_of: Callable[[Any], Iterable[torch.Tensor]]
) -> Prefetch:
    """Return the one Prefetch that the hooks of a feature share, making it at the first call."""
    found = _made.get(id(patcher))
    if found is None:
        found = Prefetch(feature, accelerator.Accelerator(), leaves_of, patcher.mark)
        _made[id(patcher)] = found
        patcher.on_undo(lambda: _end(patcher))
    return found


def install(module: ModuleType, patcher: Patcher, prefetch: Prefetch) -> None:
    """Look at the next batch in the iterators of marked loaders, and have their batches pinned.

    Args:
        module: torch.utils.data.dataloader.
        patcher: the feature's.
        prefetch: knows the marked loaders.

    """

    def like(self: Any) -> None: ...

    switch = LoaderSwitch(prefetch.accelerator, prefetch.feature, prefetch.includes)
    patcher.wrap(module.DataLoader, "_get_iterator", switch.get_iterator, like=like)
    patcher.on_undo(switch.restore)
    patcher.wrap(module.DataLoader, "__iter__", prefetch.iterate, like=like)


def _end(patcher: Patcher) -> None:
    found = _made.pop(id(patcher), None)
    if found is not None:
        found.close()
