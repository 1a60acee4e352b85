"""Where a process and its data workers run, and why: the plan of NUMA_AFFINITY.

``plan`` is a pure function of a machine and a request. Each rank calls it for itself and all of
them come to parts of the same whole, since it depends on nothing but what they have in common.
It raises nothing: what can't be followed becomes a reason. Start-up code of the ranks of a job.
"""

from __future__ import annotations

from loongkit.activation import cpulists
from loongkit.numa import plan_caches, plan_cpus
from loongkit.numa.plan_nodes import (
    Reasons,
    counts,
    cpus_of,
    homes,
    job_accelerators,
    names,
    neighbours,
    with_cpus,
)
from loongkit.numa.records import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loongkit.numa.records import Machine, Request

_PREFIX = "LOONGKIT_NUMA_AFFINITY_"
_ON_GPULESS = ("train_on_gpuless", "data_worker_on_gpuless", "data_worker_gpuless_only")

#: Below these a binding that takes CPUs away is worth a warning.
_FEW_CPUS, _FEW_PERCENT = 2, 25
_FEW = "few-cpus"


def plan(machine: Machine, request: Request) -> Plan:
    """Decide where one process of a job and its data workers run.

    The reasons' codes. The user's own lists: ``cpus``, ``cpus-not-read``, ``cpus-too-few``,
    ``cpus-not-used``, ``cpus-not-allowed``. What is done: ``node``, ``gpuless-node``,
    ``llc-split``, ``roles-split``.
    What is left out: ``few-cpus``, ``ignored``, ``llc-uneven``, ``llc-unknown``, ``llc-gpuless``,
    ``peers-unknown``, ``no-local-rank``, ``roles-need-2-llc``, ``no-gpuless-node``. Why a plan is
    not active: ``no-topology``, ``no-gpu``, ``no-device-identity``, ``gpu-node-unknown``,
    ``asymmetric``, ``kept``, ``cpuset-excludes-node``, ``cpus-not-allowed``.
    """
    said = Reasons()
    explicit = plan_cpus.own(machine, request, said)
    if explicit is not None:
        return _explicit(machine, request, explicit, said)
    home = homes(machine)
    nodes = _own_nodes(machine, request, home, said)
    usable = cpus_of(machine, nodes)
    if not nodes or not _may_bind(machine, request, nodes, usable, home, said):
        return Plan(active=False, reasons=tuple(said.pairs), warnings=tuple(said.warnings))
    train, data = _place(machine, request, nodes, usable, home, said)
    _warn_of_few(machine, nodes, usable, train, said)
    return _active(request, train, data, nodes, said)


def not_followed(plan: Plan) -> list[str]:
    """Return what the user has set and an active plan leaves out: all it warns of but few CPUs."""
    return [text for code, text in plan.reasons if text in plan.warnings and code != _FEW]


def _active(
    request: Request, train: frozenset[int], data: frozenset[int], nodes: list[int], said: Reasons
) -> Plan:
    prefers = len(nodes) == 1 and bool(request.options.get("memory", True))
    return Plan(
        active=True,
        train=train,
        data=data,
        memory=nodes[0] if prefers else None,
        reasons=tuple(said.pairs),
        warnings=tuple(said.warnings),
    )


def _explicit(machine: Machine, request: Request, cpus: frozenset[int], said: Reasons) -> Plan:
    """Follow the user's own list."""
    if not cpus:
        said.say("cpus-not-allowed", f"this process may use none of {plan_cpus.VARIABLE}'s CPUs")
        return Plan(active=False, reasons=tuple(said.pairs), warnings=tuple(said.warnings))
    said.say("cpus", f"bound to CPUs {cpulists.format(cpus)}, by {plan_cpus.VARIABLE}")
    nodes = [id for id in with_cpus(machine) if machine.nodes[id].cpus & cpus]
    return _active(request, cpus, cpus, nodes, said)


def _own_nodes(
    machine: Machine, request: Request, home: Mapping[str, int], said: Reasons
) -> list[int]:
    """Return the home nodes of what this process computes on; none where one can't be known."""
    nodes = with_cpus(machine)
    if not nodes:
        said.say("no-topology", "the kernel shows no NUMA node with CPUs")
        return []
    if not machine.accelerators or not request.devices:
        whose = "this process may use" if machine.accelerators else "this host has"
        said.say("no-gpu", f"{whose} no accelerator")
        return []
    if len(nodes) == 1:
        return nodes
    rank = request.local_rank
    devices = request.devices if rank < 0 else request.devices[rank : rank + 1]
    if not devices or not all(devices):  # a local rank beyond the number of ranks has none
        text = "which accelerator this process uses can't be known"
        said.say("no-device-identity", text)
        return []
    if not _all_at_home(devices, home, said):
        return []
    return sorted({home[device] for device in devices})


def _all_at_home(devices: Iterable[str], home: Mapping[str, int], said: Reasons) -> bool:
    """Tell whether the node of each of some accelerators is known; ``said`` gets those not."""
    unknown = [device for device in devices if device not in home]
    if unknown:
        text = (
            f"the kernel does not say on which node {', '.join(unknown)} hangs; "
            f"{plan_cpus.VARIABLE} chooses CPUs by hand"
        )
        said.say("gpu-node-unknown", text)
    return not unknown


