"""A session of the test's own in this process, with made-up features and modules to hook."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hooked import write

from loongkit.activation import _index, catalog, logs, plan, seams, settings, states
from loongkit.activation import session as sessions
from loongkit.activation.feature import Feature, Option
from loongkit.activation.patching import Patcher

Hook = Callable[[Any, Patcher], None]

#: A package to hook, whose names others have taken by `from … import`.
FRAMEWORK = {
    "framework__": "from framework.one import work\nfrom framework import two",
    "framework__one": "def work(): return 'work'",
    "framework__two": "def play(): return 'play'\nlimit = 1",
    "user": "from functools import partial\nfrom framework import work\nheld = partial(work)",
}


class Lab:
    """Writes modules, declares features, arms a session for them, and reads its log."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.session = sessions.Session()
        self._features: list[Feature] = []
        self._monkeypatch = monkeypatch
        self._modules = set(sys.modules)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(logs, "_state", logs._state)
        logs.configure("debug", str(folder / "log"))
        # Another test may have imported the real torch into this process.
        monkeypatch.setattr(sessions, "OPTIMIZER_MODULE", "no_torch.optim.optimizer")

    def write(self, **files: str) -> None:
        """Write modules: ``pkg__leaf="…"`` is pkg/leaf.py, ``pkg__`` its __init__."""
        write(self.folder, **files)
        importlib.invalidate_caches()

    def feature(self, name: str, hooks: dict[str, Hook], **declaration: Any) -> Feature:
        """Declare a feature that runs each hook after the module of that name was imported."""
        values = {"level": 1, "group": "data", "summary": "for the tests", **declaration}
        made = Feature(name, position=len(self._features), **values)
        for target, hook in hooks.items():
            made.when_imported(target)(hook)
        self._features.append(made)
        module = types.ModuleType(f"loongkit.features.{name}")
        module.FEATURE = made  # type: ignore[attr-defined]
        self._monkeypatch.setitem(sys.modules, module.__name__, module)
        return made

    def adopt(self, **environ: str) -> dict[str, plan.Decision]:
        """Let the session take over what the variables (named without prefix) say."""
        self._monkeypatch.setattr(_index, "ROWS", catalog.index_rows(tuple(self._features)))
        found = settings.read({f"LOONGKIT_{name}": text for name, text in environ.items()})
        assert found.problems == []
        decisions = plan.decide(found, plan.entries())
        self.session.adopt(found, decisions)
        return decisions

    def arm(self, **environ: str) -> None:
        """Adopt and arm, as an activation does."""
        self.adopt(**environ)
        self.session.arm()

    def load(self, name: str) -> Any:
        """Import a module by its full name and return it, not its top package."""
        return importlib.import_module(name)

    def record(self, name: str) -> states.Record:
        return self.session.records[name]

    def state(self, name: str) -> str:
        return self.record(name).state

    def starred(self, name: str) -> bool:
        return self.session.marks.is_set(self.session.positions[name])

    def log(self, level: str = "") -> list[str]:
        """Return the log's messages, of one level or "LEVEL text" of all."""
        lines = [
            line.partition(" loongkit ")[2]
            for file in sorted((self.folder / "log").glob("*.log"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        messages = [(line.split()[0], line.split(" ", 3)[3]) for line in lines]
        if not level:
            return [f"{found} {text}" for found, text in messages]
        return [text for found, text in messages if found == level.upper()]

    def close(self) -> None:
        """Take the finder, the test's modules and their seams away."""
        for patcher in self.session.patchers.values():
            patcher.undo()
        if self.session.finder in sys.meta_path:
            sys.meta_path.remove(self.session.finder)
        for name in set(sys.modules) - self._modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(self.folder)):
                del sys.modules[name]
        for key, seam in list(seams._seams.items()):
            if getattr(seam.owner, "__module__", seam.owner.__name__) not in sys.modules:
                del seams._seams[key]


def option(key: str, kind: str, default: Any) -> Option:
    """An option without words."""
    return Option(key, kind, default, "for the tests")


def wrap(name: str, prefix: str, **changes: Any) -> Hook:
    """A hook that wraps the module's function so that it returns its text behind a prefix."""

    def hook(module: Any, patcher: Patcher) -> None:
        def wrapper(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
            patcher.mark()
            return prefix + original(*args, **kwargs)

        patcher.wrap(module, name, wrapper, **changes)

    return hook
