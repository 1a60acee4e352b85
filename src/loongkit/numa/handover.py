"""What a placed process tells its children: who it is, the mask it had, and those it planned.

In the environment, because that reaches children of every kind. A program that a rank or one of
its data workers starts inherits also the local rank: it stays where it was started. A child that
is another rank (a launcher was placed by mistake) plans from the original mask instead of
narrowing it again.
"""

from __future__ import annotations

from loongkit.activation import cpulists, process, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


class Handover:
    """What one placed process has left.

    ``rank`` is its local rank, -1 where it has none, ``ranks`` the number of ranks that it planned
    for; ``base`` its mask before, ``train`` its own since, ``data`` that of its data workers.
    """

    __slots__ = ("base", "data", "pid", "rank", "ranks", "train")

    def __init__(
        self,
        *,
        pid: int,
        rank: int,
        ranks: int,
        base: frozenset[int],
        train: frozenset[int],
        data: frozenset[int],
    ) -> None:
        self.pid = pid
        self.rank = rank
        self.ranks = ranks
        self.base = base
        self.train = train
        self.data = data

    def write(self, environ: MutableMapping[str, str]) -> None:
        """Leave it to the children of this process."""
        numbers = map(str, (self.pid, self.rank, self.ranks))
        masks = map(cpulists.format, (self.base, self.train, self.data))
        environ[settings.JOB_PLACEMENT] = "/".join((*numbers, *masks))


def read(environ: Mapping[str, str]) -> Handover | None:
    """Return what a placed parent, or this process before an exec, has left; None: nothing."""
    parts = environ.get(settings.JOB_PLACEMENT, "").split("/")
    if len(parts) != 6:
        return None
    try:
        pid, rank, ranks = map(int, parts[:3])
        base, train, data = map(cpulists.parse, parts[3:])
    except ValueError:
        return None
    if pid <= 0 or not (base and train and data):
        return None
    return Handover(pid=pid, rank=rank, ranks=ranks, base=base, train=train, data=data)


def forget(environ: MutableMapping[str, str]) -> None:
    """Tell children nothing any more: this process was put back."""
    environ.pop(settings.JOB_PLACEMENT, None)


def base_mask(current: frozenset[int], environ: Mapping[str, str]) -> frozenset[int]:
    """Return the mask to plan from: the one before any placement of ours, else the current one.

    Where somebody has moved this process since, that somebody's mask counts.
    """
    left = read(environ)
    return left.base if left and current in (left.train, left.data) else current


def is_of_placed_rank(
    environ: Mapping[str, str], *, pid: int, rank: int, ranks: int, mask: frozenset[int]
) -> bool:
    """Tell whether a placed rank, or one of its data workers, has started this process.

    It has the same place among as many ranks, and is below that rank or on CPUs of it: a program
    in between may have ended, and a user may have moved the rank since. What was left may also
    have come from elsewhere, with the environment of a job that submits another one. A process
    that has become another program by exec is none of this: it is the rank.
    """
    left = read(environ)
    if left is None or left.pid == pid or rank < 0 or (left.rank, left.ranks) != (rank, ranks):
        return False
    return mask <= left.train | left.data or process.is_below(pid, left.pid)
