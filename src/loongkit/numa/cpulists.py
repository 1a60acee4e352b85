"""Sets of CPUs as the kernel writes them: lists such as "0-3,8", and masks such as "f,00000003"."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from loongkit.activation.files import Tree

#: No kernel is built for more CPUs; a larger number is a slip, and would fill the memory.
MOST = 8192

#: The longest list or mask, with room to spare.
BYTES = 1 << 16

_BLANK = " \t\r\n\0"
_HEXADECIMAL = "0123456789abcdefABCDEF"


def parse(text: str) -> frozenset[int]:
    """Return the numbers in a list; an empty text is an empty set.

    Raises:
        ValueError: an item is neither a number nor a rising range, or a number is out of bounds.

    """
    numbers: set[int] = set()
    text = text.strip(_BLANK)
    for item in text.split(",") if text else ():
        first, dash, last = item.partition("-")
        start = _number(first)
        end = _number(last) if dash else start
        if end < start:
            raise ValueError(f"{item!r} does not rise")
        numbers.update(range(start, end + 1))
    return frozenset(numbers)


def parse_mask(text: str) -> frozenset[int]:
    """Return the numbers of the bits in a mask of 32-bit words, the highest first.

    Raises:
        ValueError: a word is not hexadecimal, or too long, or there is none.

    """
    words = text.replace("\0", " ").replace(",", " ").split()
    if not words or len(words) * 32 > MOST:
        raise ValueError(f"{len(words)} words")
    value = 0
    for position, word in enumerate(words):
        # A single word, or the first, may be longer where the kernel's own word is.
        if len(word) > (8 if position else MOST // 4) or word.strip(_HEXADECIMAL):
            raise ValueError(f"{word!r} is no word of a mask")
        value = value << 32 | int(word, 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def format(cpus: Iterable[int]) -> str:
    """Return the numbers as a list with ranges, in rising order."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for position, number in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] > number + 1:
            first = ordered[start]
            parts.append(str(number) if first == number else f"{first}-{number}")
            start = position + 1
    return ",".join(parts)


def read(tree: Tree, path: str, notes: list[str], mask: str = "") -> frozenset[int] | None:
    """Return the CPUs that a list in /sys names, or else the mask beside it; None: neither does.

    ``mask`` is the path of the latter where it isn't named as usual: cpumap beside cpulist,
    shared_cpu_map beside shared_cpu_list, thread_siblings beside thread_siblings_list.
    """
    usual = path.removesuffix("list") + "map"
    if path.endswith("siblings_list"):
        usual = path.removesuffix("_list")
    for name, parser in ((path, parse), (mask or usual, parse_mask)):
        text = tree.read(name, BYTES)
        if text:
            try:
                return parser(text)
            except ValueError as error:
                notes.append(f"{name}: found {error}; wanted a set of CPUs; counts as missing")
    return None


def _number(text: str) -> int:
    digits = text.strip(_BLANK)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 4 or int(digits) >= MOST:
        raise ValueError(f"{text.strip(_BLANK)!r} is not a number from 0 to {MOST - 1}")
    return int(digits)