def _may_bind(
    machine: Machine,
    request: Request,
    nodes: list[int],
    usable: frozenset[int],
    home: Mapping[str, int],
    said: Reasons,
) -> bool:
    """Tell whether a process at home on some nodes is to be bound; ``said`` gets the cause."""
    if not _symmetric_or_allowed(machine, request, home, said) or _kept(machine, nodes, said):
        return False
    if not usable:
        said.say("cpuset-excludes-node", f"this process may use no CPU of {names(nodes)}")
    return bool(usable)


def _symmetric_or_allowed(
    machine: Machine, request: Request, home: Mapping[str, int], said: Reasons
) -> bool:
    """Tell whether the accelerators are spread evenly, or the user allows that they are not."""
    if request.options.get("allow_asymmetric"):
        return True
    idle = [_PREFIX + key.upper() for key in _ON_GPULESS if request.options.get(key)]
    if idle:
        text = f"{', '.join(idle)}: no effect without {_PREFIX}ALLOW_ASYMMETRIC=1"
        said.say("ignored", text, warn=True)
    accelerators = job_accelerators(machine, request.devices)
    if not _all_at_home(accelerators, home, said):
        return False
    spread = counts(machine, accelerators, home)
    if len(set(spread.values())) <= 1:
        return True
    found = ", ".join(f"node {id}: {number}" for id, number in spread.items())
    said.say(
        "asymmetric",
        f"the accelerators are not spread evenly over the NUMA nodes ({found}); "
        f"{_PREFIX}ALLOW_ASYMMETRIC=1 binds all the same",
    )
    return False


def _kept(machine: Machine, nodes: list[int], said: Reasons) -> bool:
    """Tell whether somebody has bound this process to CPUs of one node already."""
    cpuset = machine.cpuset or frozenset().union(*(node.cpus for node in machine.nodes.values()))
    if not machine.allowed < cpuset:
        return False
    within = [id for id in with_cpus(machine) if machine.allowed <= machine.nodes[id].cpus]
    if not within:
        return False
    mask = cpulists.format(machine.allowed)
    text = f"this process was bound to CPUs {mask} already and stays there"
    elsewhere = within[0] not in nodes
    if elsewhere:
        text += f", though they are of {names(within)} and its accelerator is on {names(nodes)}"
    said.say("kept", text, warn=elsewhere)
    return True


def _place(
    machine: Machine,
    request: Request,
    nodes: list[int],
    usable: frozenset[int],
    home: Mapping[str, int],
    said: Reasons,
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the CPUs of the process and of its data workers."""
    said.say("node", f"{names(nodes)}, home of the accelerator of this process")
    near = _near(machine, request, nodes, home, said)
    lent = cpus_of(machine, near)
    caches: list[frozenset[int]] = []
    train_lent = lent if request.options.get("train_on_gpuless") else frozenset()
    if plan_caches.wanted(machine, request):
        caches = _caches(machine, request, nodes, home, bool(train_lent), said)
    own = frozenset().union(*caches) or usable
    workers_lent = lent if request.options.get("data_worker_on_gpuless") else frozenset()
    if workers_lent and request.options.get("data_worker_gpuless_only"):
        return own | train_lent, workers_lent  # the roles are apart already
    train, data = plan_caches.by_roles(machine, request, caches, said) or (own, own)
    return train | train_lent, data | workers_lent


def _near(
    machine: Machine,
    request: Request,
    nodes: list[int],
    home: Mapping[str, int],
    said: Reasons,
) -> list[int]:
    """Return the nodes without an accelerator that the user's options lend to this process."""
    if not request.options.get("allow_asymmetric"):
        return []
    if not any(request.options.get(key) for key in _ON_GPULESS[:2]):
        return []
    accelerators = job_accelerators(machine, request.devices)
    if not _all_at_home(accelerators, home, said):
        return []
    with_gpu = {id for id, number in counts(machine, accelerators, home).items() if number}
    near = [
        id
        for node in nodes
        for id in neighbours(machine, node, with_gpu)
        if machine.nodes[id].cpus & machine.allowed
    ]
    if not near:
        said.say(
            "no-gpuless-node", f"no usable node without an accelerator is next to {names(nodes)}"
        )
    else:
        said.say("gpuless-node", f"lent to {names(nodes)}, without an accelerator: {names(near)}")
    return near


def _caches(
    machine: Machine,
    request: Request,
    nodes: list[int],
    home: Mapping[str, int],
    lent: bool,
    said: Reasons,
) -> list[frozenset[int]]:
    """Return the caches of this rank's own, none where its node's are not split."""
    if lent:
        text = (
            f"{_PREFIX}PARTITION_PER_LLC has no effect: {_PREFIX}TRAIN_ON_GPULESS lets the process "
            "use other nodes too"
        )
        said.say("llc-gpuless", text, warn=True)
        return []
    return plan_caches.share(machine, request, nodes[0], home, said)


def _warn_of_few(
    machine: Machine,
    nodes: list[int],
    usable: frozenset[int],
    train: frozenset[int],
    said: Reasons,
) -> None:
    """Warn where the container leaves so little of a node that binding takes most CPUs away."""
    total = sum(len(machine.nodes[id].cpus) for id in nodes)
    few = len(usable) < min(_FEW_CPUS, total) or 100 * len(usable) < _FEW_PERCENT * total
    if few and train < machine.allowed:
        text = (
            f"bound to {len(usable)} of the {total} CPUs of {names(nodes)}: this process may use "
            "no more of them; give its container CPUs of that node"
        )
        said.say(_FEW, text, warn=True)
