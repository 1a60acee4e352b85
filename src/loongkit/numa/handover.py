"""What a placed process tells its children: the mask it had, and where its data workers belong.

In the environment, because that reaches children of every kind. A child that is a rank itself
(a launcher was placed by mistake) plans from the original mask instead of narrowing it again.
"""

from __future__ import annotations

from loongkit.activation import settings
from loongkit.numa import cpulists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


class Handover:
    """The masks of a placed process: ``base`` before, ``train`` its own, ``data`` its workers'."""

    __slots__ = ("base", "data", "pid", "train")

    def __init__(
        self, pid: int, base: frozenset[int], train: frozenset[int], data: frozenset[int]
    ) -> None:
        self.pid = pid
        self.base = base
        self.train = train
        self.data = data

    def write(self, environ: MutableMapping[str, str]) -> None:
        """Leave it to the children of this process."""
        masks = (cpulists.format(mask) for mask in (self.base, self.train, self.data))
        environ[settings.JOB_PLACEMENT] = "/".join((str(self.pid), *masks))


def read(environ: Mapping[str, str]) -> Handover | None:
    """Return what a placed parent, or this process before an exec, has left; None: nothing."""
    parts = environ.get(settings.JOB_PLACEMENT, "").split("/")
    if len(parts) != 4 or not parts[0].isdecimal():
        return None
    try:
        base, train, data = (cpulists.parse(part) for part in parts[1:])
    except ValueError:
        return None
    return Handover(int(parts[0]), base, train, data) if base and train and data else None


def forget(environ: MutableMapping[str, str]) -> None:
    """Tell children nothing any more: this process was put back."""
    environ.pop(settings.JOB_PLACEMENT, None)


def base_mask(current: frozenset[int], environ: Mapping[str, str]) -> frozenset[int]:
    """Return the mask to plan from: the one before any placement of ours, else the current one.

    Where somebody has moved this process since, that somebody's mask counts.
    """
    left = read(environ)
    return left.base if left and current in (left.train, left.data) else current
