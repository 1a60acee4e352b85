"""Hosts and requests for tests of the plan, in a few words each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loongkit.activation import cpulists
from loongkit.activation.hardware import Accelerator
from loongkit.numa.records import Machine, Node, Plan, Request


def address(index: int) -> str:
    """The PCI address of the index-th accelerator of a host."""
    return f"0000:{16 + index:02x}:00.0"


def accelerator(index: int, node: int, name: str = "A100", kind: str = "nvidia") -> Accelerator:
    return Accelerator("NVIDIA" if kind == "nvidia" else kind, kind, address(index), name, node)


def host(
    nodes: Mapping[int, str] | Sequence[str],
    gpus: Iterable[int] = (),
    *,
    llcs: Iterable[str] | None = None,
    vendor: str = "intel",
    distances: Mapping[int, Mapping[int, int]] | None = None,
    packages: Mapping[int, int] | None = None,
    allowed: str | None = None,
    cpuset: str = "",
    uuids: bool = False,
) -> Machine:
    """A host by its nodes' CPU lists, its GPUs' nodes in PCI order, and its L3s' CPU lists.

    Without ``llcs`` the kernel shows no caches; without ``allowed`` all CPUs are.
    """
    lists = dict(nodes) if isinstance(nodes, Mapping) else dict(enumerate(nodes))
    cpus = {id: cpulists.parse(text) for id, text in lists.items()}
    rows = distances or {id: {other: 10 if other == id else 20 for other in cpus} for id in cpus}
    everything = frozenset().union(*cpus.values())
    caches = cpus.values() if llcs is None else map(cpulists.parse, llcs)
    cut = [cache & node for cache in caches for node in cpus.values() if cache & node]
    accelerators = tuple(accelerator(index, node) for index, node in enumerate(gpus))
    return Machine(
        nodes={id: Node(id, cpus[id], rows[id], (packages or {}).get(id, -1)) for id in cpus},
        llcs=tuple(sorted(cut, key=min)),
        llcs_known=llcs is not None,
        accelerators=accelerators,
        uuids={each.pci: f"GPU-{i:08x}-aaaa" for i, each in enumerate(accelerators) if uuids},
        vendor=vendor,
        allowed=everything if allowed is None else cpulists.parse(allowed),
        cpuset=cpulists.parse(cpuset),
    )


def request(
    rank: int,
    ranks: int | None = None,
    devices: Sequence[int | str] | None = None,
    *,
    given: Iterable[str] = (),
    **options: bool | str,
) -> Request:
    """What a rank asks; devices by index or address; without them rank i has accelerator i.

    Options count as given by the user, except those that are False and not in ``given``.
    """
    count = (len(devices) if devices is not None else rank + 1) if ranks is None else ranks
    chosen = range(count) if devices is None else devices
    return Request(
        local_rank=rank,
        ranks=count,
        devices=tuple(address(d) if isinstance(d, int) else d for d in chosen),
        options=options,
        given=frozenset(given) | {key for key, value in options.items() if value},
    )


def codes(plan: Plan) -> list[str]:
    return [code for code, _text in plan.reasons]


def shown(plan: Plan) -> tuple[str, str] | None:
    """The lists of the process and of its data workers; None where nothing is bound."""
    return (cpulists.format(plan.train), cpulists.format(plan.data)) if plan.active else None


def epyc_9654(gpus_a_socket: int, **more: object) -> Machine:
    """2 sockets of 96 cores, NPS1: 12 L3 of 8 cores a socket; the second threads are 192-383."""
    nodes = [f"{first}-{first + 95},{192 + first}-{287 + first}" for first in (0, 96)]
    llcs = [f"{c}-{c + 7},{192 + c}-{199 + c}" for c in range(0, 192, 8)]
    gpus = [0] * gpus_a_socket + [1] * gpus_a_socket
    return host(nodes, gpus, llcs=llcs, vendor="amd", **more)  # type: ignore[arg-type]


def hygon_32c(gpus: int) -> Machine:
    """One socket of 32 cores: 8 L3 of 4 cores; the second threads are 32-63."""
    llcs = [f"{c}-{c + 3},{32 + c}-{35 + c}" for c in range(0, 32, 4)]
    return host(["0-63"], [0] * gpus, llcs=llcs, vendor="hygon")


def epyc_7451(gpus_a_node: int) -> Machine:
    """2 sockets, 8 nodes of 6 cores with 2 L3 of 3 cores each; the second threads are 48-95."""
    nodes = [f"{c}-{c + 5},{48 + c}-{53 + c}" for c in range(0, 48, 6)]
    llcs = [f"{c}-{c + 2},{48 + c}-{50 + c}" for c in range(0, 48, 3)]
    gpus = [node for node in range(8) for _ in range(gpus_a_node)]
    return host(nodes, gpus, llcs=llcs, vendor="amd")


def kunpeng_920(gpus_a_node: int) -> Machine:
    """2 sockets, 4 nodes of 32 cores with one L3 each."""
    nodes = [f"{c}-{c + 31}" for c in range(0, 128, 32)]
    gpus = [node for node in range(4) for _ in range(gpus_a_node)]
    return host(nodes, gpus, llcs=nodes, vendor="hisilicon")


def ndv4() -> Machine:
    """4 nodes of 24 cores, whose 8 GPUs in PCI order are on nodes 1,1,0,0,3,3,2,2."""
    nodes = [f"{c}-{c + 23}" for c in range(0, 96, 24)]
    llcs = [f"{c}-{c + 3}" for c in range(0, 96, 4)]
    return host(nodes, [1, 1, 0, 0, 3, 3, 2, 2], llcs=llcs, vendor="amd")


def published_asymmetric(**more: object) -> Machine:
    """The example of the settings reference: GPUs 0 to 2 on their nodes, and node 3 near node 2."""
    near = {
        a: {b: 10 if a == b else 12 if {a, b} == {2, 3} else 21 for b in range(4)} for a in range(4)
    }
    nodes = [f"{c}-{c + 7}" for c in range(0, 32, 8)]
    llcs = [f"{c}-{c + 3}" for c in range(0, 32, 4)]
    return host(nodes, [0, 1, 2], llcs=llcs, distances=near, **more)  # type: ignore[arg-type]
