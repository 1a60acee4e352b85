"""What a picture is made of: rectangles and texts, in pixels from the upper left corner."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Width of a letter, in parts of the size of the text: both writers use a font of fixed width.
LETTER = 0.6


@dataclass(frozen=True)
class Rectangle:
    """A filled rectangle with an edge; colours as "#rrggbb"."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str


@dataclass(frozen=True)
class Text:
    """One line of text; ``x`` is its left end, ``y`` the top of its letters."""

    x: float
    y: float
    text: str
    size: float
    colour: str = "#202020"
    bold: bool = False


@dataclass
class Picture:
    """Shapes in the order in which they are painted."""

    width: float
    height: float
    shapes: list[Rectangle | Text] = field(default_factory=list)


def text_width(text: str, size: float) -> float:
    """Return the width of a text."""
    return len(text) * size * LETTER
