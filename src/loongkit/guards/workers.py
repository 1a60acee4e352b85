"""The guards in a data worker: the threads that it starts by itself, and where it may run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

from loongkit.data.worker_loop import INIT_FN, NUM_WORKERS
from loongkit.guards import checks, openmp
from loongkit.numa import handover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.guards.desk import Desk

#: Numbers of threads that libraries read from the environment.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerGuards:
    """Checks a data worker after the user's worker_init_fn, which may have mended it already."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def worker_loop(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stand in for torch's _worker_loop."""
        if len(args) <= NUM_WORKERS:
            return original(*args, **kwargs)  # called by somebody else, in a way of their own
        init_fn, workers = args[INIT_FN], args[NUM_WORKERS]
        if self._desk.mends():
            self._desk.run(self._widen)

        def initialise(worker_id: int) -> None:
            if init_fn is not None:
                init_fn(worker_id)
            self._desk.run(lambda: self._check_pools(worker_id, workers))

        return original(*args[:INIT_FN], initialise, *args[INIT_FN + 1 :], **kwargs)

    def _widen(self) -> None:
        """Undo what OpenMP's binding of the parent's main thread did to this process."""
        if handover.read(self._desk.environ) is not None:
            return  # NUMA_AFFINITY places it
        mask = frozenset(os.sched_getaffinity(0))
        places = openmp.places(self._desk.environ)
        variables = openmp.binding_variables(self._desk.environ)
        finding = checks.pinned_main_thread(len(mask), len(mask), len(places), variables, 1)
        if finding is not None and mask < places:
            os.sched_setaffinity(0, places)

    def _check_pools(self, worker_id: int, workers: int) -> None:
        for setting, threads, shrink in self._pools():
            finding = checks.worker_pool(setting, threads, workers, self._desk.budget())
            if finding is None:
                continue
            mends = shrink is not None and finding.fix is not None and self._desk.mends()
            if mends:
                self._spare_children()
            if worker_id == 0:
                self._desk.handle(finding, shrink)
            elif mends and shrink is not None:
                shrink(1)

    def _pools(self) -> Iterator[tuple[str, int, Callable[[int], None] | None]]:
        """Give each pool's setting, its threads, and what makes it smaller."""
        cv2 = sys.modules.get("cv2")
        if cv2 is not None:
            # 1 would keep a pool of one thread; 0 runs everything in the caller's.
            yield checks.CV2, cv2.getNumThreads(), lambda _count: cv2.setNumThreads(0)
        yield checks.TORCH, torch.get_num_threads(), torch.set_num_threads
        if "numpy" in sys.modules:
            for variable in _VARIABLES:
                value = self._desk.environ.get(variable, "").strip()
                if value.isdecimal():
                    yield variable, int(value), None

    def _spare_children(self) -> None:
        """Let libraries loaded from now on, and programs started here, keep to one thread."""
        for variable in _VARIABLES:
            self._desk.environ.setdefault(variable, "1")
