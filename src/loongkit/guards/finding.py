"""What a check finds: a setting, its number, the limit, the change to make."""

from __future__ import annotations

from typing import NamedTuple

#: Every finding that can be reported, in an order that never changes within a job.
KEYS = (
    "CG-01",
    "CG-02",
    "CG-03",
    "CG-04",
    "CG-04 at work",
    "CG-05",
    "CG-06",
    "CG-07",
    "CG-08",
    "CG-09",
    "CG-10 balancing",
    "CG-10 huge pages",
    "CG-10 governor",
)


class Finding(NamedTuple):
    """A setting that exceeds the hardware.

    ``key`` is one of ``KEYS``; ``number`` and ``limit`` are in the setting's own unit;
    ``problem`` says in words what was found and what the limit is, ``change`` what to do.
    ``fix`` is the value that mends it (None: it can't be mended from here), ``informational``
    that the user should find it in the log but not be warned.
    """

    key: str
    setting: str
    number: int
    limit: int
    problem: str
    change: str
    fix: int | None = None
    informational: bool = False

    @property
    def code(self) -> str:
        """The number of the check, as the docs list it."""
        return self.key.split()[0]

    @property
    def line(self) -> str:
        """The finding in one line, with the change to make."""
        return f"config_guards {self.code}: {self.problem}; {self.change}"

    def mended(self, new: int) -> str:
        """Return the line that says what was changed."""
        return (
            f"config_guards {self.code}: {self.problem}; "
            f"{self.setting} changed {self.number} -> {new} (LOONGKIT_CONFIG_GUARDS_APPLY_FIX=1)"
        )
