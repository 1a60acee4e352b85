"""LOONGKIT_CONFIG_GUARDS: warns about settings that exceed the hardware, and mends them on demand.

Nothing is looked at before a DataLoader with workers is made or an optimiser steps.
"""

from __future__ import annotations

from loongkit.activation.feature import Feature, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="config_guards",
    level=1,
    group="resource",
    position=250,
    summary="warns about thread pools, data workers and compile threads that exceed the hardware",
    guarantee="nothing is changed, unless `LOONGKIT_CONFIG_GUARDS_APPLY_FIX` is on",
    requires=("torch>=2.1.0",),
    options=(Option("apply_fix", "bool", False, "also mend a bad setting"),),
)


@FEATURE.when_imported("torch.torch_version")
def note_start(module: ModuleType, patcher: Patcher) -> None:
    """Note the CPUs of this process. torch imports that module before it loads OpenMP."""
    from loongkit.guards import allowance

    allowance.note_start()


@FEATURE.when_imported("torch.utils.data.dataloader")
def guard_loaders(module: ModuleType, patcher: Patcher) -> None:
    """Check DataLoaders with workers when they are made and when they start."""
    from loongkit.guards.installation import guards_of, slots_work
    from loongkit.guards.loaders import LoaderGuards

    def like(self: Any) -> None: ...

    guards = guards_of(patcher)
    loaders = LoaderGuards(guards.desk, guards.trainer, module, slots_work)
    patcher.wrap(module.DataLoader, "__init__", loaders.construct)
    patcher.wrap(module.DataLoader, "_get_iterator", loaders.get_iterator, like=like)


@FEATURE.when_imported("torch.utils.data._utils.worker")
def guard_workers(module: ModuleType, patcher: Patcher) -> None:
    """Check each data worker once the user's worker_init_fn has run."""
    from loongkit.data.worker_loop import like_of
    from loongkit.guards.installation import guards_of
    from loongkit.guards.workers import WorkerGuards

    workers = WorkerGuards(guards_of(patcher).desk)
    patcher.wrap(module, "_worker_loop", workers.worker_loop, like=like_of(module))


@FEATURE.when_imported("torch.optim.optimizer")
def guard_training(module: ModuleType, patcher: Patcher) -> None:
    """Check the process once it is seen to train."""
    from loongkit.guards.installation import guards_of

    handle = module.register_optimizer_step_post_hook(guards_of(patcher).trainer.step)
    patcher.on_undo(handle.remove)


@FEATURE.when_imported("torch._inductor.config")
def guard_compile_configuration(module: ModuleType, patcher: Patcher) -> None:
    """Mend the number of compile processes, where that is asked for, before they start."""
    from loongkit.guards.installation import guards_of

    guards_of(patcher).trainer.config_imported(module)


@FEATURE.when_imported("torch._inductor.async_compile")
def guard_compile_processes(module: ModuleType, patcher: Patcher) -> None:
    """Check the number of compile processes of a job that trains already."""
    from loongkit.guards.installation import guards_of

    guards_of(patcher).trainer.pool_imported(module)
