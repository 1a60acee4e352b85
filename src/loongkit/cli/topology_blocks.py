"""Blocks of a picture, and how they are put together: in grids, and into boxes with a heading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loongkit.cli.topology_shapes import Picture, Rectangle, Text, text_width

GAP = 6.0
HEADING = 11.0

#: A block is a small picture of its own.
Block = Picture


def put(target: Picture, block: Block, x: float, y: float) -> None:
    """Paint a block into another at a place; the target grows where it is too small."""
    target.shapes += [replace(shape, x=shape.x + x, y=shape.y + y) for shape in block.shapes]
    target.width = max(target.width, x + block.width)
    target.height = max(target.height, y + block.height)


def grid(blocks: Sequence[Block], columns: int) -> Block:
    """Return blocks in rows, all columns as wide as the widest block."""
    found = Block(0, 0)
    step = max(block.width for block in blocks) + GAP
    y = 0.0
    for start in range(0, len(blocks), columns):
        row = blocks[start : start + columns]
        for column, block in enumerate(row):
            put(found, block, column * step, y)
        y += max(block.height for block in row) + GAP
    return found


def fitting(blocks: Sequence[Block], width: float) -> Block:
    """Return blocks in a grid of at most some width, its rows about equally full."""
    widest = max(block.width for block in blocks) + GAP
    most = max(1, int((width + GAP) / widest))
    rows = -(-len(blocks) // most)
    return grid(blocks, -(-len(blocks) // rows))


def column(blocks: Sequence[Block]) -> Block:
    """Return blocks one below the other."""
    found = Block(0, 0)
    y = 0.0
    for block in blocks:
        put(found, block, 0, y)
        y = found.height + GAP
    return found


def box(heading: str, content: Block, fill: str, edge: str, note: str = "") -> Block:
    """Return a block in a box below a heading; the note stands behind it, less prominent."""
    top = HEADING + 2 * GAP
    width = max(content.width, heading_width(heading, note)) + 2 * GAP
    found = Block(width, top + content.height + GAP)
    found.shapes.append(Rectangle(0, 0, found.width, found.height, fill, edge))
    found.shapes.append(Text(GAP, GAP, heading, HEADING, bold=True))
    if note:
        place = GAP + text_width(heading, HEADING) + 2 * GAP
        found.shapes.append(Text(place, GAP, note, HEADING, "#505050"))
    put(found, content, GAP, top)
    return found


def heading_width(heading: str, note: str = "") -> float:
    """Return the width of a box's heading with its note."""
    return text_width(heading, HEADING) + (text_width(note, HEADING) + 2 * GAP if note else 0)


def lines(texts: Sequence[str], size: float) -> Block:
    """Return lines of text."""
    found = Block(0, 0)
    for number, text in enumerate(texts):
        found.shapes.append(Text(0, number * size * 1.4, text, size))
    found.width = max(text_width(text, size) for text in texts)
    found.height = len(texts) * size * 1.4
    return found
