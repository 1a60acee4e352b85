"""CG-10: settings of the kernel that cost a training time. Said at the level info."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loongkit.guards.finding import Finding

if TYPE_CHECKING:
    from loongkit.activation.files import Tree

_BALANCING = "proc/sys/kernel/numa_balancing"
_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_FREQUENCY = "sys/devices/system/cpu/cpu0/cpufreq"
#: Drivers whose "powersave" follows the load, as their own documentation in the kernel says.
_BALANCED_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def findings(tree: Tree, bound: bool) -> list[Finding]:
    """Return what is found; ``bound``: the process is bound to a part of its host's CPUs."""
    found = [_balancing(tree) if bound else None, _huge_pages(tree), _governor(tree)]
    return [finding for finding in found if finding is not None]


def _balancing(tree: Tree) -> Finding | None:
    setting = tree.read(_BALANCING).strip()
    if not setting.isdecimal() or setting == "0":
        return None
    return _note(
        "balancing",
        "kernel.numa_balancing",
        int(setting),
        f"kernel.numa_balancing is {setting} and this process is bound to some CPUs: the kernel "
        "moves pages that are in place already",
        "set kernel.numa_balancing=0 on a machine for training",
    )


def _huge_pages(tree: Tree) -> Finding | None:
    if "[never]" not in tree.read(_HUGE_PAGES):
        return None
    return _note(
        "huge pages",
        "transparent_hugepage",
        0,
        "transparent huge pages are off: large arrays take a page fault for each 4 KB",
        f"write madvise to /{_HUGE_PAGES}",
    )


def _governor(tree: Tree) -> Finding | None:
    driver = tree.read(f"{_FREQUENCY}/scaling_driver").strip()
    if tree.read(f"{_FREQUENCY}/scaling_governor").strip() != "powersave":
        return None
    if driver in _BALANCED_DRIVERS:
        return None
    return _note(
        "governor",
        "scaling_governor",
        0,
        f"the CPU frequency governor is powersave with the driver {driver or 'unknown'}: the "
        "CPUs stay at their lowest frequency",
        "set it to schedutil or performance (cpupower frequency-set -g performance)",
    )


def _note(part: str, setting: str, number: int, problem: str, change: str) -> Finding:
    return Finding(f"CG-10 {part}", setting, number, 0, problem, change, informational=True)
