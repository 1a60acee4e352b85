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

_SHOWN = 40  # letters of what is no number
_BLANK = " \t\r\n\0"
_HEXADECIMAL = "0123456789abcdefABCDEF"


def parse(text: str) -> frozenset[int]:
    """Return the numbers in a list; an empty text is an empty set.

    Raises:
        ValueError: an item is neither a number nor a rising range, or a number is out of bounds,
            or the same numbers come again and again.

    """
    numbers: set[int] = set()
    text = text.strip()
    named = 0
    for item in text.split(",") if text else ():
        first, dash, last = item.partition("-")
        start = _number(first, item)
        end = _number(last, item) if dash else start
        if end < start:
            raise ValueError(f"{_clipped(item)}, which does not rise")
        named += end + 1 - start
        if named > MOST:
            raise ValueError(f"more than {MOST} numbers")
        numbers.update(range(start, end + 1))
    return frozenset(numbers)


def parse_mask(text: str) -> frozenset[int]:
    """Return the numbers of the bits in a mask of 32-bit words, the highest first.

    Raises:
        ValueError: a word is not hexadecimal, or too long, or there is none.

    """
    words = text.replace("\0", " ").replace(",", " ").split()
    if not words or len(words) * 32 > MOST:
        raise ValueError(f"{len(words)} words of a mask")
    value = 0
    for position, word in enumerate(words):
        # A single word, or the first, may be longer where the kernel's own word is.
        if len(word) > (8 if position else MOST // 4) or word.strip(_HEXADECIMAL):
            raise ValueError(f"{_clipped(word)}, no word of a mask")
        value = value << 32 | int(word, 16)
    if value.bit_length() > MOST:
        raise ValueError(f"a mask of {value.bit_length()} bits")
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
    problems: list[str] = []
    found = None
    instead = "it counts as missing"
    for name, parser in ((path, parse), (mask or usual, parse_mask)):
        text = tree.read(name, BYTES + 1)
        try:
            if len(text) > BYTES:
                raise ValueError(f"more than {BYTES} bytes")
            if text:
                found = parser(text)
                instead = f"{name} is taken instead"
                break
        except ValueError as error:
            problems.append(f"{name}: found {error}; wanted a set of CPUs")
    notes += [f"{problem}; {instead}" for problem in problems]
    return found


def _number(text: str, item: str) -> int:
    digits = text.strip(_BLANK)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 4 or int(digits) >= MOST:
        raise ValueError(f"{_clipped(item)}, no numbers from 0 to {MOST - 1}")
    return int(digits)


def _clipped(text: str) -> str:
    text = text.strip()
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
