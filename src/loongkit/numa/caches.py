"""Finds the CPUs that share a last-level cache."""

from __future__ import annotations

from loongkit.activation import cpulists, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from loongkit.activation.files import Tree

_CPUS = "sys/devices/system/cpu"
_TYPES = ("Data", "Instruction", "Unified")
_MOST_LEVELS = 9
_MOST_FOLDERS = 99


class Caches:
    """The caches of a machine, read sparingly.

    A cache is known by the set of CPUs that share it, never by its id: virtual machines give one
    cache several ids.
    """

    __slots__ = ("_last", "_notes", "_tree")

    def __init__(self, tree: Tree, notes: list[str]) -> None:
        self._tree = tree
        self._notes = notes
        self._last = -1  # the number of the folder that held the last level of the CPU before

    def last_levels(
        self, nodes: Sequence[frozenset[int]]
    ) -> tuple[tuple[frozenset[int], ...], bool]:
        """Return the sets of CPUs that share a last-level cache, cut at the borders of nodes.

        ``nodes`` are the CPUs of each node. CPUs whose cache can't be read form one set for each
        node; the second value is False then. The sets are in the order of their smallest CPUs.
        """
        found: list[frozenset[int]] = []
        known = True
        shared: dict[int, frozenset[int]] = {}  # from each CPU that a cache read before covers
        for cpus in nodes:
            left = set(cpus)
            for cpu in sorted(cpus):
                if cpu not in left:
                    continue
                sharing = shared.get(cpu) or self._last_level(cpu)
                shared.update(dict.fromkeys(sharing - cpus, sharing))
                if sharing:
                    found.append(frozenset(sharing & left))
                    left -= sharing
            if left:  # neither they nor others say whom they share a cache with
                known = False
                found.append(frozenset(left))
        return tuple(sorted(found, key=min)), known

    def _last_level(self, cpu: int) -> frozenset[int]:
        """Return the CPUs that share the last-level cache of one; none where that is unknown."""
        folder = f"{_CPUS}/cpu{cpu}/cache"
        # The kernel numbers caches from the inside out: where the folder of the CPU before is the
        # last one here too, it holds the last level, and none of the others has to be read.
        if self._last >= 0 and not self._tree.exists(f"{folder}/index{self._last + 1}"):
            sharing = self._sharing(f"{folder}/index{self._last}")
            if cpu in sharing:
                return sharing
        number = self._scan(folder)
        if number < 0:
            return frozenset()
        sharing = self._sharing(f"{folder}/index{number}")
        if cpu not in sharing:
            self._notes.append(
                f"{folder}/index{number}/shared_cpu_list: found no set of CPUs with CPU {cpu} in "
                "it; whom it shares this cache with counts as unknown"
            )
            return frozenset()
        self._last = number
        return sharing

    def _scan(self, folder: str) -> int:
        """Return the number of the last-level cache among the caches of a CPU, or -1.

        A first level is none: what shows no other (some guests) hides the rest.
        """
        best, highest = -1, 1
        for name in self._tree.names(folder):
            number = files.number(name.removeprefix("index"), _MOST_FOLDERS)
            if number < 0 or name != f"index{number}":
                continue
            level = self._level(f"{folder}/{name}/level")
            if level > highest and self._holds_data(f"{folder}/{name}/type"):
                best, highest = number, level
        return best

    def _level(self, path: str) -> int:
        text = self._tree.read(path)
        level = files.number(text, _MOST_LEVELS)
        if text and level < 1:
            wanted = f"a level from 1 to {_MOST_LEVELS}"
            files.note(self._notes, path, text, wanted, "the cache is passed over")
        return level

    def _holds_data(self, path: str) -> bool:
        text = self._tree.read(path)
        if text and text.strip() not in _TYPES:
            wanted = " or ".join(_TYPES)
            files.note(self._notes, path, text, wanted, "the cache is passed over")
        return text.strip() in ("Data", "Unified")

    def size(self, cpu: int) -> int:
        """Return the bytes of the last-level cache of a CPU, 0 where unknown; for pictures."""
        folder = f"{_CPUS}/cpu{cpu}/cache"
        number = self._scan(folder)
        path = f"{folder}/index{number}/size"
        text = self._tree.read(path) if number >= 0 else ""
        digits, unit, rest = text.strip().partition("K")
        size = files.number(digits) if unit and not rest else -1
        if text and size < 0:
            files.note(self._notes, path, text, "a size such as 32768K", "it counts as unknown")
        return max(size, 0) << 10

    def _sharing(self, folder: str) -> frozenset[int]:
        return cpulists.read(self._tree, f"{folder}/shared_cpu_list", self._notes) or frozenset()
