"""Declaration of LOONGKIT_SUBCGROUPS."""

from loongkit.activation.feature import Feature, Option

FEATURE = Feature(
    name="subcgroups",
    level=2,
    group="resource",
    position=240,
    summary="puts training and data-worker processes into separate sub-cgroups by NUMA affinity",
    note=("lets other tools set the resources of each kind; switches active numa_affinity off"),
    options=(Option("mems", "bool", False, "also restrict the memory nodes of each sub-cgroup"),),
    implemented=False,
)
