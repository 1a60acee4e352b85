"""The guards of a training process itself: thread pools, compile processes, the kernel."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

from loongkit.activation import logs
from loongkit.guards import budget as budgets
from loongkit.guards import checks, kernel

if TYPE_CHECKING:
    from typing import Any

    from loongkit.guards.desk import Desk
    from loongkit.guards.finding import Finding

#: What the threads of torch's inter-op pool are called (c10/core/thread_pool, ATen/PTThreadPool).
_INTEROP_THREADS = ("pt_thread_pool", "PTThreadPool")
_CONFIG = "torch._inductor.config"
#: Where inductor keeps its pool of processes. Its configuration is imported in many more jobs.
_POOL = "torch._inductor.async_compile"


class TrainerGuards:
    """Checks the process once it is seen to train: at its first optimiser step, or earlier at the
    first iterator of a DataLoader with workers.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._checked = False
        self._stepped = False
        self._mended: Finding | None = None

    def step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Run after each optimiser step; all but the first cost two comparisons."""
        # Asked first: torch.compile would compile a step anew once `_stepped` has changed.
        if torch.compiler.is_compiling() or self._stepped:
            return
        self._stepped = True
        self.check()
        if _POOL in sys.modules:
            self._desk.run(self._check_compile_workers)

    def check(self) -> None:
        """Check what belongs to the process, once."""
        if self._checked:
            return
        self._checked = True
        for guard in (self._check_threads, self._check_interop, self._note_kernel):
            self._desk.run(guard)

    def config_imported(self, _module: Any) -> None:
        """Lower the number of compile processes before inductor starts them."""
        if self._desk.mends():
            self._desk.run(self._mend_compile_workers)

    def pool_imported(self, _module: Any) -> None:
        """Check the compile processes of a training that compiles after its first step."""
        if self._stepped:
            self._desk.run(self._check_compile_workers)

    def _check_threads(self) -> None:
        desk = self._desk
        chosen = desk.chosen("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        finding = checks.intra_op_threads(torch.get_num_threads(), desk.budget(), chosen)
        desk.handle(finding, torch.set_num_threads)

    def _check_interop(self) -> None:
        threads = torch.get_num_interop_threads()
        running = _interop_runs()
        budget = self._desk.budget()
        finding = checks.inter_op_threads(threads, budget, running, os.cpu_count() or 1)
        self._desk.handle(finding, torch.set_num_interop_threads)

    def _check_compile_workers(self) -> None:
        if self._mended is None:
            self._desk.handle(self._compile_workers())
        else:
            self._desk.report.tell(self._mended, self._mended.fix)

    def _mend_compile_workers(self) -> None:
        """Mend now; it is said when the job turns out to train and to compile."""
        finding = self._compile_workers()
        if finding is not None and finding.fix is not None and _POOL not in sys.modules:
            config: Any = sys.modules[_CONFIG]
            config.compile_threads = finding.fix
            logs.info(finding.mended(finding.fix))
            self._mended = finding

    def _compile_workers(self) -> Finding | None:
        config: Any = sys.modules[_CONFIG]
        threads = config.compile_threads
        if not isinstance(threads, int):
            return None  # decided later, by a build of torch of its makers' own
        # torchrun leaves this one alone: set, it is the user's.
        chosen = "TORCHINDUCTOR_COMPILE_THREADS" in self._desk.environ
        return checks.compile_workers(threads, self._desk.budget(), chosen)

    def _note_kernel(self) -> None:
        mask = frozenset(os.sched_getaffinity(0))
        bound = mask != budgets.job_mask(self._desk.tree, self._desk.environ, mask)
        for finding in kernel.findings(self._desk.tree, bound):
            self._desk.handle(finding)


def _interop_runs() -> bool:
    """Tell whether torch has started the threads of its inter-op pool in this process."""
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                if file.read().strip() in _INTEROP_THREADS:
                    return True
        except OSError:
            continue  # it has ended
    return False
