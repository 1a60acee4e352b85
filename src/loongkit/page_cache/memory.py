"""How much of the memory is page cache, and the cgroup that is charged for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation.cgroups import machine_memory, memory_stat

if TYPE_CHECKING:
    from loongkit.activation.cgroups import Groups
    from loongkit.activation.files import Tree

MIB = 1 << 20
#: Bounds of the computed limit: these shares of the memory, and not less than this.
_SHARE, _LARGEST_SHARE, _LEAST = 0.3, 0.5, 512 * MIB


class MemoryCgroup(NamedTuple):
    """The memory cgroup of this process: its generation, and its folder."""

    generation: int
    folder: str
    is_root: bool


def own_cgroup(groups: Groups) -> MemoryCgroup | None:
    """Find the memory cgroup that this process is charged to; None: there is none, or unreadable.

    None as well where it is charged to a group further up: that is not ours alone.
    """
    folder = next(iter(groups.folders("memory")), "")
    if not folder or not groups.tree.exists(f"{folder}/memory.stat"):
        return None
    generation = groups.generation("memory")
    if generation == 1:  # the root alone has it
        is_root = groups.tree.exists(f"{folder}/cgroup.sane_behavior")
    else:  # the root alone has no limit
        is_root = not groups.tree.exists(f"{folder}/memory.max")
    return MemoryCgroup(generation, folder, is_root)


def automatic_limit(memory: int) -> int:
    """Return the limit in bytes for a machine or container of that many bytes."""
    return int(min(max(_SHARE * memory, _LEAST), _LARGEST_SHARE * memory))


def page_cache(tree: Tree, cgroup: MemoryCgroup | None) -> int | None:
    """Return the bytes of files in the page cache that can be reclaimed; None: not to be told.

    Without shared memory, which ``file`` and ``Cached`` would count as well.
    """
    if cgroup is not None and not cgroup.is_root:
        numbers = memory_stat(tree, cgroup.folder)
        prefix = "total_" if "total_inactive_file" in numbers else ""  # v1: with its children
        names = [prefix + name for name in ("inactive_file", "active_file")]
    else:
        numbers = machine_memory(tree)
        names = ["Inactive(file)", "Active(file)"]
    found = [numbers[name] for name in names if name in numbers]
    return sum(found) if found else None


def dirty_files(tree: Tree, cgroup: MemoryCgroup | None) -> int:
    """Return the bytes of files that are not yet written back; 0 where that can't be told."""
    if cgroup is None or cgroup.is_root:
        return machine_memory(tree).get("Dirty", 0)
    numbers = memory_stat(tree, cgroup.folder)
    return numbers.get("file_dirty", numbers.get("total_dirty", 0))


def has_swap(tree: Tree) -> bool:
    """Tell whether anonymous memory could be swapped out."""
    return machine_memory(tree).get("SwapTotal", 0) > 0
