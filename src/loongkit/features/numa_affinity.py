"""Declaration of LOONGKIT_NUMA_AFFINITY."""

from loongkit.activation.feature import Feature, Option

FEATURE = Feature(
    name="numa_affinity",
    level=1,
    group="resource",
    position=230,
    summary="keeps a training process on the NUMA node of its GPU",
    note=(
        "active by default with PyTorch >= 2.5.0 on machines whose GPUs are spread evenly "
        "over the NUMA nodes"
    ),
    options=(
        Option(
            "allow_asymmetric",
            "bool",
            False,
            "bind also where the GPUs are not spread evenly",
            always_shown=True,
        ),
        Option(
            "allow_index",
            "bool",
            False,
            "match devices by index, for PyTorch below 2.5.0",
            always_shown=True,
        ),
        Option(
            "partition_per_llc", "bool", False, "give each training process L3 caches of its own"
        ),
        Option(
            "separate_by_roles",
            "bool",
            False,
            "keep training and data-worker processes on different L3 caches",
        ),
        Option(
            "train_on_gpuless", "bool", False, "training processes may use the nodes without a GPU"
        ),
        Option(
            "data_worker_on_gpuless", "bool", False, "data workers may use the nodes without a GPU"
        ),
        Option(
            "data_worker_gpuless_only",
            "bool",
            False,
            "data workers use only the nodes without a GPU",
        ),
        Option("cpus", "str", "", "explicit CPU lists, one for each local rank"),
        Option("memory", "bool", True, "prefer the memory of the bound node"),
        Option("sysfs", "str", "", "plan for the machine recorded in this folder"),
    ),
    implemented=False,
)
