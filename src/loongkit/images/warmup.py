"""Compiles kernels in the parent just before DataLoader workers are forked, where they are used.

A kernel compiled in the parent costs a forked worker nothing; left to the workers, each of them
would compile for itself at its first image. Jobs whose pipeline holds no such transform never pay.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING

from loongkit.activation.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.activation.patching import Patcher

    #: Tells whether one object of a dataset's pipeline needs the kernels.
    Wanted = Callable[[Any], bool]

#: Parts of the attribute names under which datasets keep their pipelines and each other.
_FOLLOWED = ("transform", "pipeline", "dataset", "compose", "wrapped", "augment")

#: Longer lists hold samples, not transforms.
_LONGEST_PIPELINE = 256
_MOST_OBJECTS = 5000


def install(
    patcher: Patcher, dataloader_module: Any, wanted: Wanted, compile_kernels: Callable[[], Any]
) -> None:
    """Call ``compile_kernels`` before a DataLoader forks workers for a pipeline that needs it.

    That is also what happens once a worker had to compile, because the pipeline was not found.
    ``dataloader_module`` is ``torch.utils.data.dataloader``. Where its DataLoader has no
    ``_get_iterator`` (it has in torch 2.4 to 2.13), workers compile for themselves. An error while
    compiling makes the feature step aside; the loader goes on as ever.
    """
    loader_class = dataloader_module.DataLoader
    if not hasattr(loader_class, "_get_iterator"):
        return

    def is_due(dataset: Any) -> bool:
        return ran_somewhere(patcher.record.name) or holds(dataset, wanted)

    def before_workers(original: Callable[..., Any], loader: Any) -> Any:
        try:
            if loader.num_workers > 0 and _forks(loader) and is_due(loader.dataset):
                compile_kernels()
        except Exception as error:
            patcher.give_up(f"the kernels can't be compiled: {type(error).__name__}: {error}")
        return original(loader)

    patcher.wrap(loader_class, "_get_iterator", before_workers)


def ran_somewhere(feature: str) -> bool:
    """Tell whether a feature has run in any process of this job."""
    position = SESSION.positions.get(feature)
    return position is not None and SESSION.marks.is_set(position)


def _forks(loader: Any) -> bool:
    import multiprocessing

    context = loader.multiprocessing_context or multiprocessing
    return bool(context.get_start_method() == "fork")


def holds(dataset: Any, wanted: Wanted) -> bool:
    """Tell whether a dataset, or anything in its pipelines or wrapped datasets, is wanted."""
    waiting = [dataset]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if wanted(item):
            return True
        waiting.extend(_parts(item))
    return False


def _parts(item: Any) -> Iterator[Any]:
    if isinstance(item, (str, bytes, int, float, types.ModuleType, type)) or item is None:
        return
    if isinstance(item, (list, tuple)):
        if len(item) <= _LONGEST_PIPELINE:
            yield from item
    elif isinstance(item, dict):
        if len(item) <= _LONGEST_PIPELINE:
            yield from item.values()
    elif isinstance(item, functools.partial):
        yield item.func
        yield from item.args
        yield from item.keywords.values()
    elif isinstance(item, types.MethodType):
        yield item.__self__
    else:
        for name, value in getattr(item, "__dict__", {}).items():
            if _is_followed(name) or _is_pipeline(value):
                yield value


def _is_followed(name: str) -> bool:
    return any(part in name.lower() for part in _FOLLOWED)


def _is_pipeline(value: Any) -> bool:
    """Tell whether this may be a transform, a list of such, or an object that holds some."""
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= _LONGEST_PIPELINE and all(map(_is_transform, value))
    return _is_transform(value) or any(map(_is_followed, getattr(value, "__dict__", ())))


def _is_transform(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def mentions(item: Any, names: frozenset[str]) -> bool:
    """Tell whether a function's code, or that of an object's class, uses one of these names."""
    if isinstance(item, types.FunctionType):
        return _code_mentions(item.__code__, names)
    return _class_mentions(type(item), names)  # type: ignore[arg-type]


@functools.cache
def _class_mentions(cls: type, names: frozenset[str]) -> bool:
    functions = (
        value for base in cls.__mro__ for value in vars(base).values() if base is not object
    )
    return any(
        isinstance(value, types.FunctionType) and _code_mentions(value.__code__, names)
        for value in functions
    )


def _code_mentions(code: types.CodeType, names: frozenset[str]) -> bool:
    if not names.isdisjoint(code.co_names) or not names.isdisjoint(code.co_freevars):
        return True
    nested = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return any(_code_mentions(part, names) for part in nested)
