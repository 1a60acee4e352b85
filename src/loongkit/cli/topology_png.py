"""Paints a picture as PNG with Pillow, which comes as an extra: ``loongkit[pictures]``."""

from __future__ import annotations

import io

from loongkit.cli.topology_shapes import LETTER, Picture, Rectangle, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

#: Pixels of the file for each of the picture: small print stays readable.
SCALE = 2

#: Fonts of fixed width that Linux systems have, by their files' names.
_FONTS = (
    ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    ("LiberationMono-Regular.ttf", "LiberationMono-Bold.ttf"),
)

MISSING = (
    "--png needs Pillow 10.1 or later, found {found}: "
    "run `pip install 'loongkit[pictures]'`, or use --svg"
)


class PillowMissing(RuntimeError):
    """Pillow is not installed, or too old; the text says what to do."""


def render(picture: Picture) -> bytes:
    """Return the bytes of a PNG file.

    Raises:
        PillowMissing: it can't be painted here.

    """
    try:
        import PIL
        from PIL import Image, ImageDraw
    except ImportError:
        raise PillowMissing(MISSING.format(found="none"))
    size = round(picture.width * SCALE), round(picture.height * SCALE)
    image = Image.new("RGB", size, "#ffffff")
    draw = ImageDraw.Draw(image)
    fonts = _Fonts(PIL.__version__)
    for shape in picture.shapes:
        if isinstance(shape, Rectangle):
            corners = [shape.x, shape.y, shape.x + shape.width, shape.y + shape.height]
            scaled = [corner * SCALE for corner in corners]
            draw.rectangle(scaled, fill=shape.fill, outline=shape.edge, width=SCALE)
        else:
            place = (shape.x * SCALE, shape.y * SCALE)
            draw.text(place, shape.text, fill=shape.colour, font=fonts.of(shape))
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


class _Fonts:
    """Fonts by size, of fixed width where the system has such, else Pillow's own made to fit."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._found: dict[tuple[float, bool], FreeTypeFont | ImageFont] = {}

    def of(self, shape: Text) -> FreeTypeFont | ImageFont:
        key = shape.size, shape.bold
        if key not in self._found:
            self._found[key] = self._load(*key)
        return self._found[key]

    def _load(self, size: float, bold: bool) -> FreeTypeFont | ImageFont:
        from PIL import ImageFont

        for names in _FONTS:
            try:
                return ImageFont.truetype(names[bold], size * SCALE)
            except (OSError, ImportError):
                continue
        try:
            font = ImageFont.load_default(size * SCALE)
        except TypeError:  # before 10.1 there was one size
            raise PillowMissing(MISSING.format(found=self._version))
        widest = font.getlength("0123456789") / 10
        return ImageFont.load_default(size * SCALE * min(1.0, LETTER * size * SCALE / widest))
