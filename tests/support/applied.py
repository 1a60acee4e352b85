"""Applies one feature in this process, as a session does, and takes it out again."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType

from loongkit.activation import plan, states
from loongkit.activation.patching import Patcher


class Applied:
    """A feature at work: its patcher, and how often it marked itself effective."""

    def __init__(self, patcher: Patcher, marks: list[int]) -> None:
        self.patcher = patcher
        self._marks = marks

    @property
    def marks(self) -> int:
        return len(self._marks)

    @property
    def record(self) -> states.Record:
        return self.patcher.record


@contextlib.contextmanager
def applied(module: ModuleType, asked: str = plan.OWN, late: bool = False) -> Iterator[Applied]:
    """Run the hooks of ``module.FEATURE``; undo them at the end of the block."""
    feature = module.FEATURE
    entry = plan.Entry(
        feature.name,
        feature.level,
        feature.group,
        True,
        feature.follows,
        feature.depends_on,
        feature.requires,
        (),
        feature.targets,
    )
    record = states.Record(plan.Decision(entry, True, asked, "asked for by a test"), strict=False)
    record.state = states.PATCHED
    marks: list[int] = []
    patcher = Patcher(record, lambda: marks.append(1))
    patcher.late = late
    try:
        for target, hook in (*feature.hooks, *feature.support_hooks):
            hook(importlib.import_module(target), patcher)
        patcher.late = False
        yield Applied(patcher, marks)
    finally:
        patcher.undo()
