"""The thread pools of libraries in a data worker: which are at work, and how to do without.

A pool's number of threads says little: one that nothing calls never starts them, and one that was
forked has lost them (OpenCV's then works without any). So those that have worked are looked for.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from loongkit.guards import libraries, openmp, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OPENBLAS = ("libopenblas", "libscipy_openblas")
#: Libraries, and what the files that hold the pool's code, or their folders, begin with.
_FILES = {
    "OpenCV": ("cv2", "libopencv_core"),
    "OpenBLAS": _OPENBLAS,
    "numexpr": ("numexpr",),
    "numba": ("numba", "libtbb"),
    "OpenMP": openmp.RUNTIMES,
}
_ALL_FILES = tuple(beginning for beginnings in _FILES.values() for beginning in beginnings)
#: Seconds that a data worker waits in all for threads to sleep.
_PATIENCE = 0.4
#: OpenBLAS's functions, as its builds call them: what comes before and after.
_BLAS_NAMES = tuple(
    (before, after) for before in ("openblas_", "scipy_openblas_") for after in ("", "64_")
)


class Remedy(NamedTuple):
    """A call that keeps a pool to the caller's thread, as the user would write it, and as it is."""

    call: str
    do: Callable[[], object]


class Pools(NamedTuple):
    """Pools of a data worker: their names, their threads beside the caller's, the remedies."""

    names: tuple[str, ...]
    threads: int
    remedies: tuple[Remedy, ...]


class Watch:
    """Looks at the threads of this process since it was made.

    OpenBLAS's threads spin for some 30 ms before they sleep and can be told. That is waited for,
    but not again and again for some that never sleep.
    """

    def __init__(self) -> None:
        self._before = threads.cpu_times()
        self._patience = _PATIENCE

    def at_work(self) -> Pools | None:
        """Return the pools whose threads have worked; None: there are none that can be told."""
        busy = threads.at_work(self._before)
        begun = time.monotonic()
        paths = threads.owners(busy, _ALL_FILES, self._patience) if busy else []
        self._patience = max(0.0, self._patience - (time.monotonic() - begun))
        names = [_name(path) for path in paths]
        found = tuple(dict.fromkeys(names))
        remedies = tuple(dict.fromkeys(one for name in found for one in _remedies(name)))
        return Pools(found, len(names), remedies) if remedies else None


def to_be_expected() -> Pools | None:
    """Return the pools that would start threads, as far as they can be asked beforehand."""
    cv2 = sys.modules.get("cv2")
    of_cv2 = cv2.getNumThreads() if cv2 is not None else 1
    of_torch = torch.get_num_threads()
    names = [name for name, number in (("OpenCV", of_cv2), ("torch", of_torch)) if number > 1]
    remedies = tuple(one for name in names for one in _remedies(name))
    return Pools(tuple(names), max(of_cv2, of_torch) - 1, remedies) if names else None


def _name(path: str) -> str:
    parts = path.split("/")[-4:]
    return next(
        name
        for name, beginnings in _FILES.items()
        if any(part.startswith(beginnings) for part in parts)
    )


def _remedies(name: str) -> Iterator[Remedy]:
    """Give the calls that keep a pool to one thread in this process, in the order they need."""
    if name == "OpenCV":
        # 1 would keep a pool of one thread; 0 runs everything in the caller's.
        yield Remedy("cv2.setNumThreads(0)", _one_of_opencv)
    elif name == "OpenBLAS":
        yield Remedy("threadpoolctl.threadpool_limits(1)", _one_of_libraries)
    elif name == "numexpr":
        yield Remedy("numexpr.set_num_threads(1)", _one_of_numexpr)
    elif name == "torch":
        yield Remedy("torch.set_num_threads(1)", _one_of_torch)
    elif name == "numba" or _numba_is_parallel():
        # To start numba's pool gives torch, which shares GNU's library, as many threads.
        yield Remedy("numba.set_num_threads(1)", _one_of_numba)
        yield Remedy("torch.set_num_threads(1)", _one_of_torch)
    elif torch.get_num_threads() > 1:
        yield Remedy("torch.set_num_threads(1)", _one_of_torch)
    else:
        yield Remedy("threadpoolctl.threadpool_limits(1)", _one_of_libraries)


def _numba_is_parallel() -> bool:
    numba, parallel = map(sys.modules.get, ("numba", "numba.np.ufunc.parallel"))
    if numba is None or not getattr(parallel, "_is_initialized", False):
        return False  # to ask for the number would start the threads
    return bool(numba.get_num_threads() > 1)


def _one_of_opencv() -> None:
    sys.modules["cv2"].setNumThreads(0)


def _one_of_numexpr() -> None:
    sys.modules["numexpr"].set_num_threads(1)


def _one_of_numba() -> None:
    sys.modules["numba"].set_num_threads(1)


def _one_of_torch() -> None:
    torch.set_num_threads(1)


def _one_of_libraries() -> None:
    """Do what threadpoolctl does, which need not be installed."""
    for _name, library in libraries.loaded(*_OPENBLAS):
        for before, after in _BLAS_NAMES:
            tell = getattr(library, f"{before}set_num_threads{after}", None)
            if tell is not None:
                tell(1)
    for _name, library in libraries.loaded(*openmp.RUNTIMES):
        library.omp_set_num_threads(1)
