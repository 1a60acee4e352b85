"""LOONGKIT_DATA_CONTAINER: batches of mmcv 1.x in page-locked memory, on their way to the GPU."""

from __future__ import annotations

from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="data_container",
    level=1,
    group="data",
    position=10,
    summary="pinned-memory support for MMCV's DataContainer",
    note="turns on DataLoader's pin_memory by itself",
    guarantee=(
        "the same values, types and order of batches; without an accelerator in use nothing "
        "changes at all"
    ),
    requires=("mmcv>=1.7.0,<=1.8.0",),
)

#: What torch's DistributedDataParallel no longer has and mmcv's still asks for.
_DROPPED_FLAG = "_use_replicated_tensor_module"


@FEATURE.when_imported("mmcv.parallel.data_container")
def add_pin_memory(module: ModuleType, patcher: Patcher) -> None:
    """Give the class the method that torch's pin thread looks for.

    On the class, because registries, subclasses and early imports hold it.
    """
    from loongkit.data.accelerator import Accelerator
    from loongkit.data.pinning import Pinning

    container = module.DataContainer
    if hasattr(container, "pin_memory"):
        patcher.skip("this mmcv's DataContainer has a pin_memory of its own")
    if "_data" not in vars(container([])):
        patcher.skip("this mmcv's DataContainer keeps its data elsewhere than in _data")
    patcher.set(container, "pin_memory", Pinning(Accelerator(), patcher.mark).method())


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def switch_loaders_on(module: ModuleType, patcher: Patcher) -> None:
    """Turn pin_memory on, also over the False that the builders of mmdet and others pass."""
    from loongkit.data.accelerator import Accelerator
    from loongkit.data.loaders import LoaderSwitch

    def like(self: Any) -> None: ...

    switch = LoaderSwitch(Accelerator())
    patcher.wrap(module.DataLoader, "_get_iterator", switch.get_iterator, like=like)
    patcher.on_undo(switch.restore)


@FEATURE.when_imported("mmcv.parallel._functions")
def name_the_device_of_streams(module: Any, patcher: Patcher) -> None:
    """Let mmcv's scatter get its copy stream: torch wants a device where mmcv gives a number."""
    from loongkit.data.accelerator import Accelerator

    original = getattr(module, "_get_stream", None)
    if original is None:
        return  # a fork that gets its streams elsewhere
    accelerator = Accelerator()

    def get_stream(device: Any) -> Any:
        return original(accelerator.device_of_index(device) if isinstance(device, int) else device)

    def restore() -> None:
        if vars(module).get("_get_stream") is get_stream:
            module._get_stream = original

    # Not by the patcher: late, it would rebind torch's own name for this function as well.
    module._get_stream = get_stream
    patcher.on_undo(restore)


@FEATURE.when_imported("mmcv.parallel.distributed")
def supply_dropped_flag(module: ModuleType, patcher: Patcher) -> None:
    """Let MMDistributedDataParallel.forward run, which reads a flag that torch has dropped."""
    wrapper = getattr(module, "MMDistributedDataParallel", None)
    if wrapper is not None and not hasattr(wrapper, _DROPPED_FLAG):
        patcher.set(wrapper, _DROPPED_FLAG, False)
