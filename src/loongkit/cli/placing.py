"""What NUMA_AFFINITY and SUBCGROUPS would come to here, as far as that shows before a job runs.

Both follow one plan, which is that of ``loongkit topology``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loongkit.activation import process
from loongkit.activation.files import NotAMachine
from loongkit.cli import topology
from loongkit.cli.output import counted
from loongkit.cli.topology import Rank, View
from loongkit.cli.topology_text import ranks_text
from loongkit.numa import plan as planning
from loongkit.numa.cgroups import own
from loongkit.numa.cgroups.operations import Operations

AFFINITY, GROUPS = topology.FEATURE, "subcgroups"

#: Without this the plan waits until the device is in use, and may then be another one.
_UNKNOWN = "no-device-identity"

_SHOWN = "`loongkit topology` shows where"


@dataclass(frozen=True)
class Outlook:
    """What would become of a feature that is on.

    ``cause`` says why it is certain to do nothing, "" where it would do something, and ``more``
    where to read on about it; ``note`` says what it would do or depends on; ``problems`` what is
    worth a warning, ``shortfall`` which of the options can't be followed while the rest is done;
    ``yields_to`` names a feature that does its work where both are on.
    """

    cause: str = ""
    more: str = ""
    note: str = ""
    problems: tuple[str, ...] = ()
    shortfall: str = ""
    yields_to: str = ""

    @property
    def stops(self) -> str:
        """Return why LOONGKIT_STRICT=1 stops a rank that has asked for the feature by its name."""
        return self.cause or self.shortfall


def outlooks(environ: Mapping[str, str]) -> dict[str, Outlook]:
    """Return the outlook of each feature that places processes, by its name."""
    try:
        view = topology.gather(environ, None, None)
    except NotAMachine as error:
        nowhere = Outlook(cause=f"{topology.SYSFS}={error}")
        return {AFFINITY: nowhere, GROUPS: nowhere}
    affinity = of_view(view, launched=process.has_local_rank(environ))
    groups = replace(affinity, yields_to="")
    if not affinity.cause:
        groups = replace(groups, cause=without_groups(Operations()))
    return {AFFINITY: affinity, GROUPS: groups}


def of_view(view: View, launched: bool) -> Outlook:
    """Return the outlook of NUMA_AFFINITY in a job that is placed as a view shows.

    ``launched`` tells that this environment is that of a launcher's process.
    """
    problems = dict.fromkeys(text for rank in view.ranks for text in rank.warnings)
    cause = _cause(view)
    return Outlook(
        cause,
        more="`loongkit topology` shows the machine" if cause else "",
        note=_note(view, launched),
        problems=tuple(problems),
        shortfall=_shortfall(view),
        yields_to=GROUPS,
    )


def _cause(view: View) -> str:
    """Return why no rank would be placed, "" where some would, or may be once it uses a device."""
    if any(rank.plan.active or rank.cause[0] == _UNKNOWN for rank in view.ranks):
        return ""
    return _causes(view.ranks)


def _shortfall(view: View) -> str:
    texts = (text for rank in view.bound for text in planning.not_followed(rank.plan))
    return "; ".join(dict.fromkeys(texts))


def _causes(ranks: Sequence[Rank]) -> str:
    return "; ".join(f"{code}: {text}" for code, text in dict.fromkeys(r.cause for r in ranks))


def _note(view: View, launched: bool) -> str:
    """Return where processes would be placed, and what that depends on."""
    everybody = counted(len(view.ranks), "process", "processes")
    left = [rank for rank in view.ranks if not rank.plan.active]
    if left and not view.bound:
        return f"places a process once the accelerator that it uses is known ({_causes(left)})"
    if left:
        whose = ranks_text(rank.number for rank in left)
        return f"{_SHOWN} the others of {everybody} would run; not bound: {whose}, {_causes(left)}"
    if not view.visible and not launched:
        return (
            "places processes to which a launcher such as torchrun gives a local rank; any other "
            f"waits for an accelerator, and none is visible; {_SHOWN} they would run"
        )
    return f"{_SHOWN} {everybody} would run"


def without_groups(operations: Operations) -> str:
    """Return why this process can't make control groups, "" where nothing is known against it."""
    try:
        folder = own.find(operations, os.getpid())[0].folder
    except OSError as error:
        return f"cgroup-unavailable: {error.strerror or error}"
    path = operations.at(folder)
    if os.access(path, os.W_OK):
        return ""
    return f"cgroup-unavailable: found {path} read-only, wanted a control group to make others in"
