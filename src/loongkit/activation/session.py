"""The state of Loongkit in one process: decisions, records, patchers, and the firing of hooks."""

from __future__ import annotations

import os
import sys

from loongkit.activation import hooks, logs, plan, process, settings, states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from loongkit.activation.marks import Marks
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
        #: Modules whose import had begun and not ended when Loongkit was armed, each with the
        #: features that wait for that end.
        self.unfinished: dict[str, list[str]] = {}
        #: Packages that a gate names and nobody has imported yet, each with the features that
        #: wait for it and the modules whose hooks are then to run.
        self.waiting: dict[str, list[tuple[str, str]]] = {}
        self._marks: Marks | None = None

    @property
    def marks(self) -> Marks:
        """The effect marks, mapped at the first use."""
        if self._marks is None:
            from loongkit.activation.marks import Marks

            self._marks = Marks()
            self._marks.open()
        return self._marks

    def adopt(self, found: settings.Settings, decisions: dict[str, plan.Decision]) -> None:
        """Take new decisions over; what is newly on is added, what was applied stays.

        A feature that was applied under earlier settings and is now off can't be undone in a
        running job; that is said in the log. One that dropped out while on stays out.
        """
        self.settings = found
        strict = bool(found.value("LOONGKIT_STRICT"))
        for position, (name, decision) in enumerate(decisions.items()):
            self.positions[name] = position
            record = self.records.get(name)
            dropped = record is not None and record.out and record.decision.on and decision.on
            if record is None or not (record.applied or dropped):
                self.records[name] = states.Record(decision, strict)
                self.patchers.pop(name, None)
            else:
                record.strict = strict
                _adopt_later(record, decision)

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
        for name in (OPTIMIZER_MODULE, *self.waiting):
            self.watchers.setdefault(name, [])
        if self.finder is None:
            self.finder = hooks.PostImportFinder(self.fire)
        if self.finder not in sys.meta_path:
            sys.meta_path.insert(0, self.finder)
        self.finder.watched = set(self.watchers)
        if process.kind() == process.MAIN and process.has_local_rank(os.environ):
            self._start(fresh)
        # Listed first: a hook may import another of these modules, which the finder then reports.
        for name in [name for name in self.watchers if name in sys.modules]:
            self._catch_up(self.finder, name, fresh)

    def _start(self, features: list[str]) -> None:
        """Let the features act that have something to do before any framework is imported."""
        for name in features:
            record = self.records[name]
            if record.decision.entry.at_start:
                from loongkit.activation import applying

                patcher = self._patcher(record)
                side_exit = applying.at_start(record, patcher)
                if side_exit is None:
                    self._confirm(record, patcher)
                elif side_exit[0] != applying.WAITING:
                    patcher.undo()
                    _drop(record, *side_exit)

    def fire(self, name: str, module: ModuleType) -> None:
        """Run the hooks of one module. Contained: the user's import does not fail because of us.

        Raises:
            StrictError: a feature asked for by its own variable drops out under LOONGKIT_STRICT=1.
            KeyboardInterrupt: the user's.

        """
        try:
            self.unfinished.pop(name, None)
            self._run_hooks(name, module, self.watchers.get(name, []), late=False)
            for feature, target in self.waiting.pop(name, []):
                if target in sys.modules:
                    self._run_hooks(target, sys.modules[target], [feature], late=True)
            for other in list(self.unfinished):
                self._retry(other)
            if self.finder is not None:
                self.finder.watches_all = bool(self.unfinished)
        except (KeyboardInterrupt, states.StrictError):
            raise
        except BaseException as error:  # also when an upgrade has just taken our files away
            logs.error(f"the hooks of {name} could not be run: {error!r}")

    def _catch_up(self, finder: hooks.PostImportFinder, name: str, fresh: list[str]) -> None:
        """Apply the newly armed features to a module that was imported before."""
        module = sys.modules.get(name)
        if module is None:
            return
        features = [feature for feature in self.watchers[name] if feature in fresh]
        stage, spec = hooks.import_stage(module)
        if stage == hooks.POSTPONED and spec is not None:
            finder.hook(name, spec)
        elif stage == hooks.EXECUTING:
            # It may not define yet what a hook looks for. Nothing tells when its import ends, so
            # after each import from now on we look whether it has.
            logs.debug(f"{name} is being imported right now: its hooks wait until that is done")
            self.unfinished.setdefault(name, []).extend(features)
            finder.watches_all = True
        else:
            self._run_hooks(name, module, features, late=True)

    def _retry(self, name: str) -> None:
        """Apply what waited for the end of a module's import, where that has come."""
        module = sys.modules.get(name)
        if module is not None and hooks.import_stage(module)[0] == hooks.EXECUTING:
            return
        features = self.unfinished.pop(name, [])
        if module is not None:  # None: it has failed, and a second attempt comes by the finder
            self._run_hooks(name, module, features, late=True)

    def _run_hooks(self, name: str, module: ModuleType, features: list[str], late: bool) -> None:
        if name == OPTIMIZER_MODULE:
            self._note_steps(module)
        for feature in features:
            self._apply(feature, name, module, late)

    def _note_steps(self, module: ModuleType) -> None:
        try:
            from loongkit.activation import training

            training.watch(self, module)
        except Exception as error:
            logs.error(f"the first optimiser step can't be noticed, no summary: {error!r}")

    def _apply(self, feature: str, name: str, module: ModuleType, late: bool) -> None:
        from loongkit.activation import applying

        record = self.records[feature]
        if record.out or not record.decision.on:
            return
        patcher = self._patcher(record)
        outer, patcher.late = patcher.late, late
        try:
            outcome = applying.outcome(record, patcher, name, module)
        except BaseException as error:
            _abandon(record, patcher, f"interrupted by {type(error).__name__}")
            raise
        finally:
            patcher.late = outer
        if outcome is None:
            self._confirm(record, patcher)
        elif outcome[0] == applying.WAITING:
            self._wait_for(outcome[1], feature, name)
        else:
            patcher.undo()
            _drop(record, *outcome)

    def _wait_for(self, package: str, feature: str, target: str) -> None:
        """Have the hooks of ``target`` run once the package is there that the gate asks for."""
        if not package:
            return  # any module of the framework that the feature is for will do
        waiting = self.waiting.setdefault(package, [])
        if (feature, target) not in waiting:
            waiting.append((feature, target))
        self.watchers.setdefault(package, [])
        if self.finder is not None:
            self.finder.watched = set(self.watchers)

    def settle(self) -> None:
        """At the job's end: what a feature has waited for in vain is why it was skipped."""
        for record in self.records.values():
            if record.waits_for and not record.applied and not record.out:
                record.strict = False  # there is nobody left to raise at
                record.move(states.SKIPPED, record.waits_for)

    def _confirm(self, record: states.Record, patcher: Patcher) -> None:
        if record.out:  # given up while its hook ran, or by another thread
            patcher.undo()
            return
        if record.state != states.EFFECTIVE:
            record.move(states.PATCHED)
        if record.ran_early:
            record.ran_early = False
            self._mark_of(record)()

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
            if record.state == states.EFFECTIVE:
                return
            if record.state == states.PATCHED:
                marks.set(position)
                record.move(states.EFFECTIVE)
            elif not record.out:
                record.ran_early = True  # no star yet: the hook that is running may still fail

        return mark


def _adopt_later(record: states.Record, decision: plan.Decision) -> None:
    """Take a new decision over for a feature that was applied or has dropped out before."""
    if not decision.on:
        logs.warning(
            f"{record.name} stays on: it was applied before the settings changed "
            f"({decision.reason}); start the job with these settings instead"
        )
        return
    before, record.decision = record.decision, decision
    if record.applied and before.options != decision.options:
        logs.info(
            f"{record.name}: options changed from {before.options} to {decision.options} after it "
            "was applied; what it sets up once stays as it is"
        )


def _drop(record: states.Record, state: str, reason: str) -> None:
    if state == states.FAILED:
        logs.warning(f"{record.name} has failed and was undone, the original runs: {reason}")
    record.move(state, reason)


def _abandon(record: states.Record, patcher: Patcher, reason: str) -> None:
    """Undo a feature whose hook was left by an exception that goes on to the user."""
    patcher.undo()
    try:
        record.move(states.FAILED, reason)
    except states.StrictError:
        pass  # the exception on its way says more


SESSION = Session()
