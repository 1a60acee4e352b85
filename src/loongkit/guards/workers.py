"""The guards in a data worker: the threads that it starts by itself, and where it may run."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from loongkit.data.worker_loop import INIT_FN, NUM_WORKERS
from loongkit.guards import allowance, checks, pools

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.guards.desk import Desk

#: Numbers of threads that libraries read from the environment.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: The batches of a worker after which its threads are looked at.
LOOKS = (1, 4, 16, 64)


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
            self._desk.run(lambda: self._begin(worker_id, workers))

        return original(*args[:INIT_FN], initialise, *args[INIT_FN + 1 :], **kwargs)

    def _widen(self) -> None:
        """Undo what OpenMP's binding of the parent's main thread did to this process."""
        allowed = allowance.of_process(self._desk.tree, self._desk.environ)
        if allowed.variables:
            os.sched_setaffinity(0, allowed.cpus)

    def _begin(self, worker_id: int, workers: int) -> None:
        if self._desk.mends():
            self._judge(worker_id, workers, pools.to_be_expected(), running=False)
        if worker_id == 0 or self._desk.mends():
            watch = pools.Watch()

            def look() -> None:
                self._judge(worker_id, workers, watch.at_work(), running=True)

            self._watch_fetches(look)

    def _watch_fetches(self, look: Callable[[], None]) -> None:
        """Have the fetcher that the worker is about to make look after some of its batches."""
        # The package is there by now; this module is loaded while it is being imported.
        from torch.utils.data import _DatasetKind

        make = _DatasetKind.create_fetcher

        def contained() -> None:
            self._desk.run(look)

        def create_fetcher(*args: Any) -> Any:
            _DatasetKind.create_fetcher = staticmethod(make)
            fetcher = make(*args)
            self._desk.run(lambda: _FirstFetches.stand_before(fetcher, contained))
            return fetcher

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)

    def _judge(
        self, worker_id: int, workers: int, found: pools.Pools | None, running: bool
    ) -> None:
        desk = self._desk
        finding = checks.worker_threads(found, workers, desk.budget(), running)
        if finding is None or found is None:
            return

        def shrink(_threads: int) -> None:
            self._spare_children()
            for remedy in found.remedies:
                remedy.do()

        if worker_id == 0:
            desk.handle(finding, shrink)
        elif desk.mends():
            shrink(1)

    def _spare_children(self) -> None:
        """Let libraries loaded from now on, and programs started here, keep to one thread."""
        for variable in _VARIABLES:
            self._desk.environ.setdefault(variable, "1")


class _FirstFetches:
    """Stands before a fetcher's ``fetch`` for its first batches, and then is gone."""

    def __init__(self, fetcher: Any, look: Callable[[], None]) -> None:
        # Weak: the fetcher, and with it the data set's iterator, ends where it always did.
        self._fetcher = weakref.ref(fetcher)
        self._original = type(fetcher).fetch
        self._look = look
        self._seen = 0

    @classmethod
    def stand_before(cls, fetcher: Any, look: Callable[[], None]) -> None:
        """Have ``look`` called after the batches of ``LOOKS``."""
        fetcher.fetch = cls(fetcher, look)

    def __call__(self, index: Any) -> Any:
        """Return what the fetcher would."""
        fetcher = self._fetcher()
        batch = self._original(fetcher, index)
        self._seen += 1
        if self._seen in LOOKS:
            self._look()
        if self._seen == LOOKS[-1]:
            vars(fetcher).pop("fetch", None)
        return batch
