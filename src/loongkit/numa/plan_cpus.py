"""The plan that the user wrote himself: LOONGKIT_NUMA_AFFINITY_CPUS.

Pure functions; start-up code of the ranks of a job.
"""

from __future__ import annotations

from loongkit.activation import cpulists
from loongkit.activation.settings import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.plan_nodes import Reasons
    from loongkit.numa.records import Machine, Request

VARIABLE = "LOONGKIT_NUMA_AFFINITY_CPUS"

_ACCEPTED = (
    "accepted: one list of CPUs for each local rank, 0-31,32-63 for two ranks, or with lists of "
    "several ranges 0-15,64-79;16-31,80-95"
)


def read(text: str) -> list[frozenset[int]]:
    """Return the CPUs of each local rank.

    ``;`` separates the lists of ranks (one may end the text); where there is none, each item
    between commas is one rank's list.

    Raises:
        ValueError: a list is empty or is not one.
    """
    separator = ";" if ";" in text else ","
    items = [item.strip() for item in text.strip().split(separator)]
    if separator == ";" and not items[-1]:
        items.pop()
    found = [cpulists.parse(item) for item in items]
    if not all(found):
        raise ValueError(f"{text!r} holds an empty list")
    return found


def own(machine: Machine, request: Request, said: Reasons) -> frozenset[int] | None:
    """Return the CPUs that the user gave this process, within what it may use; None: nothing.

    A text that can't be followed for all local ranks counts as not set, with a warning, which is
    the same on all of them. The set is empty where this process may use none of its CPUs.
    """
    text = str(request.options.get("cpus") or "").strip()
    if not text:
        return None
    what = f"{VARIABLE}={shown(text)}"
    try:
        lists = read(text)
    except ValueError:
        said.say(
            "cpus-not-read",
            f"{what} is not understood and counts as not set; {_ACCEPTED}",
            warn=True,
        )
        return None
    ranks = max(request.ranks, request.local_rank + 1, 1)
    if len(lists) < ranks:
        found = f"{what} has lists for {len(lists)} of the {ranks} local ranks"
        said.say("cpus-too-few", f"{found} and counts as not set; {_ACCEPTED}", warn=True)
        return None
    if len(lists) > ranks:
        text = (
            f"{VARIABLE} has {len(lists)} lists, of which {ranks} are used; for one rank a list of "
            "several ranges ends in ;"
        )
        said.say("cpus-not-used", text)
    lists = lists[:ranks]
    lost = frozenset().union(*lists) - machine.allowed
    if lost:
        text = f"{what}: this process may not use CPUs {cpulists.format(lost)}, which are left out"
        said.say("cpus-not-allowed", text, warn=True)
    return lists[max(request.local_rank, 0)] & machine.allowed
