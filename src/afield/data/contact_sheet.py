"""A sheet of examples of every domain, for a person to look at."""

from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from afield.data.domain import DomainSet, Split
from afield.data.images import Pixels

_TILE = 64
_GAP = 6
_MARGIN = 16
_TEXT_SIZE = 22


def contact_sheet(data: DomainSet, per_domain: int = 20) -> Image.Image:
    """One row a domain: its name, then training images, as many of each class as fit, in the order of the classes."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    font = ImageFont.truetype(path, _TEXT_SIZE)
    rows = {name: _examples(domain.train, len(data.classes), per_domain) for name, domain in data.domains.items()}
    text_width = round(max(font.getlength(name) for name in rows))
    first = _MARGIN + text_width + _MARGIN
    step = _TILE + _GAP
    columns = max(len(images) for images in rows.values())
    sheet = Image.new("RGB", (first + columns * step - _GAP + _MARGIN, len(rows) * step - _GAP + 2 * _MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, images) in enumerate(rows.items()):
        top = _MARGIN + row * step
        pen.text((_MARGIN, top + _TILE / 2), name, "black", font, "lm")
        for column, image in enumerate(images):
            tile = Image.fromarray(image).resize((_TILE, _TILE), Image.Resampling.BICUBIC)
            sheet.paste(tile, (first + column * step, top))
    return sheet


def _examples(split: Split, classes: int, count: int) -> Pixels:
    """The first images of each class; the first classes give one more where the count does not divide evenly."""
    wanted = [count // classes + (label < count % classes) for label in range(classes)]
    chosen = [np.flatnonzero(split.labels == label)[:number] for label, number in enumerate(wanted)]
    return split.images.read(np.concatenate(chosen))
