"""LOONGKIT_SUBCGROUPS: sub-cgroups of their own for training processes and for data workers."""

from __future__ import annotations

from loongkit.activation.feature import Feature, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="subcgroups",
    level=2,
    group="resource",
    position=240,
    summary="puts training and data-worker processes into separate sub-cgroups by NUMA affinity",
    note="lets other tools set the resources of each kind; switches active numa_affinity off",
    guarantee=(
        "only where processes run changes; nothing above the job's own cgroup is written, and "
        "where sub-cgroups can't be had numa_affinity places the processes if it is on"
    ),
    options=(Option("mems", "bool", False, "also restrict the memory nodes of each sub-cgroup"),),
)


@FEATURE.at_start
def enter_at_start(patcher: Patcher) -> bool:
    """Put a rank of a job into its group before OpenMP sizes its pool of threads."""
    from loongkit.numa.cgroups import placement

    return placement.of(patcher).at_start()


@FEATURE.when_imported("torch.cuda")
def enter_at_first_use(module: ModuleType, patcher: Patcher) -> None:
    """Put any other process into its group once it uses a device."""
    from loongkit.numa.cgroups import placement

    placement.of(patcher).at_import(module)


@FEATURE.when_imported("torch.optim.optimizer", support=True)
def confirm(module: ModuleType, patcher: Patcher) -> None:
    """Ask the device that is trained on whether it is the one that the process was placed for."""
    from loongkit.numa.cgroups import placement

    handle = module.register_optimizer_step_post_hook(placement.of(patcher).at_step)
    patcher.on_undo(handle.remove)


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def keep_loader_check(module: ModuleType, patcher: Patcher) -> None:
    """Have DataLoaders warn of their workers where they would have without the placement."""
    from loongkit.numa import loader_check

    loader_check.keep(module, patcher)


@FEATURE.when_imported("torch.utils.data._utils.worker", support=True)
def move_workers(module: ModuleType, patcher: Patcher) -> None:
    """Move each data worker to its group, before any code of the user's runs in it."""
    from loongkit.numa.cgroups import placement

    patcher.wrap(module, "_worker_loop", placement.of(patcher).at_worker_loop)
