"""The last-level caches of a plan: shares of a node's caches for its ranks, and for their roles.

Pure functions on a machine's record; start-up code of the ranks of a job.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.numa.plan_nodes import Reasons
    from loongkit.numa.records import Machine, Request

#: CPUs made of small groups of cores with a cache each: there the split is the default.
SPLIT_VENDORS = ("amd", "hygon")

_SPLIT = "LOONGKIT_NUMA_AFFINITY_PARTITION_PER_LLC"
_ROLES = "LOONGKIT_NUMA_AFFINITY_SEPARATE_BY_ROLES"


def wanted(machine: Machine, request: Request) -> bool:
    """Tell whether the caches are to be split: as the user says, else as the hardware has it."""
    if "partition_per_llc" in request.given:
        return bool(request.options.get("partition_per_llc"))
    if request.options.get("allow_asymmetric"):
        return False
    return machine.vendor in SPLIT_VENDORS


def share(
    machine: Machine, request: Request, node: int, home: Mapping[str, int], said: Reasons
) -> list[frozenset[int]]:
    """Return the caches of a node that are this rank's own, as CPU sets; none: not to be split.

    The caches of a node are dealt out in contiguous, equal runs to the ranks whose accelerators
    are at home there, in the order of PCI addresses, then of local ranks. All are used, or
    there is no split, and ``said`` gets the cause.
    """
    explicit = "partition_per_llc" in request.given

    def refuse(code: str, text: str) -> list[frozenset[int]]:
        how = f"{_SPLIT} has no effect" if explicit else "L3 caches are not split"
        said.say(code, f"{how}: {text}", warn=explicit)
        return []

    if request.local_rank < 0 and len(request.devices) > 1:
        count = len(request.devices)
        return refuse("no-local-rank", f"one process without a local rank uses {count} devices")
    cpus = machine.nodes[node].cpus
    caches = [cache for cache in machine.llcs if not cache.isdisjoint(cpus)]
    if not machine.llcs_known or not _cover(caches, cpus):
        return refuse("llc-unknown", f"the kernel does not show the caches of node {node}")
    ranks = ranks_on(machine, request, node, home)
    rank = max(request.local_rank, 0)
    if ranks is None or rank not in ranks:
        return refuse("peers-unknown", "the accelerators of the other ranks can't be known")
    if not cpus <= machine.allowed:
        if machine.cpuset and cpus & machine.allowed != cpus & machine.cpuset:
            # Slurm and others give each task a mask; shares of different wholes leave CPUs idle.
            return refuse(
                "peers-unknown", "somebody gave this process CPUs, maybe not so its peers"
            )
        caches = sorted(filter(None, (cache & machine.allowed for cache in caches)), key=min)
    if len(caches) % len(ranks):
        return refuse(
            "llc-uneven",
            f"node {node} has {len(caches)} last-level cache{'s' * (len(caches) > 1)}, which can't "
            f"be divided evenly among {len(ranks)} training processes",
        )
    sizes = sorted({len(cache) for cache in caches})
    if len(sizes) > 1:
        return refuse(
            "llc-uneven",
            f"the last-level caches of node {node} have unequal numbers of usable CPUs, "
            f"{sizes[0]} to {sizes[-1]}",
        )
    each = len(caches) // len(ranks)
    first = ranks.index(rank) * each
    said.say("llc-split", f"{each} of the {len(caches)} last-level caches of node {node}")
    return caches[first : first + each]


def _cover(caches: list[frozenset[int]], cpus: frozenset[int]) -> bool:
    """Tell whether each CPU has one of these caches."""
    return sum(map(len, caches)) == len(cpus) == len(frozenset().union(*caches))


def ranks_on(
    machine: Machine, request: Request, node: int, home: Mapping[str, int]
) -> list[int] | None:
    """Return the local ranks at home on a node in the order of their shares.

    None: some rank's place can't be known, so that shares could overlap.
    """
    place = {each.pci: i for i, each in enumerate(machine.accelerators)}
    devices = request.devices
    if len(devices) < request.ranks or not home.keys() >= set(devices):
        return None
    there = [rank for rank, device in enumerate(devices) if home[device] == node]
    return sorted(there, key=lambda rank: place[devices[rank]])  # equal ones stay in their order


def by_roles(
    machine: Machine, request: Request, caches: list[frozenset[int]], said: Reasons
) -> tuple[frozenset[int], frozenset[int]] | None:
    """Return the CPUs of a rank and of its data workers on caches of their own.

    The rank gets the first half of the caches and the odd one. None where the option is off or
    has no effect, ``said`` then having the cause.
    """
    if not request.options.get("separate_by_roles"):
        return None
    if len(caches) < 2:
        if caches:
            found = "this process has a single one"
        elif wanted(machine, request):
            found = "they can't be split"
        else:
            found = f"they are not split; {_SPLIT}=1 does that"
        text = f"{_ROLES} has no effect: it needs 2 last-level caches for a process, and {found}"
        said.say("roles-need-2-llc", text, warn=True)
        return None
    half = (len(caches) + 1) // 2
    said.say(
        "roles-split",
        f"last-level caches: {half} for training, {len(caches) - half} for data workers",
    )
    return frozenset().union(*caches[:half]), frozenset().union(*caches[half:])
