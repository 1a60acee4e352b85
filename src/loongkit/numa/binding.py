"""Binds the threads of this process to a plan's CPUs, and can put their masks back."""

from __future__ import annotations

from loongkit.activation import cpulists
from loongkit.numa.system import DEFAULT, PREFERRED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.system import System

#: A thread may be started by one that had not been bound yet when its turn came.
_PASSES = 4


class Binding:
    """The masks of one process: those it had, and those that a plan gave it.

    Threads whose mask differs from the process's own were pinned by somebody else (the user,
    NCCL, UCX) and are left alone, when binding and when putting back. ``inherits`` tells that a
    preference for a node's memory may be one of ours, which a process placed before has left.
    """

    def __init__(self, system: System, base: frozenset[int], inherits: bool = False) -> None:
        self._system = system
        self._inherits = inherits
        self.base = base
        self.bound: frozenset[int] | None = None
        self.memory: int | None = None

    def bind(self, cpus: frozenset[int], memory: int | None) -> list[str]:
        """Move the process to these CPUs and have it prefer a node's memory.

        Returns one line for each thing that the kernel refused; a refused memory policy leaves
        the CPUs bound.

        Raises:
            OSError: the kernel refuses the CPUs for the calling thread; nothing was changed.
        """
        before = self.bound or self.base
        try:
            self._system.set_mask(0, cpus)
        except OSError as error:
            what = f"the kernel refuses to bind this process to CPUs {cpulists.format(cpus)}"
            raise OSError(error.errno, f"{what}: {error.strerror}") from error
        self._move(before, cpus)
        self.bound = cpus
        return self._prefer(memory)

    def put_back(self) -> None:
        """Give every thread that was moved here the mask back that the process had."""
        if self.bound is None:
            return
        bound, self.bound = self.bound, None
        try:
            self._system.set_mask(0, self.base)
        except OSError:
            return  # the container's CPUs were changed in the meantime
        self._move(bound, self.base)
        if self.memory is not None:
            self._system.prefer_memory(None)
            self.memory = None

    def _prefer(self, memory: int | None) -> list[str]:
        if memory is None:
            return []
        if self._is_others(self._system.memory_policy()):
            return ["the memory policy that somebody else has set (numactl) is kept"]
        allowed = self._system.memory_nodes()
        if allowed and memory not in allowed:
            return [
                f"the memory of node {memory} is not preferred: this process may use that of "
                f"nodes {cpulists.format(allowed)}"
            ]
        refused = self._system.prefer_memory(memory)
        if refused:
            return [f"the memory of node {memory} can't be preferred: {refused}"]
        self.memory = memory
        return []

    def _is_others(self, policy: int) -> bool:
        """Tell whether a memory policy is neither the usual one nor, most likely, our own."""
        ours = policy == PREFERRED and (self.memory is not None or self._inherits)
        return policy != DEFAULT and not ours

    def _move(self, before: frozenset[int], cpus: frozenset[int]) -> None:
        """Give ``cpus`` to every thread whose mask is ``before``."""
        if before == cpus:
            return
        for _ in range(_PASSES):
            moved = [thread for thread in self._system.threads() if self._moves(thread, before)]
            if not moved:
                return
            for thread in moved:
                try:
                    self._system.set_mask(thread, cpus)
                except OSError:
                    continue  # it has ended

    def _moves(self, thread: int, before: frozenset[int]) -> bool:
        try:
            return self._system.mask(thread) == before
        except OSError:
            return False
