"""Reads the ``LOONGKIT_*`` settings: each with its value, where it came from, and what was wrong.

Nothing here raises or logs: problems are collected as one clear line each, and a value that cannot
be read counts as if it were not set.
"""

from __future__ import annotations

import os

from loongkit.activation import PREFIX, _index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    Value = bool | int | str

TRUE_WORDS = ("1", "on", "yes")
FALSE_WORDS = ("0", "off", "no")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
SUMMARY_TARGETS = ("stdout", "stderr", "log", "off")

#: Settings that belong to no feature: variable, kind, default, meaning (the docs' table too).
GENERAL: tuple[tuple[str, str, bool | int | str, str], ...] = (
    (
        "LOONGKIT_ALL",
        "int",
        0,
        "switches on every feature of that level (1, 2 or 3) and below which this environment "
        "supports; a feature's own variable wins over it in both directions",
    ),
    (
        "LOONGKIT_DISABLE",
        "str",
        "",
        "comma-separated names of features to leave off, whatever else is set",
    ),
    (
        "LOONGKIT_CONFIG",
        "str",
        "",
        "a YAML file with the same settings, names with or without the prefix; the environment "
        "wins over it",
    ),
    (
        "LOONGKIT_LOGLEVEL",
        "level",
        "warning",
        "debug, info, warning, error or critical: only messages of at least that level reach the "
        "log; the summary always does",
    ),
    (
        "LOONGKIT_LOGDIR",
        "str",
        "",
        "`stdout`, `stderr`, or the folder for log files; unset or unusable: "
        "`/var/log/loongkit`, then `/tmp/log/loongkit`, then stderr",
    ),
    (
        "LOONGKIT_SUMMARY",
        "summary",
        "stdout",
        "where the feature summary goes besides the log: stdout, stderr, log (nowhere else), or "
        "off (not even to the log)",
    ),
    (
        "LOONGKIT_STRICT",
        "bool",
        False,
        "for CI: raise where a feature asked for by its own variable is skipped or fails",
    ),
)

#: Settings that hold a path.
PATHS = ("LOONGKIT_CONFIG", "LOONGKIT_LOGDIR", "LOONGKIT_NUMA_AFFINITY_SYSFS")

#: What Loongkit tells its own child processes; not for users.
JOB_VERSION = "LOONGKIT_JOB_VERSION"
JOB_WARNED = "LOONGKIT_JOB_WARNED"
JOB_PLACEMENT = "LOONGKIT_JOB_PLACEMENT"
JOB_LAUNCHER = "LOONGKIT_JOB_LAUNCHER"
INTERNAL = (JOB_VERSION, JOB_WARNED, JOB_PLACEMENT, JOB_LAUNCHER)

ACCEPTED = {
    "bool": "1, on or yes; 0, off or no",
    "int": "a whole number",
    "count": "a whole number from 0 up",
    "level": ", ".join(LOG_LEVELS),
    "summary": ", ".join(SUMMARY_TARGETS),
}


def parse_bool(text: str) -> bool | None:
    """Return the value of a boolean setting, or None when the text is not one."""
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    return False if word in FALSE_WORDS else None


def parse_int(text: str) -> int | None:
    """Return the value of a whole-number setting, or None when the text is not one."""
    word = text.strip()
    digits = word[1:] if word[:1] in ("+", "-") else word
    if not (digits.isascii() and digits.isdecimal()):  # int() would take 1_000 and other scripts
        return None
    try:
        return int(word)
    except ValueError:
        return None  # thousands of digits: Python refuses to convert them


def parse_count(text: str) -> int | None:
    """Return the value of a setting that counts something, or None when the text is not one."""
    number = parse_int(text)
    return None if number is None or number < 0 else number


def _one_of(words: tuple[str, ...]) -> Callable[[str], str | None]:
    def parse(text: str) -> str | None:
        word = text.strip().lower()
        return word if word in words else None

    return parse


PARSERS: dict[str, Callable[[str], bool | int | str | None]] = {
    "bool": parse_bool,
    "int": parse_int,
    "count": parse_count,
    "str": str.strip,
    "level": _one_of(LOG_LEVELS),
    "summary": _one_of(SUMMARY_TARGETS),
}


def known_variables() -> dict[str, str]:
    """Return every variable that Loongkit reads, with its kind."""
    known = {name: kind for name, kind, _, _ in GENERAL}
    for row in _index.ROWS:
        known[PREFIX + str(row[0]).upper()] = "bool"
        for _key, variable, kind, _default, _shown in row[7]:  # type: ignore[attr-defined]
            known[variable] = kind
    return known


def is_service_variable(name: str) -> bool:
    """Tell whether Kubernetes made this variable for a service called ``loongkit…``.

    Such names are ``LOONGKIT_PORT``, ``LOONGKIT_…SERVICE_HOST``, ``LOONGKIT_…SERVICE_PORT…`` and
    ``LOONGKIT_…PORT_80_TCP…`` (vllm-project/vllm#48493 met the same).
    """
    rest = name[len(PREFIX) :]
    return rest.endswith(("SERVICE_HOST", "PORT")) or "SERVICE_PORT" in rest or "PORT_" in rest


