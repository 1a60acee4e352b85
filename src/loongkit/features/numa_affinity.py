"""LOONGKIT_NUMA_AFFINITY: each training process on the NUMA node of its GPU, its workers too."""

from __future__ import annotations

from loongkit.activation.feature import Feature, Option
from loongkit.numa.plan_caches import SPLIT_VENDORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="numa_affinity",
    level=1,
    group="resource",
    position=230,
    summary="keeps a training process on the NUMA node of its GPU",
    note=(
        "under a level it is active with PyTorch >= 2.5.0 on machines whose GPUs are spread evenly "
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
            "partition_per_llc",
            "bool",
            False,
            "give each training process L3 caches of its own",
            on_with=SPLIT_VENDORS,
            unless="allow_asymmetric",
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
        Option("sysfs", "str", "", "plan for the machine recorded in this folder or file"),
    ),
    guarantee=(
        "only where processes run changes; results may differ by what another number of OpenMP "
        "threads changes, which follows the mask unless OMP_NUM_THREADS is set"
    ),
)


@FEATURE.at_start
def place_rank(patcher: Patcher) -> bool:
    """Bind a rank of a job before OpenMP sizes its pool of threads."""
    from loongkit.numa import placement

    return placement.of(patcher).at_start()


@FEATURE.when_imported("torch.cuda")
def place_at_first_use(module: ModuleType, patcher: Patcher) -> None:
    """Bind any other process once it uses a device."""
    from loongkit.numa import placement

    placement.of(patcher).at_import(module)


@FEATURE.when_imported("torch.optim.optimizer", support=True)
def confirm(module: ModuleType, patcher: Patcher) -> None:
    """Ask the device that is trained on whether it is the one that the process was placed for."""
    from loongkit.numa import placement

    handle = module.register_optimizer_step_post_hook(placement.of(patcher).at_step)
    patcher.on_undo(handle.remove)


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def keep_loader_check(module: ModuleType, patcher: Patcher) -> None:
    """Have DataLoaders warn of their workers where they would have without the placement."""
    from loongkit.numa import loader_check

    loader_check.keep(module, patcher)


@FEATURE.when_imported("torch.utils.data._utils.worker", support=True)
def place_workers(module: ModuleType, patcher: Patcher) -> None:
    """Move each data worker to its CPUs, before any code of the user's runs in it."""
    from loongkit.numa import placement

    patcher.wrap(module, "_worker_loop", placement.of(patcher).at_worker_loop)
