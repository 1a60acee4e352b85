"""What placement tells the user: causes in the log, and what he should hear of once a job."""

from __future__ import annotations

import os

from loongkit.activation import logs, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Stands among the names of settings that this job was warned about.
_WARNED = "numa_affinity"


class Report:
    """The voice of one process, which has a local rank or -1."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # A command that a rank starts inherits its local rank, and would come to the same plan.
        self._parent_warned = _WARNED in os.environ.get(settings.JOB_WARNED, "").split(",")

    def warn(self, name: str, warnings: Iterable[str]) -> None:
        """Warn of each in the first local rank of the job, else write it to the log."""
        warnings = tuple(warnings)
        for text in warnings:
            if self._rank <= 0 and not self._parent_warned:
                logs.warning(f"{name}: {text}")
            else:
                logs.info(f"{name}: {text}")
        if warnings and not self._parent_warned:
            already = os.environ.get(settings.JOB_WARNED, "")
            os.environ[settings.JOB_WARNED] = ",".join(filter(None, (already, _WARNED)))

    def explain(self, name: str, reasons: Iterable[tuple[str, str]]) -> None:
        """Write decisions with their codes to the log."""
        for code, text in reasons:
            logs.info(f"{name}: {code}: {text}")
