"""Post-import hooks: call a function right after a named module was executed.

A finder at the front of ``sys.meta_path`` reacts to registered names alone. For one of those it
asks the finders behind it for the real spec and makes that spec's loader call us after it ran the
module. Once it has, the loader is the object that it was, with nothing of ours on it, so that the
module's ``__loader__`` and ``__spec__`` look as they would without us.
"""

from __future__ import annotations

import _thread
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeVar

    FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

# Loaders of these exact types are made anew for each spec, so one instance serves one module.
# Others (zipimporter: one for a whole archive; BuiltinImporter: a class) may be shared.
_bootstrap: Any = sys.modules["_frozen_importlib_external"]
OWN_INSTANCE_LOADERS: tuple[type, ...] = (
    _bootstrap.SourceFileLoader,
    _bootstrap.SourcelessFileLoader,
    _bootstrap.ExtensionFileLoader,
)

#: The file name of importlib's own code, "<frozen …>".
_MACHINERY: str = _bootstrap.PathFinder.find_spec.__code__.co_filename

#: What `import_stage` answers.
EXECUTED, EXECUTING, POSTPONED = "executed", "executing", "postponed"


def _as_import_machinery(function: FunctionT) -> FunctionT:
    """Make a function count as part of importlib where Python leaves that out.

    Tracebacks of failed imports leave its frames out, and so does the ``stacklevel`` of warnings
    that a module gives while it is imported: both look as without us.
    """
    code = function.__code__
    function.__code__ = code.replace(co_filename=_MACHINERY)
    return function


class PostImportFinder:
    """Runs ``fire(name, module)`` after each import of a watched module, reloads included."""

    def __init__(self, fire: Callable[[str, ModuleType], None]) -> None:
        self.watched: set[str] = set()
        #: While True every import is reported, whatever its name.
        self.watches_all = False
        self._fire = fire
        self._searches: set[tuple[int, str]] = set()

    @_as_import_machinery
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the real spec with a hooked loader for a watched name, None for any other."""
        if fullname not in self.watched and not self.watches_all:
            return None
        search = (_thread.get_ident(), fullname)
        if search in self._searches:
            return None  # a finder behind us asks all finders again, as wrapt's does
        self._searches.add(search)
        try:
            spec = self._spec_from_later_finders(fullname, path, target)
        finally:
            self._searches.discard(search)
        if spec is not None:
            self.hook(fullname, spec)
        return spec

    def hook(self, name: str, spec: ModuleSpec) -> None:
        """Report the next execution of this spec's module.

        Left alone: a namespace package (it has no loader), a loader of before Python 3.4.
        """
        loader: Any = spec.loader
        if not hasattr(loader, "exec_module") or isinstance(loader, _HookedLoader):
            return
        if type(loader) not in OWN_INSTANCE_LOADERS:
            spec.loader = _HookedLoader(loader, spec, name, self._fire)  # type: ignore[assignment]
        elif "exec_module" not in vars(loader):
            _hook_instance(loader, name, self._fire)

    @_as_import_machinery
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


def import_stage(module: ModuleType) -> tuple[str, ModuleSpec | None]:
    """Tell how far the import of a module in ``sys.modules`` has come; also return its spec.

    Its dictionary is read without attribute access, which would load a lazy module
    (importlib.util.LazyLoader): that one is "postponed".
    """
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return EXECUTED, None  # no module at all: anything may stand in sys.modules
    lazy = getattr(sys.modules.get("importlib.util"), "_LazyModule", None)
    if lazy is not None and type(module) is lazy:
        return POSTPONED, spec
    return (EXECUTING if getattr(spec, "_initializing", False) else EXECUTED), spec


def _hook_instance(loader: Any, name: str, fire: Callable[[str, ModuleType], None]) -> None:
    """Let this one loader object call ``fire`` once, then be as it was."""

    @_as_import_machinery
    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        _execute(loader, name, module, fire)

    loader.exec_module = exec_module


class _HookedLoader:
    """Stands in for a loader that may be shared, until the module has been executed."""

    def __init__(
        self, loader: Any, spec: ModuleSpec, name: str, fire: Callable[[str, ModuleType], None]
    ) -> None:
        self._loader = loader
        self._spec = spec
        self._name = name
        self._fire = fire

    def __getattr__(self, attribute: str) -> Any:
        # Not self._loader: a copy in the making has none yet, and would ask here again.
        return getattr(object.__getattribute__(self, "_loader"), attribute)

    @_as_import_machinery
    def exec_module(self, module: ModuleType) -> None:
        """Execute the module by the real loader, which is put back first."""
        self._spec.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        _execute(self._loader, self._name, module, self._fire)


@_as_import_machinery
def _execute(
    loader: Any, name: str, module: ModuleType, fire: Callable[[str, ModuleType], None]
) -> None:
    """Execute the module, then report what ``import`` gives: some put another in their place."""
    registered = sys.modules.get(name) is module
    loader.exec_module(module)
    fire(name, (sys.modules.get(name) or module) if registered else module)
