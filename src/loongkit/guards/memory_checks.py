"""The checks on memory, shared memory and open files: pure functions, all sizes in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loongkit.guards.finding import Finding

if TYPE_CHECKING:
    from loongkit.activation.cgroups import Headroom

#: What the job needs may come this near to a limit on open files: 3 of 4.
_NEAR = (3, 4)
#: From here on a limit on open files is no concern.
_PLENTY_OF_FILES = 65536
#: What the soft limit is raised to where there is no hard one: the kernel's default of nr_open.
_MOST_FILES = 1 << 20
#: Descriptors that a data worker costs its parent: two queues, an event, a sentinel.
_FILES_A_WORKER = 8
#: Growth below this is that of caches that fill, 16 MiB for each worker.
_NOISE = 16 << 20

#: A limit as the kernel writes "none" for resource.RLIM_INFINITY.
UNLIMITED = -1


class Batch(NamedTuple):
    """What one batch takes on its way from a worker: bytes of shared memory, and tensors."""

    size: int
    tensors: int


def shared_memory(
    free: int, total: int, batch: Batch, workers: int, prefetch: int, ranks: int
) -> Finding | None:
    """CG-06: /dev/shm holds the batches that wait, of all ranks on this host.

    ``free`` is what was free before the workers started. Docker gives a container 64 MB unless
    told otherwise (pytorch/pytorch#5040).
    """
    need = ranks * workers * prefetch * batch.size
    if batch.size == 0 or need <= free:
        return None
    of_all = f"{ranks} ranks x " if ranks > 1 else ""
    return Finding(
        "CG-06",
        "/dev/shm",
        free,
        need,
        f"/dev/shm has {_size(free)} of {_size(total)} free and waiting batches need "
        f"{_size(need)} ({of_all}{workers} workers x prefetch_factor {prefetch} x "
        f"{_size(batch.size)})",
        "enlarge it (docker run --shm-size, an emptyDir with medium: Memory), or lower "
        "prefetch_factor or num_workers",
    )


def open_files(
    soft: int, hard: int, opened: int, batch: Batch, workers: int, prefetch: int
) -> Finding | None:
    """CG-07: with the file_descriptor strategy each tensor on its way is an open file.

    ``opened``: files that this process has open now (pytorch/pytorch#973, #11201).
    """
    if soft == UNLIMITED or soft >= _PLENTY_OF_FILES:
        return None
    need = opened + workers * (_FILES_A_WORKER + prefetch * batch.tensors)
    if need * _NEAR[1] <= soft * _NEAR[0]:
        return None
    reachable = _MOST_FILES if hard == UNLIMITED else hard
    return Finding(
        "CG-07",
        "RLIMIT_NOFILE",
        soft,
        need,
        f"the limit of open files (ulimit -n) is {soft} and this rank needs about {need} "
        f"({opened} are open; {workers} workers x prefetch_factor {prefetch} x "
        f"{batch.tensors} tensors in a batch)",
        f"raise it (ulimit -n {min(reachable, _PLENTY_OF_FILES)}), or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        reachable if reachable > soft else None,
    )


def worker_memory(
    grown: int, batches: int, epoch: int, most: int, workers: int, ranks: int, headroom: Headroom
) -> Finding | None:
    """CG-08: forked workers that copy the data set page by page (pytorch/pytorch#13246).

    ``grown``: bytes that one worker has grown by in ``batches`` batches of an epoch of ``epoch``;
    ``most``: what it can copy from the training process. Growth of another kind, that goes on
    beyond that, is not foretold.
    """
    if grown < _NOISE or batches <= 0:
        return None
    each = min(most, grown * max(epoch, batches) // batches)
    need = ranks * workers * each
    if need <= headroom.free:
        return None
    of_all = f"{ranks} ranks x " if ranks > 1 else ""
    return Finding(
        "CG-08",
        "memory of the data workers",
        need,
        headroom.free,
        f"data workers have grown by {_size(grown)} each in {batches} batches; an epoch may take "
        f"{_size(need)} ({of_all}{workers} workers x {_size(each)}) and {headroom.source} of "
        f"{_size(headroom.limit)} leaves {_size(headroom.free)}",
        "lower num_workers, or keep the data set in arrays or tensors instead of Python lists",
    )


def _size(count: int) -> str:
    if count < 10 << 20:
        return f"{count / (1 << 20):.1f} MB"
    return f"{count >> 20} MB" if count < 10 << 30 else f"{count >> 30} GB"
