"""What all guards share: the machine's files, the budget, the report, and whether to mend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from loongkit.activation import logs, process
from loongkit.guards import allowance
from loongkit.guards import budget as budgets

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from loongkit.activation.files import Tree
    from loongkit.guards.budget import Budget
    from loongkit.guards.finding import Finding
    from loongkit.guards.report import Report

#: Launchers that set OMP_NUM_THREADS=1 by themselves: that is no choice of the user's.
_LAUNCHERS_DEFAULT = "1"


class Desk:
    """Runs checks in a ring: whatever goes wrong in one is a line at debug, and nothing else."""

    def __init__(
        self,
        tree: Tree,
        environ: MutableMapping[str, str],
        report: Report,
        mends: Callable[[], bool],
        mark: Callable[[], None],
    ) -> None:
        self.tree = tree
        self.environ = environ
        self.report = report
        self.mends = mends
        self._mark = mark
        self._budgets: dict[frozenset[int], Budget] = {}

    def run(self, guard: Callable[[], None]) -> None:
        """Run a guard, contained."""
        try:
            guard()
            self._mark()
        except Exception as error:
            name = getattr(guard, "__qualname__", repr(guard))
            logs.debug(f"config_guards: {name} was left out: {type(error).__name__}: {error}")

    def handle(self, finding: Finding | None, mend: Callable[[int], None] | None = None) -> None:
        """Mend a finding where that is asked for and possible, and report it."""
        if finding is None:
            return
        mended = finding.fix if mend is not None and self.mends() else None
        if mend is not None and mended is not None:
            try:
                mend(mended)
            except Exception as error:
                logs.debug(f"config_guards: {finding.setting} stays: {error!r}")
                mended = None
        self.report.tell(finding, mended)

    def budget(self) -> Budget:
        """Return the CPUs of this rank; where its main thread alone was bound, the process's."""
        mask = frozenset(os.sched_getaffinity(0))
        if mask not in self._budgets:
            cpus = allowance.of_process(self.tree, self.environ).cpus
            self._budgets[mask] = budgets.read(self.tree, self.environ, cpus)
        return self._budgets[mask]

    @property
    def ranks(self) -> int:
        """The processes of the job on this host."""
        return process.local_ranks(self.environ)

    def chosen(self, *variables: str) -> bool:
        """Tell whether the user has set one of these numbers of threads himself.

        torchrun sets OMP_NUM_THREADS=1 where it is unset, which counts as nobody's choice.
        """
        for variable in variables:
            value = self.environ.get(variable, "").strip()
            if value and (value != _LAUNCHERS_DEFAULT or "TORCHELASTIC_RUN_ID" not in self.environ):
                return True
        return False
