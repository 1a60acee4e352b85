"""The operating system's calls that place a process: masks of threads, and the memory policy.

One small class, so that tests can stand in for the kernel. Loaded at interpreter start in ranks.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: set_mempolicy(2) and get_mempolicy(2) by machine, from the kernel's system call tables; other
#: machines: left alone.
_MEMPOLICY = {
    "x86_64": (238, 239),
    "aarch64": (237, 236),
    "riscv64": (237, 236),
    "loongarch64": (237, 236),
}
DEFAULT, PREFERRED = 0, 1
_BITS = 1024  # as many nodes as any kernel is built for


class System:
    """The kernel, as seen by this process."""

    def threads(self) -> list[int]:
        """Return the ids of this process's threads."""
        return [int(name) for name in os.listdir("/proc/self/task")]

    def mask(self, thread: int = 0) -> frozenset[int]:
        """Return the CPUs that a thread may run on (0: the calling one).

        Raises:
            OSError: the thread has ended.
        """
        return frozenset(os.sched_getaffinity(thread))

    def set_mask(self, thread: int, cpus: frozenset[int]) -> None:
        """Restrict a thread to some CPUs.

        Raises:
            OSError: the thread has ended, or the container allows none of them.
        """
        os.sched_setaffinity(thread, cpus)

    def memory_nodes(self) -> frozenset[int]:
        """Return the nodes whose memory this process may use; none: the kernel does not say."""
        from loongkit.activation import cpulists

        try:
            with open("/proc/self/status", encoding="ascii", errors="replace") as file:
                for line in file:
                    if line.startswith("Mems_allowed_list:"):
                        return cpulists.parse(line.partition(":")[2])
        except (OSError, ValueError):
            pass
        return frozenset()

    def memory_policy(self) -> int:
        """Return the mode of this thread's memory policy; ``DEFAULT``, too, where none is told."""
        numbers = _MEMPOLICY.get(os.uname().machine)
        if numbers is None:
            return DEFAULT
        import ctypes

        mode = ctypes.c_int(DEFAULT)
        library: Any = ctypes.CDLL(None, use_errno=True)
        done = library.syscall(numbers[1], ctypes.byref(mode), None, 0, None, 0)
        # Flags, such as those of static nodes, stand above the mode.
        return mode.value & 0xFF if done == 0 else DEFAULT

    def prefer_memory(self, node: int | None) -> str:
        """Have this thread and its children allocate from a node first; None: as the kernel likes.

        Preferred, never bound: memory that is full spills over to other nodes instead of getting
        the job killed. Returns the reason where that can't be done, "" where it was.
        """
        numbers = _MEMPOLICY.get(os.uname().machine)
        if numbers is None:
            return f"the system call's number is not known for {os.uname().machine}"
        import ctypes

        library: Any = ctypes.CDLL(None, use_errno=True)
        if node is None:
            done = library.syscall(numbers[0], DEFAULT, None, 0)
        else:
            word = 8 * ctypes.sizeof(ctypes.c_ulong)
            nodes = (ctypes.c_ulong * (_BITS // word))()
            nodes[node // word] = 1 << (node % word)
            # The kernel takes one bit less than it is told (BUGS in set_mempolicy(2)).
            done = library.syscall(numbers[0], PREFERRED, nodes, _BITS + 1)
        return "" if done == 0 else os.strerror(ctypes.get_errno())
