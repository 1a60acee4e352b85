"""The state of Loongkit in one process: decisions, records, patchers, and the firing of hooks."""

from __future__ import annotations

import sys

from loongkit.activation import hooks, logs, plan, process, settings, states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

#: Importing this module makes the process a possible trainer (its hook notes the first step).
OPTIMIZER_MODULE = "torch.optim.optimizer"


class Session:
    """What this process has decided and done. There is one, ``SESSION``."""

    def __init__(self) -> None:
        self.settings = settings.Settings()
        self.records: dict[str, states.Record] = {}
        self.positions: dict[str, int] = {}
        self.patchers: dict[str, Patcher] = {}
        self.watchers: dict[str, list[str]] = {}
        self.finder: hooks.PostImportFinder | None = None
        self._marks: Any = None

    @property
    def marks(self) -> Any:
        """The effect marks, mapped at the first use."""
        if self._marks is None:
            from loongkit.activation.marks import Marks

            self._marks = Marks()
            self._marks.open()
        return self._marks

    def adopt(self, found: settings.Settings, decisions: dict[str, plan.Decision]) -> None:
        """Take new decisions over; what is newly on is added, what already ran stays.

        A feature that was applied under earlier settings and is now off can't be undone in a
        running job; that is said in the log.
        """
        self.settings = found
        strict = bool(found.value("LOONGKIT_STRICT"))
        for position, (name, decision) in enumerate(decisions.items()):
            self.positions[name] = position
            record = self.records.get(name)
            if record is None or record.state in (states.OFF, states.ENABLED, states.ARMED):
                self.records[name] = states.Record(decision, strict)
            elif decision.on:
                record.decision = decision
            elif not record.out:
                logs.warning(
                    f"{name} stays on: it was applied before the settings changed "
                    f"({decision.reason}); start the job with these settings instead"
                )

    def arm(self) -> None:
        """Watch for the modules that the active features hook, and apply to those already there."""
        fresh: list[str] = []
        self.watchers = {}
        for record in self.records.values():
            if not record.decision.on or record.out:
                continue
            for target in record.decision.entry.targets:
                self.watchers.setdefault(target, []).append(record.name)
            if record.state == states.ENABLED:
                record.move(states.ARMED)
                fresh.append(record.name)
        self.watchers.setdefault(OPTIMIZER_MODULE, [])
        if self.finder is None:
            self.finder = hooks.PostImportFinder(self.fire)
        if self.finder not in sys.meta_path:
            sys.meta_path.insert(0, self.finder)
        self.finder.watched = set(self.watchers)
        for name in list(self.watchers):
            module = sys.modules.get(name)
            if module is not None and not _still_executing(module):
                self._fire_late(name, module, fresh)

    def fire(self, name: str, module: ModuleType) -> None:
        """Run the hooks of one module. Contained: only a StrictError reaches the import."""
        if process.kind() == process.HELPER:
            return
        self._note_steps(name, module)
        for feature in self.watchers.get(name, ()):
            self._apply(feature, name, module, late=False)

    def _fire_late(self, name: str, module: ModuleType, features: list[str]) -> None:
        self._note_steps(name, module)
        for feature in self.watchers.get(name, ()):
            if feature in features:
                self._apply(feature, name, module, late=True)

    def _note_steps(self, name: str, module: ModuleType) -> None:
        if name != OPTIMIZER_MODULE:
            return
        try:
            from loongkit.activation import training

            training.watch(self, module)
        except Exception as error:
            logs.error(f"the first optimiser step can't be noticed, no summary: {error!r}")

    def _apply(self, feature: str, name: str, module: ModuleType, late: bool) -> None:
        record = self.records[feature]
        if record.out or not record.decision.on:
            return
        patcher = self._patcher(record)
        patcher.late = late
        outcome = _run_hooks(record, patcher, name, module)
        patcher.late = False
        if outcome is None:
            if record.state != states.EFFECTIVE:
                record.move(states.PATCHED)
            return
        state, reason = outcome
        patcher.undo()
        if state == states.FAILED:
            logs.warning(f"{feature} has failed and was undone, the original runs: {reason}")
        record.move(state, reason)

    def _patcher(self, record: states.Record) -> Patcher:
        patcher = self.patchers.get(record.name)
        if patcher is None:
            from loongkit.activation.patching import Patcher

            patcher = self.patchers[record.name] = Patcher(record, self._mark_of(record))
        return patcher

    def _mark_of(self, record: states.Record) -> Callable[[], None]:
        position = self.positions[record.name]
        marks = self.marks

        def mark() -> None:
            if record.state == states.PATCHED:
                marks.set(position)
                record.move(states.EFFECTIVE)
            elif not marks.is_set(position):
                marks.set(position)

        return mark


def _still_executing(module: ModuleType) -> bool:
    """Tell whether the module's import has begun and not ended; its hook then comes too early."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _run_hooks(
    record: states.Record, patcher: Patcher, name: str, module: ModuleType
) -> tuple[str, str] | None:
    """Check the gates and run the feature's hooks on a module; return the side exit or None."""
    from loongkit.activation import catalog, patching, versions

    try:
        reason = versions.unmet(record.decision.entry.requires)
        if reason is not None:
            return states.SKIPPED, reason
        record.gate_passed = True
        for target, hook in catalog.load(record.name).hooks:
            if target == name:
                hook(module, patcher)
    except patching.Skip as skip:
        return states.SKIPPED, str(skip)
    except KeyboardInterrupt:
        patcher.undo()
        raise
    except BaseException as error:  # the user's import must not fail because of us
        return states.FAILED, f"{type(error).__name__}: {error}"
    return None


SESSION = Session()
