"""The checks on CPU time: each a pure function that returns what it found, or None.

A setting is judged against one rank's share of the CPUs and against its share of the container's
quota. Only the former is mended: a quota limits CPU time and not how much runs at once
(kubernetes-sigs/inference-perf#722), so a number above it may well be meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loongkit.guards.budget import Bound
from loongkit.guards.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loongkit.guards.allowance import Allowance
    from loongkit.guards.budget import Budget
    from loongkit.guards.pools import Pools

#: Fewer inter-op threads than this are never worth a word.
_FEW_INTEROP = 4


def intra_op_threads(threads: int, budget: Budget, chosen: bool) -> Finding | None:
    """CG-01: torch's own threads in the training process.

    ``chosen``: the user has set OMP_NUM_THREADS or MKL_NUM_THREADS, which is never overruled.
    Every rank with threads for the whole machine: pytorch/pytorch#22260.
    """
    exceeded = _exceeded(threads, budget, _all)
    if exceeded is None:
        return None
    bound, limit, fix = exceeded
    # Where it is set, that is followed already, or something else decides.
    otherwise = "" if chosen else f"set OMP_NUM_THREADS={limit} or "
    return Finding(
        "CG-01",
        "torch.get_num_threads()",
        threads,
        limit,
        f"torch.get_num_threads() is {threads}, more than {limit} ({bound.reason})",
        f"{otherwise}call torch.set_num_threads({limit})",
        None if chosen else fix,
    )


def inter_op_threads(
    threads: int, budget: Budget, running: bool, machine_cpus: int
) -> Finding | None:
    """CG-02: torch's pool for TorchScript's parallel tasks.

    Its size is by default the machine's, and nothing comes of that in a job that never starts the
    pool: such a job is not warned, though the size may be mended.
    """
    exceeded = _exceeded(threads, budget, lambda share: max(_FEW_INTEROP, share))
    if exceeded is None:
        return None
    bound, limit, fix = exceeded
    return Finding(
        "CG-02",
        "torch.get_num_interop_threads()",
        threads,
        limit,
        f"torch.get_num_interop_threads() is {threads}, more than {limit} ({bound.reason})",
        f"call torch.set_num_interop_threads({limit}) at the start of the script",
        None if running else fix,
        informational=not running and threads <= machine_cpus,
    )


def data_workers(workers: int, budget: Budget, iterable: bool) -> Finding | None:
    """CG-03: the data workers of one DataLoader, beside the training process itself.

    ``iterable``: the data set is an IterableDataset, whose samples and order depend on the number
    of workers: it is left alone. One of 104 workers on 23 CPUs: embeddings-benchmark/mteb#1331.
    """
    limits = _limits(budget, worker_limit)
    if budget.data_cpus is not None:
        kept = Bound(budget.data_cpus, "CPUs that NUMA_AFFINITY keeps for data workers")
        limits[0] = (kept, kept.cpus)
    exceeded = _tightest(workers, limits)
    if exceeded is None:
        return None
    bound, limit, fix = exceeded
    order = " (the samples of an IterableDataset and their order depend on it)" if iterable else ""
    return Finding(
        "CG-03",
        "num_workers",
        workers,
        limit,
        f"a DataLoader has num_workers={workers}, more than the {limit} that fit ({bound.reason})",
        f"set num_workers={limit}{order}",
        None if iterable else fix,
    )


def worker_limit(share: int) -> int:
    """Return how many data workers fit beside a training process on its share of the CPUs.

    One CPU is the training's. With one or two there is none to set aside: a worker waits for the
    training or the training for it, whatever is set.
    """
    return share - 1 if share > 2 else share


def worker_threads(
    pools: Pools | None, workers: int, budget: Budget, running: bool
) -> Finding | None:
    """CG-04: threads that each data worker starts by itself, all workers of a rank together.

    ``running``: they were seen at work. Measured on mmdet with 16 workers: 23 % of the CPU's time
    in the kernel, 4 % after cv2.setNumThreads(0) (open-mmlab/mmdetection#6867;
    opencv/opencv#15277).
    """
    if pools is None:
        return None
    threads = 1 + pools.threads
    exceeded = _exceeded(workers * threads, budget, _all)
    if exceeded is None:
        return None
    bound, limit, _fix = exceeded
    each = "the data worker" if workers == 1 else f"each of {workers} data workers"
    beside = f"{pools.threads} thread{'s' if pools.threads > 1 else ''} of {_and(pools.names)}"
    return Finding(
        "CG-04 at work" if running else "CG-04",
        "threads of a data worker",
        threads,
        max(1, limit // workers),
        f"{each} {'keeps' if running else 'may keep'} {beside} busy beside its own, "
        f"{workers * threads} in all, more than {limit} ({bound.reason})",
        f"call {_and(remedy.call for remedy in pools.remedies)} in worker_init_fn",
        1,
    )


def _and(words: Iterable[str]) -> str:
    return " and ".join(words)


def compile_workers(threads: int, budget: Budget, chosen: bool) -> Finding | None:
    """CG-05: the processes in which inductor compiles kernels, for each rank.

    ``chosen``: TORCHINDUCTOR_COMPILE_THREADS is set. inductor takes up to 32 for each rank, and
    looks neither at the other ranks nor at a quota (pytorch/pytorch#190941, #191385).
    """
    exceeded = _exceeded(threads, budget, _all)
    if exceeded is None:
        return None
    bound, _limit, fix = exceeded
    wanted = max(1, bound.cpus // 2)
    return Finding(
        "CG-05",
        "torch._inductor.config.compile_threads",
        threads,
        bound.cpus,
        f"inductor compiles with {threads} processes in each rank, more than "
        f"{bound.cpus} ({bound.reason})",
        f"set TORCHINDUCTOR_COMPILE_THREADS={wanted}",
        max(1, budget.share // 2) if fix is not None and not chosen else None,
    )


def pinned_main_thread(allowance: Allowance, workers: int) -> Finding | None:
    """CG-09: the main thread is bound to fewer CPUs than its process, and hands that on.

    See pytorch/pytorch#101850. OpenMP's binding is undone in the workers; what a script has bound
    stays bound.
    """
    mask, cpus, variables = allowance
    if mask == cpus:
        return None
    cause = f"{'/'.join(variables)} has bound" if variables else "something has bound"
    instead = f", or unset {_and(variables)}" if variables else ""
    return Finding(
        "CG-09",
        "CPUs of the data workers",
        len(mask),
        len(cpus),
        f"{cause} the main thread to {len(mask)} of the {len(cpus)} CPUs of its process, and "
        f"{_workers(workers)} inherited that",
        f"call os.sched_setaffinity(0, {_as_code(cpus)}) in worker_init_fn{instead}",
        len(cpus) if variables else None,
    )


def _as_code(cpus: frozenset[int]) -> str:
    """Return CPUs as Python would be told them."""
    first, last = min(cpus), max(cpus)
    whole = last - first + 1 == len(cpus)
    return f"range({first}, {last + 1})" if whole else f"{{{', '.join(map(str, sorted(cpus)))}}}"


def _workers(count: int) -> str:
    return "its data worker" if count == 1 else f"{count} data workers"


def _exceeded(
    number: int, budget: Budget, limit_of: Callable[[int], int]
) -> tuple[Bound, int, int | None] | None:
    return _tightest(number, _limits(budget, limit_of))


def _limits(budget: Budget, limit_of: Callable[[int], int]) -> list[tuple[Bound, int]]:
    """Return the bounds with the limits that follow from them: that of the mask, then a quota."""
    bounds = filter(None, (budget.mask, budget.time))
    return [(bound, limit_of(bound.cpus)) for bound in bounds]


def _tightest(number: int, limits: list[tuple[Bound, int]]) -> tuple[Bound, int, int | None] | None:
    """Return the bound that a number exceeds, its limit, and the limit to mend it by.

    The tightest speaks; only the first, that of the mask, mends.
    """
    fix = limits[0][1] if number > limits[0][1] else None
    bound, limit = min(limits, key=lambda pair: pair[1])
    return (bound, limit, fix) if number > limit else None


def _all(share: int) -> int:
    return share
