"""Which accelerators a process may use, and in which order, as its environment has it.

Pure functions of an environment and a machine's record; start-up code of the ranks of a job.
"""

from __future__ import annotations

from loongkit.activation import hardware

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loongkit.numa.records import Machine

#: Kind of device -> the variables by which its runtime chooses among them; the first that is set
#: counts. Kinds that are not here are taken to follow CUDA's.
_VARIABLES = {
    hardware.AMD: ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES",),
    "cambricon": ("MLU_VISIBLE_DEVICES",),
    "gaudi": ("HABANA_VISIBLE_DEVICES",),
    "moorethreads": ("MUSA_VISIBLE_DEVICES",),
}
_CUDA = ("CUDA_VISIBLE_DEVICES",)

#: What a container was given; its runtime's words for everything and for nothing.
_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_ALL_OR_NONE = ("", "all", "none", "void")


class Visible:
    """``addresses`` by device index, None where they can't be known.

    ``source`` names the variable that chose them; ``restricted`` tells that one did; ``doubt``
    says why the order may be another one, "" where it is certain. ``table`` holds all that the
    driver lets this process see.
    """

    __slots__ = ("addresses", "doubt", "restricted", "source", "table")

    def __init__(
        self,
        addresses: tuple[str, ...] | None,
        table: tuple[str, ...],
        source: str,
        restricted: bool,
        doubt: str,
    ) -> None:
        self.addresses = addresses
        self.table = table
        self.source = source
        self.restricted = restricted
        self.doubt = doubt


def table(machine: Machine, kind: str) -> tuple[str, ...]:
    """Return the accelerators of a kind that the driver lets this process see, by PCI address.

    A container's /sys shows all of the host's; of NVIDIA's, its /proc has files for its own.
    """
    found = tuple(each.pci for each in machine.accelerators if each.kind == kind)
    if kind != hardware.NVIDIA:
        return found
    return tuple(address for address in found if address in machine.uuids) or found


def read(environ: Mapping[str, str], machine: Machine, kind: str) -> Visible:
    """Return the devices of a kind that this process may use, by their indices."""
    names = _VARIABLES.get(kind, _CUDA)
    source = next((name for name in names if name in environ), "")
    devices = table(machine, kind)
    if not source:
        container = kind == hardware.NVIDIA and not _whole_container(environ, devices)
        doubt = _doubt(environ, machine, kind, devices, devices)
        return Visible(devices, devices, _CONTAINER if container else "", container, doubt)
    text = environ[source]
    addresses = chosen(text, devices, machine.uuids)
    if addresses is None:
        doubt = f"{source} names devices whose parents the driver's files do not tell"
    elif text.strip().startswith(("GPU-", "MIG-")):
        doubt = ""
    else:
        doubt = _doubt(environ, machine, kind, devices, addresses)
    return Visible(addresses, devices, source, True, doubt)


def chosen(text: str, devices: Sequence[str], uuids: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the devices that a text in the form of CUDA_VISIBLE_DEVICES chooses.

    The forms are ordinals, ``GPU-`` with the beginning of a uuid, and ``MIG-`` for a part of a
    device, which counts as the whole; the first item's form is that of all. The first item that is
    not valid ends the list; one that comes twice empties it.

    None: the driver's files don't tell which devices are meant.
    """
    items = [item.strip() for item in text.split(",")]
    form = next((start for start in ("GPU-", "MIG-") if items[0].startswith(start)), "")
    found: list[str] = []
    seen: set[object] = set()
    for item in items:
        if not item.startswith(form):
            break
        if form == "":
            index = _ordinal(item)
            if not 0 <= index < len(devices):
                break
            key: object = index
            address = devices[index]
        else:
            matches = _by_uuid(item, form, devices, uuids)
            if matches is None:
                return None
            if len(matches) != 1:
                break
            address = matches[0]
            key = item if form == "MIG-" else address
        if key in seen:
            return ()
        seen.add(key)
        found.append(address)
    return tuple(found)


def _ordinal(item: str) -> int:
    """Read the number that an item begins with, as C's strtol does; -1 where there is none."""
    digits = ""
    for character in item.removeprefix("+"):
        if not "0" <= character <= "9":
            break
        digits += character
    return int(digits[:9]) if digits else -1


def _by_uuid(
    item: str, form: str, devices: Sequence[str], uuids: Mapping[str, str]
) -> list[str] | None:
    """Return the devices whose uuids begin as an item does; None where some are not known."""
    if form == "MIG-":
        parent = item.removeprefix("MIG-").partition("/")[0]
        if not parent.startswith("GPU-"):  # a uuid of its own, from which no file leads to a device
            return list(devices) if len(devices) == 1 else None
        item = parent
    known = {address: uuids.get(address, "") for address in devices}
    matches = [a for a, uuid in known.items() if uuid.lower().startswith(item.lower())]
    return matches if matches or all(known.values()) else None


def _doubt(
    environ: Mapping[str, str],
    machine: Machine,
    kind: str,
    devices: Sequence[str],
    addresses: Sequence[str],
) -> str:
    """Say why an ordinal may mean another device than the one of that place in the table."""
    if kind != hardware.NVIDIA:
        return "the order in which the driver counts these devices is not known"
    seen = set(devices)
    models = {each.name for each in machine.accelerators if each.pci in seen}
    if len(models) > 1 and environ.get("CUDA_DEVICE_ORDER", "").strip() != "PCI_BUS_ID":
        return "CUDA orders devices of several models by their speed"
    if not _whole_container(environ, devices):
        return f"{_CONTAINER} says that this container was given some of the host's devices"
    if "SLURM_JOB_ID" in environ and len(addresses) < len(devices):
        return "Slurm may count from 0 in what each task was given"
    return ""


def _whole_container(environ: Mapping[str, str], devices: Sequence[str]) -> bool:
    """Tell whether the devices of the table are those that the container was given."""
    text = environ.get(_CONTAINER, "").strip()
    return text in _ALL_OR_NONE or len(text.split(",")) == len(devices)
