"""Says what was found: each finding once a job, as a warning of the host's first rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loongkit.activation import logs, process
from loongkit.guards.finding import KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from loongkit.guards.finding import Finding

    class Flags(Protocol):
        """What ``activation.marks.Marks`` offers: bytes that all processes of a job share."""

        def set(self, position: int) -> None:
            """Set one."""

        def is_set(self, position: int) -> bool:
            """Tell whether any process of the job has set it."""


#: Where the findings' flags stand among the job's shared marks: behind those of the features.
FIRST_FLAG = 3072


class Report:
    """Findings on their way to the log.

    ``flags`` are shared with the job's other processes, so that a finding of a data worker, of a
    second DataLoader or of the next epoch's workers is not said again.
    """

    def __init__(self, flags: Flags, environ: Mapping[str, str]) -> None:
        self._flags = flags
        self._environ = environ

    def tell(self, finding: Finding, mended: int | None = None) -> None:
        """Log a finding, with what it was changed to where it was mended.

        A warning the first time, from local rank 0; all else at debug.
        """
        line = finding.line if mended is None else finding.mended(mended)
        if process.local_rank(self._environ) != 0 or not self._is_first(finding):
            logs.debug(line)
        elif finding.informational:
            logs.info(line)
        else:
            logs.warning(line)

    def _is_first(self, finding: Finding) -> bool:
        flag = FIRST_FLAG + KEYS.index(finding.key)
        if self._flags.is_set(flag):
            return False
        self._flags.set(flag)
        return True
