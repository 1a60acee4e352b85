"""The functions on the PCI buses of a machine, found by opening few files.

A server shows hundreds of functions, each with a folder in /sys. One file of /proc lists them all,
without their domains and classes: enough to pass over nearly all of them unopened.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from loongkit.activation.files import Tree

DEVICES = "sys/bus/pci/devices"
_LIST = "proc/bus/pci/devices"
_LIST_BYTES = 4 << 20

# Columns of the list: bus and function, vendor and device, interrupt, seven addresses and their
# seven sizes; the name of the driver may follow.
_SIZES = slice(10, 17)


def addresses(tree: Tree, wanted: Callable[[int, int, int], bool]) -> list[str]:
    """Return the addresses of functions that may be wanted, in their order on the buses.

    ``wanted`` is asked with vendor, device and the bytes of the largest region. Functions that
    share bus and number with one in another domain come along, and all of them come where the
    list can't be read: the caller looks into each.
    """
    found = sorted(tree.names(DEVICES), key=order)
    listed = _listed(tree.read(_LIST, _LIST_BYTES))
    if not listed:
        return found
    places = {place for place, vendor, device, size in listed if wanted(vendor, device, size)}
    return [address for address in found if address.partition(":")[2] in places]


def order(address: str) -> tuple[int, int, int, int, str]:
    """Return a key that sorts addresses by domain, bus, device and function."""
    try:
        domain, bus, rest = address.split(":")
        device, _, function = rest.partition(".")
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16), ""
    except ValueError:
        return 1 << 64, 0, 0, 0, address  # no address at all: last


def _listed(text: str) -> list[tuple[str, int, int, int]]:
    """Return place ("bb:dd.f"), vendor, device and largest region of each line.

    A line that isn't understood leaves nothing: the list can't be relied on then.
    """
    listed = []
    for line in text.splitlines():
        fields = line.split()
        try:
            place, name = int(fields[0], 16), int(fields[1], 16)
            size = max(int(field, 16) for field in fields[_SIZES])
        except (IndexError, ValueError):
            return []
        position = f"{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7:x}"
        listed.append((position, name >> 16, name & 0xFFFF, size))
    return listed


def identity(tree: Tree, folder: str) -> tuple[str, int, int]:
    """Return class code ("0x030200"), vendor and device of a function; "" or -1 where unknown."""
    fields = dict(
        line.split("=", 1) for line in tree.read(f"{folder}/uevent").splitlines() if "=" in line
    )
    vendor, _, device = fields.get("PCI_ID", "").partition(":")
    codes = [_hexadecimal(text) for text in (fields.get("PCI_CLASS", ""), vendor, device)]
    if min(codes) < 0:
        names = ("class", "vendor", "device")
        codes = [_hexadecimal(tree.read(f"{folder}/{name}")) for name in names]
    return (f"0x{codes[0]:06x}" if codes[0] >= 0 else ""), codes[1], codes[2]


def bridges(tree: Tree, address: str) -> list[str]:
    """Return the addresses of the bridges above a function, the nearest first."""
    parts = tree.target(f"{DEVICES}/{address}").split("/")
    return [part for part in reversed(parts) if part != address and order(part)[0] < 1 << 64]


def _hexadecimal(text: str) -> int:
    try:
        return int(text.strip(), 16)
    except ValueError:
        return -1
