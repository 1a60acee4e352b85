"""The records that pass between the topology reader, the planner and what applies a plan.

Loaded at interpreter start in the ranks of a job: plain classes, nothing imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.activation.hardware import Accelerator


class Node:
    """One NUMA node: its online CPUs (none: a node of memory alone), its package (-1: unknown).

    ``distances`` maps the id of each online node to the kernel's distance (10: itself).
    """

    __slots__ = ("cpus", "distances", "id", "package")

    def __init__(
        self, id: int, cpus: frozenset[int], distances: Mapping[int, int], package: int = -1
    ) -> None:
        self.id = id
        self.cpus = cpus
        self.distances = distances
        self.package = package


class Machine:
    """What a plan needs to know of one host.

    ``nodes`` by id (ids may be sparse); ``llcs`` are the CPU sets that share a last-level cache,
    by their smallest CPU, cut at the borders of nodes, and one for each node where the kernel
    shows no caches (``llcs_known`` is False then); ``accelerators`` are all physical training
    devices in the order of their PCI addresses, whatever this process may see of them;
    ``uuids`` maps PCI addresses to the driver's uuids, where known; ``vendor`` is the CPU's.
    ``allowed`` is this process's mask when Loongkit was loaded; it lies within ``cpuset``, the CPUs
    that the container leaves to all of its processes (empty: not known). ``notes`` say what could
    not be read, and what is taken instead.
    """

    __slots__ = (
        "accelerators",
        "allowed",
        "cpuset",
        "llcs",
        "llcs_known",
        "nodes",
        "notes",
        "uuids",
        "vendor",
    )

    def __init__(
        self,
        *,
        nodes: Mapping[int, Node],
        llcs: tuple[frozenset[int], ...],
        llcs_known: bool,
        accelerators: tuple[Accelerator, ...],
        uuids: Mapping[str, str],
        vendor: str,
        allowed: frozenset[int],
        cpuset: frozenset[int] = frozenset(),
        notes: tuple[str, ...] = (),
    ) -> None:
        self.nodes = nodes
        self.llcs = llcs
        self.llcs_known = llcs_known
        self.accelerators = accelerators
        self.uuids = uuids
        self.vendor = vendor
        self.allowed = allowed
        self.cpuset = cpuset
        self.notes = notes


class Request:
    """What one process asks to be planned for.

    ``local_rank`` and ``ranks`` (processes of the job on this host); ``devices`` holds for each
    local rank the PCI address of its accelerator, "" where it can't be known, the same on every
    rank; none at all where the job may use no accelerator. ``local_rank`` is -1 where nobody has
    said it (a notebook, DataParallel): ``devices`` are then all those that the process may use.
    ``options`` are those of numa_affinity by key, ``given`` the keys that the user has set.
    """

    __slots__ = ("devices", "given", "local_rank", "options", "ranks")

    def __init__(
        self,
        *,
        local_rank: int,
        ranks: int,
        devices: tuple[str, ...],
        options: Mapping[str, bool | int | str],
        given: frozenset[str] = frozenset(),
    ) -> None:
        self.local_rank = local_rank
        self.ranks = ranks
        self.devices = tuple(device.lower() for device in devices)
        self.options = options
        self.given = given


class Plan:
    """Where one process and its data workers run.

    ``active`` is False where nothing is to be bound; ``train`` and ``data`` are CPU sets within
    the allowed mask; ``memory`` is the node whose memory is preferred, None: leave it alone.
    ``reasons`` are (code, text) pairs in the order of the decisions, the last one of a plan that
    is not active being its cause; ``warnings`` those texts that the user should hear of.
    """

    __slots__ = ("active", "data", "memory", "reasons", "train", "warnings")

    def __init__(
        self,
        *,
        active: bool,
        train: frozenset[int] = frozenset(),
        data: frozenset[int] = frozenset(),
        memory: int | None = None,
        reasons: tuple[tuple[str, str], ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.active = active
        self.train = train
        self.data = data
        self.memory = memory
        self.reasons = reasons
        self.warnings = warnings
