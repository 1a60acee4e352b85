"""Writes a picture as SVG."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from loongkit.cli.topology_shapes import Picture, Rectangle, Text, text_width

_FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def render(picture: Picture, title: str) -> str:
    """Return the text of an SVG file."""
    size = f'width="{picture.width:g}" height="{picture.height:g}"'
    box = f'viewBox="0 0 {picture.width:g} {picture.height:g}"'
    look = f'font-family={quoteattr(_FONT)} xml:space="preserve"'  # the columns of the legend
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} {look}>',
        f"<title>{escape(title)}</title>",
        f'<rect {size} fill="#ffffff"/>',
    ]
    lines += [
        _rectangle(shape) if isinstance(shape, Rectangle) else _text(shape)
        for shape in picture.shapes
    ]
    return "\n".join([*lines, "</svg>", ""])


def _rectangle(shape: Rectangle) -> str:
    place = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
    return f'<rect {place} fill="{shape.fill}" stroke="{shape.edge}"/>'


def _text(shape: Text) -> str:
    # The width is given, so that another font than the wanted one can't break the layout.
    width = f'textLength="{text_width(shape.text, shape.size):g}" lengthAdjust="spacingAndGlyphs"'
    weight = ' font-weight="bold"' if shape.bold else ""
    place = f'x="{shape.x:g}" y="{shape.y + shape.size * 0.8:g}" font-size="{shape.size:g}"'
    return f'<text {place} {width} fill="{shape.colour}"{weight}>{escape(shape.text)}</text>'
