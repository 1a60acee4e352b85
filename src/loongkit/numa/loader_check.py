"""What torch's own check of the number of data workers makes of a process that was placed."""

from __future__ import annotations

import os

from loongkit.numa import handover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

_CHECK = "check_worker_number_rationality"


def keep(module: ModuleType, patcher: Patcher) -> None:
    """Have DataLoaders warn where they would have without us: by the CPUs before the placement.

    torch counts those of the process. A warning that only the placement brings about would be
    wrong for workers with CPUs of their own, and an error in jobs that make errors of warnings.
    ``module`` is torch.utils.data.dataloader; config_guards judges the number of workers.
    """
    if hasattr(module.DataLoader, _CHECK):
        patcher.wrap(module.DataLoader, _CHECK, _at_check)


def _at_check(original: Callable[[Any], None], loader: Any) -> None:
    left = handover.read(os.environ)
    if left is not None and os.sched_getaffinity(0) <= left.train | left.data:
        workers = loader.num_workers
        if isinstance(workers, int) and workers <= len(left.base):
            return
    original(loader)
