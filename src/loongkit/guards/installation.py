"""The guards of this process, put together once for all the modules that they hook."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from loongkit.activation.files import Folder
from loongkit.activation.session import SESSION
from loongkit.guards.desk import Desk
from loongkit.guards.report import Report
from loongkit.guards.trainer import TrainerGuards

if TYPE_CHECKING:
    from loongkit.activation.patching import Patcher

#: The feature by which batches travel through memory of Loongkit's own.
_SLOTS = "pytorch"


class Guards:
    """The desk that all guards share, and those of the training process."""

    def __init__(self, patcher: Patcher) -> None:
        self.desk = Desk(
            tree=Folder("/"),
            environ=os.environ,
            report=Report(SESSION.marks, os.environ),
            mends=lambda: bool(patcher.options.get("apply_fix")),
            mark=patcher.mark,
        )
        self.trainer = TrainerGuards(self.desk)


_guards: weakref.WeakKeyDictionary[Patcher, Guards] = weakref.WeakKeyDictionary()


def guards_of(patcher: Patcher) -> Guards:
    """Return the guards that belong to a patcher, made at the first call."""
    if patcher not in _guards:
        _guards[patcher] = Guards(patcher)
    return _guards[patcher]


def slots_work() -> bool:
    """Tell whether a batch of this job has travelled through Loongkit's own memory by now."""
    position = SESSION.positions.get(_SLOTS)
    return position is not None and SESSION.marks.is_set(position)
