"""The functions on the PCI buses of a machine, found by opening few files.

A server shows hundreds of functions, each with a folder in /sys. One file of /proc lists them all,
without their domains and classes: enough to pass over nearly all of them unopened.
"""

from __future__ import annotations

from loongkit.activation import files

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

_HEXADECIMAL = "0123456789abcdefABCDEF"
_ADDRESS = _HEXADECIMAL + ":."


def addresses(
    tree: Tree, wanted: Callable[[int, int, int], bool], notes: list[str] | None = None
) -> list[str]:
    """Return the addresses of functions that may be wanted, in their order on the buses.

    ``wanted`` is asked with vendor, device and the bytes of the largest region. Functions that
    share bus and number with one in another domain come along, and all of them come where the
    list can't be read: the caller looks into each.
    """
    found = tree.names(DEVICES)
    listed = _listed(tree.read(_LIST, _LIST_BYTES), notes)
    if listed:
        places = {place for place, vendor, device, size in listed if wanted(vendor, device, size)}
        found = [address for address in found if address.partition(":")[2] in places]
    return sorted(filter(is_address, found), key=order)


def is_address(text: str) -> bool:
    """Tell whether a text is an address such as "0000:3b:00.0"."""
    return not text.strip(_ADDRESS) and order(text)[0] < 1 << 64


def order(address: str) -> tuple[int, int, int, int, str]:
    """Return a key that sorts addresses by domain, bus, device and function."""
    try:
        domain, bus, rest = address.split(":")
        device, _, function = rest.partition(".")
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16), ""
    except ValueError:
        return 1 << 64, 0, 0, 0, address  # no address at all: last


def _listed(text: str, notes: list[str] | None) -> list[tuple[str, int, int, int]]:
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
            place = name = size = -1
        if not (0 <= place <= 0xFFFF and 0 <= name <= 0xFFFFFFFF and size >= 0):
            wanted = "a line of numbers for each function"
            files.note(notes, _LIST, line, wanted, "all functions are looked into instead")
            return []
        position = f"{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7:x}"
        listed.append((position, name >> 16, name & 0xFFFF, size))
    return listed


def identity(tree: Tree, folder: str, notes: list[str] | None = None) -> tuple[str, int, int]:
    """Return class code ("0x030200"), vendor and device of a function; "" or -1 where unknown."""
    text = tree.read(f"{folder}/uevent")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    vendor, _, device = fields.get("PCI_ID", "").partition(":")
    codes = [_hexadecimal(text) for text in (fields.get("PCI_CLASS", ""), vendor, device)]
    if min(codes) < 0:
        if text:
            instead = "class, vendor and device are taken instead"
            files.note(notes, f"{folder}/uevent", text, "PCI_CLASS and PCI_ID", instead)
        codes = [_code(tree, f"{folder}/{name}", notes) for name in ("class", "vendor", "device")]
    return (f"0x{codes[0]:06x}" if codes[0] >= 0 else ""), codes[1], codes[2]


def bridges(tree: Tree, address: str) -> list[str]:
    """Return the addresses of the bridges above a function, the nearest first."""
    parts = tree.target(f"{DEVICES}/{address}").split("/")
    return [part for part in reversed(parts) if part != address and is_address(part)]


def _code(tree: Tree, path: str, notes: list[str] | None) -> int:
    text = tree.read(path)
    code = _hexadecimal(text)
    if text and code < 0:
        instead = "the function counts as no accelerator"
        files.note(notes, path, text, "a number such as 0x10de", instead)
    return code


def _hexadecimal(text: str) -> int:
    """Return a hexadecimal number of up to 64 bits, with or without 0x, or -1."""
    digits = text.strip().removeprefix("0x")
    return int(digits, 16) if 0 < len(digits) <= 16 and not digits.strip(_HEXADECIMAL) else -1
