"""Post-import hooks: call a function right after a named module was executed.

A finder at the front of ``sys.meta_path`` reacts to registered names alone. For one of those it
asks the finders behind it for the real spec and makes that spec's loader call us after it ran the
module. The loader stays the object that it was, so ``__loader__``, ``__spec__`` and ``get_code``
(``python -m``, pytest, linecache) look as they would without us.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Loaders of these exact types are made anew for each spec, so one instance serves one module.
# Others (zipimporter: one for a whole archive; BuiltinImporter: a class) may be shared.
_bootstrap: Any = sys.modules.get("_frozen_importlib_external")
OWN_INSTANCE_LOADERS: tuple[type, ...] = (
    (
        _bootstrap.SourceFileLoader,
        _bootstrap.SourcelessFileLoader,
        _bootstrap.ExtensionFileLoader,
    )
    if _bootstrap is not None
    else ()
)


class PostImportFinder:
    """Runs ``fire(name, module)`` after each import of a watched module, reloads included."""

    def __init__(self, fire: Callable[[str, ModuleType], None]) -> None:
        self.watched: set[str] = set()
        self._fire = fire

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the real spec with a hooked loader for a watched name, None for any other."""
        if fullname not in self.watched:
            return None
        spec = self._spec_from_later_finders(fullname, path, target)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec  # a namespace package (no loader), or a loader of before Python 3.4
        if type(spec.loader) in OWN_INSTANCE_LOADERS:
            _hook_instance(spec.loader, self._fire)
        else:
            spec.loader = _HookedLoader(spec.loader, self._fire)  # type: ignore[assignment]
        return spec

    def _spec_from_later_finders(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        position = finders.index(self) if self in finders else -1
        for finder in finders[position + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec and find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


def _hook_instance(loader: Any, fire: Callable[[str, ModuleType], None]) -> None:
    """Let this one loader object call ``fire`` once, then be as it was."""

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        fire(module.__name__, module)

    loader.exec_module = exec_module


class _HookedLoader:
    """Stands in for a loader that may be shared, until the module has been executed."""

    def __init__(self, loader: Any, fire: Callable[[str, ModuleType], None]) -> None:
        self._loader = loader
        self._fire = fire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._fire(module.__name__, module)
