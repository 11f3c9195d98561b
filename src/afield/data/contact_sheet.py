"""A sheet of example images of every domain, for a person to look at."""

from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from afield.data.domain import DomainSet, Split
from afield.data.pixels import shrunk, upright
from afield.errors import AfieldError
from afield.files import replacing

_TILE = 64
_GAP = 6
_MARGIN = 16
_TEXT_SIZE = 22
_WIDEST_NAME = 320
MOST_ROWS = 100
"""Of a data set with more domains the sheet shows the first, and says how many are left out."""


def contact_sheet(data: DomainSet, per_domain: int = 20) -> Image.Image:
    """One row per domain: its name, then training images in the order of the classes, equally many of each class."""
    font = sheet_font()
    shown = dict(islice(data.domains.items(), MOST_ROWS))
    rows = [
        (shortened(name, font), [make_tile(domain.train, index) for index in _examples(domain.train, per_domain)])
        for name, domain in shown.items()
    ]
    if len(data.domains) > len(shown):
        rows.append((f"and {len(data.domains) - len(shown)} more domains", []))
    first = _MARGIN + round(max(font.getlength(name) for name, _ in rows)) + _MARGIN
    step = _TILE + _GAP
    columns = max(len(tiles) for _, tiles in rows)
    sheet = Image.new("RGB", (first + columns * step - _GAP + _MARGIN, len(rows) * step - _GAP + 2 * _MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, tiles) in enumerate(rows):
        top = _MARGIN + row * step
        pen.text((_MARGIN, top + _TILE / 2), name, "black", font, "lm")
        for column, tile in enumerate(tiles):
            corner = (first + column * step + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2)
            sheet.paste(tile, corner)
    return sheet


def check_sheet(file: Path) -> None:
    """Raise unless a sheet can have this name."""
    if file.suffix.lower() != ".png":
        raise AfieldError(f"a contact sheet is a .png file, not {file}")
    if file.is_dir():
        raise AfieldError(f"{file} is a folder, not a file for a contact sheet")


def save_sheet(sheet: Image.Image, file: Path) -> None:
    """Write it whole or not at all."""
    with replacing(file) as temporary:
        sheet.save(temporary, "PNG")


def sheet_font(size: int = _TEXT_SIZE) -> ImageFont.FreeTypeFont:
    """A font with the letters of most languages."""
    import matplotlib  # takes a moment, and only for its font: Pillow's own has few letters beyond English

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


def shortened(name: str, font: ImageFont.FreeTypeFont, widest: int = _WIDEST_NAME) -> str:
    """A name on one line, cut in its middle if it is too long: both ends may tell it from others."""
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    short, kept = name, len(name)
    while font.getlength(short) > widest:
        kept -= 1
        short = f"{name[: (kept + 1) // 2]}\u2026{name[len(name) - kept // 2 :]}"
    return short


def _examples(split: Split, count: int) -> list[int]:
    """Indices of images: from each class in turn until there are enough; evenly spread where there are no labels."""
    labels = split.labels
    if labels is None:
        return [int(index) for index in np.unique(np.linspace(0, len(split) - 1, min(count, len(split))).round())]
    of_classes = [np.flatnonzero(labels == label)[:count].tolist() for label in np.unique(labels)]
    in_turn = (index for index in chain.from_iterable(zip_longest(*of_classes)) if index is not None)
    return sorted(islice(in_turn, count), key=lambda index: (labels[index], index))


def make_tile(split: Split, index: int, side: int = _TILE) -> Image.Image:
    """An image of any size as large as fits into a tile, with its own proportions."""
    image = upright(shrunk(split.images.original(index), side, "pad"))
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)
