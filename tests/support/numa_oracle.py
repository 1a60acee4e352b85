"""The placement rules once more, by brute force: each CPU is asked whether a process may have it.

Written from the rules' text, with nothing of the planner's in it. Slow, and without reasons.
"""

from __future__ import annotations

from loongkit.numa.records import Machine, Node, Request

Answer = tuple[frozenset[int], frozenset[int], int | None]


def answer(machine: Machine, request: Request) -> Answer | None:
    """CPUs of the process and of its workers, and its memory node; None: nothing is bound.

    For requests with a local rank and without lists of the user's own.
    """
    house = House(machine, request)
    node = house.home(request.devices[request.local_rank])
    if node is None or not house.may_bind(node):
        return None
    share = house.share(request.local_rank, node)
    everything = sorted(machine.allowed)
    near = {cpu for cpu in everything if house.owner(cpu) == node}
    own = {cpu for cpu in everything if house.node_of(cpu) == node}
    train = {cpu for cpu in own if share is None or house.cache_of(cpu) in share}
    lends_train = house.asymmetric and house.on("train_on_gpuless") and near
    lends_data = house.asymmetric and house.on("data_worker_on_gpuless") and near
    data = set(train)
    only = lends_data and house.on("data_worker_gpuless_only")
    if house.on("separate_by_roles") and share is not None and len(share) >= 2 and not only:
        for_data = set(sorted(share)[-(len(share) // 2) :])
        data = {cpu for cpu in train if house.cache_of(cpu) in for_data}
        train = train - data
    if lends_data:
        data = near if only else data | near
    if lends_train:
        train = train | near
    return frozenset(train), frozenset(data), node if house.on("memory", True) else None


class House:
    def __init__(self, machine: Machine, request: Request) -> None:
        self.machine = machine
        self.request = request
        self.nodes = [node for node in machine.nodes.values() if node.cpus]
        self.asymmetric = self.on("allow_asymmetric")

    def on(self, key: str, default: bool = False) -> bool:
        return bool(self.request.options.get(key, default))

    def node_of(self, cpu: int) -> int:
        (node,) = [node.id for node in self.nodes if cpu in node.cpus]
        return node

    def cache_of(self, cpu: int) -> int:
        """The smallest usable CPU that shares the cache and the node."""
        (cache,) = [llc for llc in self.machine.llcs if cpu in llc]
        node = self.machine.nodes[self.node_of(cpu)].cpus
        return min(other for other in cache if other in node and other in self.machine.allowed)

    def distance(self, a: Node, b: Node) -> tuple[int, bool, int]:
        """How far b is from a, for comparing several b."""
        other_package = a.package == -1 or a.package != b.package
        return a.distances[b.id], other_package, b.id

    def home(self, address: str) -> int | None:
        if len(self.nodes) == 1:
            return self.nodes[0].id
        for each in self.machine.accelerators:
            if each.pci == address and each.numa_node in self.machine.nodes:
                node = self.machine.nodes[each.numa_node]
                if node.cpus:
                    return node.id
                return min(self.nodes, key=lambda other: self.distance(node, other)).id
        return None

    def homes(self) -> list[int | None]:
        return [self.home(each.pci) for each in self.machine.accelerators]

    def owner(self, cpu: int) -> int | None:
        """The node that a CPU of a node without an accelerator belongs to."""
        homes = self.homes()
        node = self.machine.nodes[self.node_of(cpu)]
        owners = [other for other in self.nodes if other.id in homes]
        if None in homes or node in owners:
            return None
        return min(owners, key=lambda other: self.distance(node, other)).id

    def may_bind(self, node: int) -> bool:
        homes = self.homes()
        if not self.asymmetric:
            numbers = {homes.count(each.id) for each in self.nodes}
            if None in homes or len(numbers) != 1:
                return False
        shared = self.machine.cpuset or {cpu for each in self.nodes for cpu in each.cpus}
        places = {self.node_of(cpu) for cpu in self.machine.allowed}
        bound_before = self.machine.allowed != shared and len(places) == 1
        return not bound_before and node in places

    def wants_split(self) -> bool:
        if "partition_per_llc" in self.request.given:
            return self.on("partition_per_llc")
        return self.machine.vendor in ("amd", "hygon") and not self.asymmetric

    def share(self, rank: int, node: int) -> set[int] | None:
        """The caches that are dealt to a rank; None: no split."""
        if not self.wants_split() or not self.machine.llcs_known:
            return None
        own = [cpu for cpu in sorted(self.machine.allowed) if self.node_of(cpu) == node]
        lends = any(self.owner(cpu) == node for cpu in self.machine.allowed)
        if self.asymmetric and self.on("train_on_gpuless") and lends:
            return None
        if self.machine.cpuset and any(
            cpu in self.machine.cpuset and cpu not in own for cpu in self.machine.nodes[node].cpus
        ):
            return None
        cards = [each.pci for each in self.machine.accelerators]
        if any(device not in cards for device in self.request.devices):
            return None
        there = [
            (cards.index(device), other)
            for other, device in enumerate(self.request.devices)
            if self.home(device) == node
        ]
        if any(self.home(device) is None for device in self.request.devices):
            return None
        caches = [self.cache_of(cpu) for cpu in own]
        each, rest = divmod(len(set(caches)), len(there))
        if rest or len({caches.count(cache) for cache in caches}) != 1:
            return None
        dealt = sorted(set(caches))
        for _card, other in sorted(there):
            hand, dealt = dealt[:each], dealt[each:]
            if other == rank:
                return set(hand)
        raise AssertionError("the rank is at home there")