def shown(value: str, longest: int = 80) -> str:
    """Return a value as it may stand in a log line: quoted, on one line, cut where too long."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 4]}...{text[-1]}"


class Settings:
    """The settings of this process: ``value(variable)`` is None where nothing valid was set."""

    __slots__ = ("problems", "sources", "values")

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.sources: dict[str, str] = {}
        #: (variable, what is wrong in one line), each variable at most once.
        self.problems: list[tuple[str, str]] = []

    def value(self, variable: str) -> Value | None:
        """Return the defined value of a variable, or None."""
        return self.values.get(variable)

    def text(self, variable: str) -> str:
        """Return a string setting, "" when it is not set."""
        return str(self.values.get(variable, ""))

    def number(self, variable: str, default: int = 0) -> int:
        """Return a whole-number setting, or the default when it is not set."""
        return int(self.values.get(variable, default))

    def complain(self, variable: str, text: str) -> None:
        """Record what is wrong with a variable, once."""
        if all(variable != name for name, _ in self.problems):
            self.problems.append((variable, text))

    def accept(self, variable: str, kind: str, text: str, source: str) -> None:
        """Read one value; one that cannot be read is recorded and leaves the variable unset."""
        value = PARSERS[kind](text)
        if value is None:
            self.complain(
                variable,
                f"{variable}={shown(text)} ({source}) is not understood and counts as not set; "
                f"accepted: {ACCEPTED[kind]}",
            )
            return
        self.values[variable] = value
        self.sources[variable] = source


def read(environ: Mapping[str, str]) -> Settings:
    """Read the settings from the environment and from the file that LOONGKIT_CONFIG names."""
    known = known_variables()
    settings = Settings()
    config = environ.get("LOONGKIT_CONFIG", "").strip()
    if config:
        from loongkit.activation import config as config_file

        config_file.read_into(settings, config, known)
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in INTERNAL:
            continue
        kind = known.get(name)
        if kind is not None:
            settings.accept(name, kind, text, "environment")
        elif not is_service_variable(name):
            settings.complain(name, unknown_name(name, known))
    _check_level(settings)
    _check_disabled(settings)
    return settings


def unknown_name(name: str, known: Mapping[str, str]) -> str:
    """Return the line about a variable that is not ours, with the nearest one that is."""
    import difflib  # only a misspelt name pays for it

    own_parts = [variable[len(PREFIX) :] for variable in known]  # the prefix is like by itself
    near = difflib.get_close_matches(name[len(PREFIX) :], own_parts, n=1, cutoff=0.5)
    hint = f"; the nearest is {PREFIX}{near[0]}" if near else ""
    return f"{shown(name)[1:-1]} is not a setting of Loongkit and is ignored{hint}"


def _check_level(settings: Settings) -> None:
    level = settings.value("LOONGKIT_ALL")
    if level is not None:
        clamped = min(max(int(level), 0), 3)
        if clamped != level:
            settings.complain(
                "LOONGKIT_ALL",
                f"LOONGKIT_ALL={shown(str(level))[1:-1]} acts as {clamped}; accepted: 0, 1, 2, 3",
            )
            settings.values["LOONGKIT_ALL"] = clamped


def _check_disabled(settings: Settings) -> None:
    names = {str(row[0]) for row in _index.ROWS}
    unknown = [name for name in disabled(settings) if name not in names]
    if unknown:
        settings.complain(
            "LOONGKIT_DISABLE",
            f"LOONGKIT_DISABLE names {shown(', '.join(unknown))}, not known as a feature; "
            "accepted: comma-separated names as `loongkit plan` lists them",
        )
    for name in disabled(settings):
        variable = PREFIX + name.upper()
        if name in names and settings.value(variable) is True:
            settings.complain(
                variable,
                f"{variable} ({settings.sources[variable]}) is on, but {name} stays off: "
                f"LOONGKIT_DISABLE ({settings.sources['LOONGKIT_DISABLE']}) lists it; "
                "set one of the two",
            )


def disabled(settings: Settings) -> list[str]:
    """Return the feature names in LOONGKIT_DISABLE, lower case, with or without the prefix."""
    words = (word.strip().lower() for word in settings.text("LOONGKIT_DISABLE").split(","))
    prefix = PREFIX.lower()
    return [word[len(prefix) :] if word.startswith(prefix) else word for word in words if word]


def keep_paths(environ: MutableMapping[str, str]) -> None:
    """Make relative paths in settings absolute: they mean the same to children elsewhere."""
    for variable in PATHS:
        path = environ.get(variable, "").strip()
        if not path or path.lower() in ("stdout", "stderr") or os.path.isabs(path):
            continue
        try:
            environ[variable] = os.path.abspath(path)
        except OSError:
            return  # the working folder is gone: then no child is in it either
