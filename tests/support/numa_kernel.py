"""The kernel's calls that place a process, as a test wants them to go."""

from __future__ import annotations

from loongkit.numa.system import DEFAULT, PREFERRED, System


class Kernel(System):
    """Threads and their masks, as a test sets them."""

    def __init__(self, masks: dict[int, frozenset[int]]) -> None:
        self.masks = masks
        self.nodes = frozenset({0, 1})
        self.refuses: set[int] = set()
        self.memory_refused = ""
        self.preferred: list[int | None] = []
        self.policy = DEFAULT

    def threads(self) -> list[int]:
        return [thread or 100 for thread in self.masks]

    def mask(self, thread: int = 0) -> frozenset[int]:
        thread = 0 if thread == 100 else thread
        if thread not in self.masks:
            raise ProcessLookupError(thread)
        return self.masks[thread]

    def set_mask(self, thread: int, cpus: frozenset[int]) -> None:
        thread = 0 if thread == 100 else thread
        if thread in self.refuses:
            raise OSError(22, "Invalid argument")
        self.masks[thread] = cpus

    def memory_nodes(self) -> frozenset[int]:
        return self.nodes

    def prefer_memory(self, node: int | None) -> str:
        self.preferred.append(node)
        if not self.memory_refused:
            self.policy = DEFAULT if node is None else PREFERRED
        return self.memory_refused

    def memory_policy(self) -> int:
        return self.policy
