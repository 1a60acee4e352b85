"""The declaration of a feature: the one place that says everything about it.

The environment-variable reference, the README's table, ``loongkit plan``, the gate tests and the
start-up index (``_index.py``) are all derived from these records.
"""

from __future__ import annotations

from loongkit.activation import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Order of the groups in the summary, in `loongkit plan` and in the docs.
GROUPS = ("data", "precision", "operators", "resource")


class Option:
    """A setting of one feature beside its on/off switch.

    ``key`` is its name in the summary's dict; ``variable`` is the full name in the environment,
    by default ``LOONGKIT_<FEATURE>_<KEY>``. ``kind`` is "bool", "int", "count" or "str".
    ``on_with`` names the vendors of CPUs with which a bool that the user has not set acts as on,
    except where he has switched on the option whose key is ``unless``.
    """

    __slots__ = (
        "always_shown",
        "default",
        "key",
        "kind",
        "on_with",
        "summary",
        "unless",
        "variable",
    )

    def __init__(
        self,
        key: str,
        kind: str,
        default: bool | int | str,
        summary: str,
        variable: str = "",
        always_shown: bool = False,
        on_with: tuple[str, ...] = (),
        unless: str = "",
    ) -> None:
        self.key = key
        self.kind = kind
        self.default = default
        self.summary = summary
        self.variable = variable
        self.always_shown = always_shown
        self.on_with = on_with
        self.unless = unless


class DeviceDefaults:
    """Whether LOONGKIT_ALL switches a feature on, by the kind of device the job trains on.

    A kind maps to True or to the reason why a level leaves the feature off there.
    """

    __slots__ = ("by_kind", "otherwise")

    def __init__(self, by_kind: dict[str, bool | str], otherwise: str) -> None:
        self.by_kind = by_kind
        self.otherwise = otherwise

    def for_device(self, kind: str) -> bool | str:
        """Return True, or the reason why a level does not switch the feature on."""
        return self.by_kind.get(kind, self.otherwise)


def by_device(
    by_kind: dict[str, bool | str],
    otherwise: str = "a level leaves it off on a kind of device where it was never measured",
) -> DeviceDefaults:
    """Declare hardware-aware defaults: ``by_device({"cpu": True, "nvidia": "reason"})``."""
    return DeviceDefaults(by_kind, otherwise)


class Feature:
    """What a feature is called, when it is on, what it needs, and the hooks that install it.

    ``requires`` holds version gates such as ``"torch>=2.4.0"`` or ``"mmcv>=1.7.0,<=1.8.0"``;
    ``position`` orders the features in the summary, the plan and the docs;
    ``follows`` names the feature whose switch decides when the own variable is unset;
    ``compiled`` tells that numba has to be there to compile what the feature puts in place;
    ``depends_on`` names features that this one switches on when they are unset.
    """

    def __init__(
        self,
        name: str,
        level: int,
        group: str,
        summary: str,
        *,
        position: int,
        note: str = "",
        guarantee: str = "",
        requires: tuple[str, ...] = (),
        options: tuple[Option, ...] = (),
        default_on: DeviceDefaults | None = None,
        follows: str = "",
        depends_on: tuple[str, ...] = (),
        compiled: bool = False,
        implemented: bool = True,
    ) -> None:
        if group not in GROUPS:
            raise ValueError(f"feature {name}: group {group!r} is none of {', '.join(GROUPS)}")
        if level not in (1, 2, 3):
            raise ValueError(f"feature {name}: level {level!r} is none of 1, 2, 3")
        self.name = name
        self.variable = PREFIX + name.upper()
        self.level = level
        self.group = group
        self.position = position
        self.summary = summary
        self.note = note
        self.guarantee = guarantee
        self.requires = requires
        self.options = options
        self.default_on = default_on
        self.follows = follows
        self.depends_on = depends_on
        self.compiled = compiled
        self.implemented = implemented
        self.hooks: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.support_hooks: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.start_hooks: list[Callable[[Any], bool]] = []
        for option in options:
            option.variable = option.variable or f"{self.variable}_{option.key.upper()}"

    def when_imported(
        self, module_name: str, support: bool = False
    ) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
        """Register ``hook(module, patcher)`` to run right after the named module was executed.

        Name the module that defines the object, not a package that re-exports it: every later
        ``from … import`` then sees the replacement.

        A ``support`` hook prepares another framework for the feature (torch's DataLoader for
        something of mmcv's): it runs once both modules are there and the gates are passed, and
        its module alone does not make the feature patched.
        """

        def register(hook: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
            (self.support_hooks if support else self.hooks).append((module_name, hook))
            return hook

        return register

    def at_start(self, hook: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Register ``hook(patcher)`` to run when Loongkit is armed, before any framework is there.

        Only in a process that a launcher has given a local rank: it is going to train. No version
        gate is checked, since there is nothing yet whose version could be read. The hook returns
        whether it has done something; if not, the feature waits for its other hooks.
        """
        self.start_hooks.append(hook)
        return hook

    @property
    def targets(self) -> tuple[str, ...]:
        """The modules whose import runs a hook of this feature, each once."""
        return tuple(dict.fromkeys(name for name, _ in (*self.hooks, *self.support_hooks)))
