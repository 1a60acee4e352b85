"""Applies a feature to a module that was just imported: its gates first, then its hooks.

Loaded when the first hook is due, never at interpreter start.
"""

from __future__ import annotations

import sys

from loongkit.activation import catalog, hooks, patching, states, versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from loongkit.activation.feature import Feature
    from loongkit.activation.patching import Patcher

#: Outcome of a hook that has to wait, neither an error nor a success: ``(WAITING, package)``.
WAITING = ""


def outcome(
    record: states.Record, patcher: Patcher, name: str, module: ModuleType
) -> tuple[str, str] | None:
    """Check the gates and run the feature's hooks on a module; return the side exit or None."""
    return _side_exit(lambda: _run_hooks(record, patcher, name, module))


def at_start(record: states.Record, patcher: Patcher) -> tuple[str, str] | None:
    """Run the hooks that act before any framework is imported; return the side exit or None."""

    def run() -> tuple[str, str] | None:
        done = [hook(patcher) for hook in catalog.load(record.name).start_hooks]
        return None if any(done) else (WAITING, "")

    return _side_exit(run)


def _side_exit(run: Callable[[], tuple[str, str] | None]) -> tuple[str, str] | None:
    """Contain what a hook raises: the user's import must not fail because of us."""
    try:
        return run()
    except patching.Skip as skip:
        return states.SKIPPED, str(skip)
    except (KeyboardInterrupt, states.StrictError):
        raise
    except BaseException as error:
        return states.FAILED, f"{type(error).__name__}: {error}"


def _run_hooks(
    record: states.Record, patcher: Patcher, name: str, module: ModuleType
) -> tuple[str, str] | None:
    feature = catalog.load(record.name)
    own = [hook for target, hook in feature.hooks if target == name]
    if own:
        requires = record.decision.entry.requires
        absent = versions.absent(requires)
        there = [gate for gate in requires if versions.package(gate) not in absent]
        reason = versions.unmet(tuple(there))
        if reason is not None:
            return states.SKIPPED, reason
        if absent:
            record.waits_for = versions.unmet(requires) or ""
            return WAITING, absent[0]
        record.gate_passed = True
    elif not record.gate_passed:
        return WAITING, ""  # a support module came before the framework that the feature is for
    for hook in own:
        hook(module, patcher)
    _run_support_hooks(feature, record, patcher, name)
    return None


def _run_support_hooks(
    feature: Feature, record: states.Record, patcher: Patcher, name: str
) -> None:
    """Run the support hooks of the module just imported, and those that waited for the gate."""
    for target, hook in feature.support_hooks:
        module = sys.modules.get(target)
        if module is None:
            continue
        done = target in record.supported
        executed_now = target == name and not patcher.late
        if executed_now or (not done and hooks.import_stage(module)[0] == hooks.EXECUTED):
            record.supported.add(target)
            outer, patcher.late = patcher.late, patcher.late or target != name
            try:
                hook(module, patcher)
            finally:
                patcher.late = outer
