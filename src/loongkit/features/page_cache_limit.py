"""LOONGKIT_PAGE_CACHE_LIMIT: a bound on the page cache that the files of a job take."""

from __future__ import annotations

from loongkit.activation.feature import Feature, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.page_cache.limiter import Limiter

FEATURE = Feature(
    name="page_cache_limit",
    level=2,
    group="data",
    position=70,
    summary="bounds the page cache that the training job takes",
    note="relieves memory pressure on the data workers",
    guarantee="the same contents of files; what was released is read from the disk again",
    options=(
        Option("size", "count", 0, "the limit in MB; 0: computed from the system's memory"),
        Option("sync", "bool", False, "write dirty pages back while reclaiming"),
    ),
)


def _limiter(patcher: Patcher) -> Limiter:
    """Return the one limiter of the feature, which its hooks share."""
    from loongkit.page_cache import limiter

    return limiter.of(patcher)


@FEATURE.when_imported("torch.utils.data.dataloader")
def begin_before_workers(module: ModuleType, patcher: Patcher) -> None:
    """Choose how to bound the page cache before the first iterator starts its data workers."""
    limiter = _limiter(patcher)

    def like(self: Any) -> None: ...

    def get_iterator(original: Any, loader: Any) -> Any:
        limiter.contained(limiter.begin)
        return original(loader)

    patcher.wrap(module.DataLoader, "_get_iterator", get_iterator, like=like)
    patcher.on_undo(limiter.end)


@FEATURE.when_imported("torch.utils.data._utils.fetch")
def watch_where_data_is_read(module: ModuleType, patcher: Patcher) -> None:
    """Watch the process that makes a fetcher: a data worker, or the trainer that has none."""
    limiter = _limiter(patcher)

    def like(
        self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any
    ) -> None: ...

    def make(original: Any, *args: Any, **kwargs: Any) -> None:
        limiter.contained(limiter.read)
        original(*args, **kwargs)

    patcher.wrap(module._BaseDatasetFetcher, "__init__", make, like=like)


@FEATURE.when_imported("cv2", support=True)
def note_images(module: ModuleType, patcher: Patcher) -> None:
    """Note what OpenCV reads, which opens its files past Python."""
    limiter = _limiter(patcher)

    def imread(original: Any, *args: Any, **kwargs: Any) -> Any:
        limiter.note(args[0] if args else kwargs.get("filename"))
        return original(*args, **kwargs)

    # OpenCV keeps its functions in a module of its own besides cv2, out of reach for good: late,
    # that is no reason for a warning.
    late, patcher.late = patcher.late, False
    try:
        patcher.wrap(module, "imread", imread)
    finally:
        patcher.late = late


@FEATURE.when_imported("h5py._hl.files", support=True)
def note_hdf5(module: ModuleType, patcher: Patcher) -> None:
    """Note what HDF5 opens: a file of a sample's own may be closed before anybody looks."""
    limiter = _limiter(patcher)

    def like(self: Any, name: Any) -> None: ...

    def make(original: Any, file: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        mode = args[0] if args else kwargs.get("mode", "r")
        limiter.note(name, written=mode not in ("r", None))
        original(file, name, *args, **kwargs)

    patcher.wrap(module.File, "__init__", make, like=like)
