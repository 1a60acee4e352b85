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
#: Growth below this is that of caches that fill, 16 MiB for each worker.
_NOISE = 16 << 20

#: A limit as the kernel writes "none" for resource.RLIM_INFINITY.
UNLIMITED = -1


class Batch(NamedTuple):
    """What one batch takes on its way from a worker: bytes of shared memory, and tensors."""

    size: int
    tensors: int


class OnTheirWay(NamedTuple):
    """What bounds the batches of one rank that workers have made and the training has not freed.

    One slow worker is enough for it: the others fill up what they are allowed.
    """

    workers: int
    prefetch: int
    pinned: bool

    @property
    def batches(self) -> int:
        """Those that wait, and the one in use; that is a copy where memory is pinned."""
        return self.workers * self.prefetch + (not self.pinned)

    @property
    def files(self) -> int:
        """The batches whose tensors one process may hold open: the pinning frees each at once."""
        return self.prefetch + 1 if self.pinned else self.batches

    @property
    def said(self) -> str:
        """The settings behind the numbers."""
        return f"num_workers={self.workers}, prefetch_factor={self.prefetch}"


class SharedMemory(NamedTuple):
    """Bytes of /dev/shm: free before the workers started, free when the loader was made, all."""

    free: int
    free_before: int
    total: int

    def for_all(self, ranks: int, each: int) -> int:
        """Return what all ranks find free, of which others may have taken their part already."""
        return self.free if ranks == 1 else min(self.free_before, self.free + (ranks - 1) * each)


def shared_memory(
    shared: SharedMemory, batch: Batch, on_their_way: OnTheirWay, ranks: int
) -> Finding | None:
    """CG-06: /dev/shm holds the batches on their way, of all ranks on this host.

    Docker gives a container 64 MB unless told otherwise (pytorch/pytorch#5040).
    """
    each = on_their_way.batches * batch.size
    need, free = ranks * each, shared.for_all(ranks, each)
    if batch.size == 0 or need <= free:
        return None
    of_all = f"{ranks} ranks x " if ranks > 1 else ""
    return Finding(
        "CG-06",
        "/dev/shm",
        free,
        need,
        f"/dev/shm has {_size(free)} of {_size(shared.total)} free and batches on their way "
        f"may take up to {_size(need)} ({of_all}{on_their_way.batches} batches x "
        f"{_size(batch.size)}; {on_their_way.said})",
        "enlarge it (docker run --shm-size, an emptyDir with medium: Memory), or lower "
        "prefetch_factor or num_workers",
    )


def open_files(
    soft: int, hard: int, opened: int, batch: Batch, on_their_way: OnTheirWay
) -> Finding | None:
    """CG-07: with the file_descriptor strategy each tensor on its way is an open file.

    ``opened``: files that this process had open when its workers had started, and no batch had
    come (pytorch/pytorch#973, #11201).
    """
    if not could_be_short(soft):
        return None
    need = opened + on_their_way.files * batch.tensors
    if need * _NEAR[1] <= soft * _NEAR[0]:
        return None
    reachable = most_files(hard)
    enough = need * _NEAR[1] // _NEAR[0] + 1
    if reachable >= enough:
        change = f"raise it (ulimit -n {min(reachable, max(enough, _PLENTY_OF_FILES))})"
    else:
        change = (
            f"raise the hard limit, which is {hard} (docker run --ulimit nofile="
            f"{_PLENTY_OF_FILES}, limits.conf)"
        )
    return Finding(
        "CG-07",
        "RLIMIT_NOFILE",
        soft,
        need,
        f"the limit of open files (ulimit -n) is {soft} and a process of this job may need up to "
        f"{need} ({opened} are open; {on_their_way.files} batches of {batch.tensors} tensors may "
        f"be on their way: {on_their_way.said})",
        f"{change}, or call torch.multiprocessing.set_sharing_strategy('file_system')",
        reachable if reachable > soft else None,
    )


def could_be_short(soft: int) -> bool:
    """Tell whether a limit on open files is one that a job could come near to."""
    return soft != UNLIMITED and soft < _PLENTY_OF_FILES


def most_files(hard: int) -> int:
    """Return what a soft limit can be raised to under a hard one."""
    return _MOST_FILES if hard == UNLIMITED else hard


def worker_memory(
    grown: int, batches: int, most: int, workers: int, ranks: int, headroom: Headroom
) -> Finding | None:
    """CG-08: forked workers that copy the data set page by page (pytorch/pytorch#13246).

    ``grown``: bytes that one worker has grown by in ``batches`` batches; ``most``: what it can copy
    from the training process. Growth of another kind, that goes on beyond that, is not foretold.
    Looked at whenever the batches have doubled, growth that is steady is told of before it fills
    the memory, and nobody has to be asked how long an epoch is.
    """
    if grown < _NOISE:
        return None
    each = min(most - grown, grown)
    need = ranks * workers * each
    if need <= headroom.free:
        return None
    of_all = f"{ranks} ranks x " if ranks > 1 else ""
    return Finding(
        "CG-08",
        "memory of the data workers",
        need,
        headroom.free,
        f"data workers have grown by {_size(grown)} each in {batches} batches; as many again may "
        f"take {_size(need)} more ({of_all}{workers} workers x {_size(each)}), and "
        f"{headroom.source} of {_size(headroom.limit)} leaves {_size(headroom.free)}",
        "lower num_workers, or keep the data set in arrays or tensors instead of Python lists",
    )


def _size(count: int) -> str:
    if count < 10 << 20:
        return f"{count / (1 << 20):.1f} MB"
    return f"{count >> 20} MB" if count < 10 << 30 else f"{count >> 30} GB"
