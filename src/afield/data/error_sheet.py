"""A sheet of images that were taken for something else, for a person to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from afield.data.contact_sheet import MOST_ROWS, make_tile, sheet_font, shortened
from afield.data.domain import DomainSet

MOST_IMAGES = 200
"""Of more errors the sheet shows the surest ones, equally many of each domain."""
_COLUMNS = 8
_TILE = 96
_CELL = 176, _TILE + 44
_MARGIN = 16
_HEADING = 40
_TEXT_SIZE = 13


@dataclass(frozen=True)
class Mistake:
    """A test image whose class was not predicted."""

    domain: str
    index: int
    """Of the image in its domain's test split."""
    truth: str
    predicted: str
    confidence: float


def shown_mistakes(mistakes: Sequence[Mistake]) -> dict[str, list[Mistake]]:
    """Those that a sheet has room for, by domain, the most confident first: they say most about what went wrong."""
    names = list(dict.fromkeys(mistake.domain for mistake in mistakes))[:MOST_ROWS]
    room = MOST_IMAGES // max(len(names), 1)
    of_domains = {name: [mistake for mistake in mistakes if mistake.domain == name] for name in names}
    return {name: sorted(own, key=lambda one: (-one.confidence, one.index))[:room] for name, own in of_domains.items()}


def error_sheet(data: DomainSet, mistakes: Sequence[Mistake]) -> Image.Image:
    """Domain by domain, each image with its class, and below what was predicted and how surely.

    The data are those that the mistakes were made on.
    """
    shown, large, small = shown_mistakes(mistakes), sheet_font(), sheet_font(_TEXT_SIZE)
    heights = {name: _HEADING + -(-len(own) // _COLUMNS) * _CELL[1] for name, own in shown.items()}
    sheet = Image.new("RGB", (2 * _MARGIN + _COLUMNS * _CELL[0], 2 * _MARGIN + sum(heights.values())), "white")
    pen, top = ImageDraw.Draw(sheet), _MARGIN
    for name, own in shown.items():
        total = sum(mistake.domain == name for mistake in mistakes)
        count = f"{total} errors" if len(own) == total else f"the {len(own)} surest of {total} errors"
        pen.text((_MARGIN, top), f"{shortened(name, large)}: {count}", "black", large)
        for place, mistake in enumerate(own):
            row, column = divmod(place, _COLUMNS)
            left, upper = _MARGIN + column * _CELL[0], top + _HEADING + row * _CELL[1]
            tile = make_tile(data[name].test, mistake.index, _TILE)
            sheet.paste(tile, (left + (_TILE - tile.width) // 2, upper + (_TILE - tile.height) // 2))
            lines = [
                ("true: ", mistake.truth, "", "green"),
                ("predicted: ", mistake.predicted, f" {mistake.confidence:.0%}", "firebrick"),
            ]
            for number, (before, label, after, colour) in enumerate(lines):
                room = _CELL[0] - 8 - round(small.getlength(before + after))
                text = before + shortened(label, small, room) + after
                pen.text((left, upper + _TILE + 4 + 16 * number), text, colour, small)
        top += heights[name]
    return sheet
