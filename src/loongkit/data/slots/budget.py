"""How much memory the slots of one data worker may take at most."""

from __future__ import annotations

import resource

from loongkit.activation.cgroups import Groups, memory_headroom
from loongkit.activation.files import Folder

#: The share of the memory that is still to be had which all slots of a loader may take together.
_SHARE = 0.25
#: A range of addresses is no memory, but a mapping of this size should be possible anywhere.
_MOST = 64 << 30


def worker_limit(workers: int, root: str = "/") -> int:
    """Return the bytes that one of so many workers may take; 0 where memory can't be read.

    A share of the least of what the machine has left and what each memory cgroup of this process,
    up to the root, has left. 0 also where addresses are limited.
    """
    if addresses_are_limited():
        return 0
    headroom = memory_headroom(Groups(Folder(root)))
    if headroom is None:
        return 0
    return min(int(headroom.free * _SHARE) // max(workers, 1), _MOST)


def addresses_are_limited() -> bool:
    """Tell whether a limit (``ulimit -v``) makes the long range of an arena cost the job room."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
