"""Finds the runs of known transforms at the end of a pipeline that can share one memory layout."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from loongkit.images import format_known as known
from loongkit.images.normalization import FUNCTIONS
from loongkit.images.warmup import mentions

if TYPE_CHECKING:
    from typing import Any


class Run(NamedTuple):
    """Transforms ``first`` to ``last``: the last formats, and nobody else sees the images between.

    ``normalizes`` tells whether the first one normalises; ``pad`` is the one that pads, or None.
    """

    first: int
    last: int
    normalizes: bool
    pad: Any


class Plan(NamedTuple):
    """What is known of a pipeline: its runs by where they begin, and which transforms load.

    ``members`` are the transforms that it was read from, each with what it is known as.
    """

    transforms: tuple[Any, ...]
    members: tuple[tuple[Any, known.Known], ...]
    runs: dict[int, Run]
    loads: frozenset[int]

    def fits(self, transforms: Any) -> bool:
        """Tell whether the pipeline is still what the plan was made from."""
        return (
            len(transforms) == len(self.transforms)
            and all(one is other for one, other in zip(transforms, self.transforms, strict=True))
            and all(found.still_holds() and found.is_plain(one) for one, found in self.members)
        )


class Planner:
    """Plans pipelines, and remembers what their transforms' classes are known as."""

    def __init__(self) -> None:
        self._classes: weakref.WeakKeyDictionary[type, known.Known] = weakref.WeakKeyDictionary()
        self._unknown: weakref.WeakSet[type] = weakref.WeakSet()

    def plan(self, transforms: list[Any]) -> Plan:
        """Return the plan of a pipeline; without runs and loads where nothing can be done.

        A pipeline that does not normalise has none: nobody compiles kernels before its workers.
        """
        if not any(mentions(transform, FUNCTIONS) for transform in transforms):
            return Plan(tuple(transforms), (), {}, frozenset())
        found = [self.known(transform) for transform in transforms]
        roles = [None if one is None else one.role for one in found]
        runs = {}
        for last, role in enumerate(roles):
            if role == known.FORMAT:
                run = _run_to(last, roles, transforms)
                runs[run.first] = run
        loads = frozenset(index for index in range(len(roles)) if _can_load(index, roles))
        members = [
            (transform, one) for transform, one in zip(transforms, found, strict=True) if one
        ]
        return Plan(tuple(transforms), tuple(members), runs, loads)

    def known(self, transform: Any) -> known.Known | None:
        """Return what a transform is known as, else None."""
        cls = type(transform)
        found = self._classes.get(cls)
        if found is None or not found.still_holds():
            if cls in self._unknown:
                return None
            found = known.recognise(cls)
            if found is None:
                self._unknown.add(cls)
                return None
            self._classes[cls] = found
        return found if found.is_plain(transform) else None


def _run_to(last: int, roles: list[str | None], transforms: list[Any]) -> Run:
    """Return the longest run that ends with a formatting transform."""
    first, pad = last, None
    for index in range(last - 1, -1, -1):
        role = roles[index]
        if role == known.NORMALIZE:
            return Run(index, last, True, pad)
        if role == known.PAD and pad is None:
            first, pad = index, transforms[index]
        elif role != known.ASIDE:
            break
    return Run(first, last, False, pad)


def _can_load(index: int, roles: list[str | None]) -> bool:
    """Tell whether a loader's images are replaced before anybody unknown sees their strides."""
    if roles[index] != known.LOAD:
        return False
    behind = next((role for role in roles[index + 1 :] if role != known.ASIDE), None)
    return behind in (known.REPLACE, known.NORMALIZE)


def room_for(pad: Any, height: int, width: int) -> tuple[int, int] | None:
    """Return the size to which a padding transform will bring an image; None: it can't be told."""
    if pad is None:
        return height, width
    size, divisor = getattr(pad, "size", None), getattr(pad, "size_divisor", None)
    if getattr(pad, "pad_to_square", False):
        return max(height, width), max(height, width)
    if size is not None:
        if isinstance(size, (tuple, list)) and [type(part) for part in size] == [int, int]:
            return max(size[0], height), max(size[1], width)
        return None
    if type(divisor) is not int or divisor <= 0:
        return None
    return -(-height // divisor) * divisor, -(-width // divisor) * divisor
