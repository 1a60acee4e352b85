"""LOONGKIT_DATA_PREFETCH: the next batch of mmcv 1.x on its way while the model works on this."""

from __future__ import annotations

from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.data.prefetch import Prefetch

FEATURE = Feature(
    name="data_prefetch",
    level=1,
    group="data",
    position=20,
    summary="prefetches the next batch to the device",
    note=(
        "depends on data_container: switches it on when that is unset, is skipped with the "
        "reason when that is 0; peak device memory grows by one iteration's data"
    ),
    guarantee=(
        "the same batches in the same order to hooks and model, at the same moments; without an "
        "accelerator in use nothing changes at all"
    ),
    requires=("mmcv>=1.7.0,<=1.8.0",),
    depends_on=("data_container",),
)


@FEATURE.when_imported("mmcv.runner.epoch_based_runner")
def mark_loaders_of_epochs(module: ModuleType, patcher: Patcher) -> None:
    """Mark the loaders of the flow 'train' while the runner runs, subclasses included."""

    def like(
        self: Any, data_loaders: Any, workflow: Any, max_epochs: Any = None, **kwargs: Any
    ) -> None: ...

    patcher.wrap(module.EpochBasedRunner, "run", _marking(patcher), like=like)


@FEATURE.when_imported("mmcv.runner.iter_based_runner")
def mark_loaders_of_iterations(module: ModuleType, patcher: Patcher) -> None:
    """Mark the loaders of the flow 'train' while the runner runs, subclasses included."""

    def like(
        self: Any, data_loaders: Any, workflow: Any, max_iters: Any = None, **kwargs: Any
    ) -> None: ...

    patcher.wrap(module.IterBasedRunner, "run", _marking(patcher), like=like)


@FEATURE.when_imported("mmcv.parallel._functions")
def use_copies_of_containers(module: ModuleType, patcher: Patcher) -> None:
    """Let mmcv's scatter of DataContainers find what was copied ahead."""
    from loongkit.data.prefetch_scatter import ScatterFromStash

    def like(target_gpus: Any, input: Any) -> None: ...

    scatter = ScatterFromStash(_prefetch(patcher))
    patcher.wrap(module.Scatter, "forward", scatter.forward, like=like)


@FEATURE.when_imported("mmcv.parallel.scatter_gather")
def use_copies_of_tensors(module: Any, patcher: Patcher) -> None:
    """Let mmcv's scatter of tensors outside of DataContainers find what was copied ahead."""
    from loongkit.data.prefetch_scatter import ScatterFromStash

    original = getattr(module, "OrigScatter", None)
    if original is None:
        return  # a fork that scatters them in another way
    replacement = ScatterFromStash(_prefetch(patcher)).torch_scatter(original)

    def restore() -> None:
        if vars(module).get("OrigScatter") is replacement:
            module.OrigScatter = original

    # Not by the patcher: late, it would rebind torch's own name for this class as well.
    module.OrigScatter = replacement
    patcher.on_undo(restore)


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def look_ahead(module: ModuleType, patcher: Patcher) -> None:
    """Look at the next batch in the iterators of marked loaders, and have them pinned."""
    from loongkit.data.prefetch_loaders import install

    install(module, patcher, _prefetch(patcher))


def _marking(patcher: Patcher) -> Callable[..., Any]:
    """Return the wrapper of a runner's method ``run``."""
    from loongkit.activation import logs

    prefetch = _prefetch(patcher)

    def run(
        original: Callable[..., Any],
        runner: Any,
        data_loaders: Any,
        workflow: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        marked = []
        try:
            for loader, flow in zip(data_loaders, workflow, strict=False):
                if flow[0] == "train" and prefetch.add(loader):
                    marked.append(loader)
        except Exception as error:  # the original says what is wrong with them
            logs.debug(f"{FEATURE.name}: this runner's loaders are left alone: {error!r}")
        try:
            return original(runner, data_loaders, workflow, *args, **kwargs)
        finally:
            for loader in marked:
                prefetch.remove(loader)
            prefetch.release()

    return run


def _prefetch(patcher: Patcher) -> Prefetch:
    """Return the one Prefetch of this feature, which its hooks share."""
    from mmcv.parallel.data_container import DataContainer

    from loongkit.data.prefetch_loaders import shared
    from loongkit.data.prefetch_scatter import ScatterLeaves

    return shared(patcher, FEATURE.name, ScatterLeaves(DataContainer))
