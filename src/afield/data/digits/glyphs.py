"""Numbers drawn from fonts, as masks: 0 where the ground shows, 255 where the ink covers it."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from afield.data.digits.patches import SIDE
from afield.data.digits.sources import ZERO_HEIGHT, font

Mask = NDArray[np.uint8]
Poses = NDArray[np.float64]
_Ink = int | tuple[int, int, int]

_OVERSAMPLING = 3
_STRIP = (300, 110)
_GAP = 0.1 * ZERO_HEIGHT
_LEAST_SPACING = 0.66 * ZERO_HEIGHT


def random_poses(
    count: int, rng: Generator, heights: tuple[float, float], turn: float, shear: float, shift: float
) -> Poses:
    """Random affine maps (count, 6), from a pixel of the image to a place in the strip the number is drawn on.

    `heights` bounds the height of a zero in pixels, `turn` the angle in radians, `shift` the move in pixels.
    """
    # Half angles make the rotation rational: sines differ in their last bit between machines, divisions do not.
    half = rng.uniform(-turn / 2, turn / 2, count)
    cosine, sine = (1 - half**2) / (1 + half**2), 2 * half / (1 + half**2)
    slant = rng.uniform(-shear, shear, count)
    vertical = ZERO_HEIGHT / (_OVERSAMPLING * rng.uniform(*heights, count))
    horizontal = vertical / rng.uniform(0.85, 1.15, count)
    move_x, move_y = rng.uniform(-shift, shift, (2, count))

    across, down = np.stack([cosine - slant * sine, sine + slant * cosine]), np.stack([-sine, cosine])
    middle_x, middle_y = _OVERSAMPLING * (SIDE / 2 + move_x), _OVERSAMPLING * (SIDE / 2 + move_y)
    x_terms, y_terms = across * horizontal, down * vertical
    return np.column_stack([
        x_terms[0], x_terms[1], _STRIP[0] / 2 - x_terms[0] * middle_x - x_terms[1] * middle_y,
        y_terms[0], y_terms[1], _STRIP[1] / 2 - y_terms[0] * middle_x - y_terms[1] * middle_y,
    ])  # fmt: skip


def draw_number(number: str, font_name: str, stroke: int = 0) -> tuple[Image.Image, Image.Image]:
    """Draw three characters on a strip with the middle one at its centre; a space leaves a place empty.

    The second strip holds the plate such a number may be painted on: a rectangle around it.
    """
    strip, plate = Image.new("L", _STRIP), Image.new("L", _STRIP)
    starts, stops = _write(strip, number, font_name, stroke, 255, 255)
    margin = 2 * _GAP
    corners = (min(starts) - margin, 0.1 * _STRIP[1], max(stops) + margin, 0.9 * _STRIP[1])
    ImageDraw.Draw(plate).rectangle(corners, fill=255)
    return strip, plate


def draw_outlined(number: str, font_name: str, stroke: int) -> Image.Image:
    """Draw such a number with an outline: red is the mask of ink and outline together, green that of the ink alone."""
    strip = Image.new("RGB", _STRIP)
    _write(strip, number, font_name, stroke, (255, 255, 0), (255, 0, 0))
    return strip


def _write(
    strip: Image.Image, number: str, font_name: str, stroke: int, ink: _Ink, outline: _Ink
) -> tuple[list[float], list[float]]:
    """Write on a strip; returns where the characters start and where they stop."""
    face = font(font_name)
    boxes = [face.getbbox(character, anchor="ls", stroke_width=stroke) for character in number]
    widths = [right - left for left, _, right, _ in boxes]
    spacing = [max((widths[1] + widths[side]) / 2 + _GAP, _LEAST_SPACING) for side in (0, 2)]
    centres = [_STRIP[0] / 2 - spacing[0], _STRIP[0] / 2, _STRIP[0] / 2 + spacing[1]]
    baseline = (_STRIP[1] - boxes[1][1] - boxes[1][3]) / 2

    pen = ImageDraw.Draw(strip)
    starts, stops = [], []
    for character, centre, width, (left, _, right, _) in zip(number, centres, widths, boxes, strict=True):
        if character != " ":
            place = (centre - (left + right) / 2, baseline)
            pen.text(place, character, ink, face, "ls", stroke_width=stroke, stroke_fill=outline)
            starts.append(centre - width / 2)
            stops.append(centre + width / 2)
    return starts, stops


def pose(strip: Image.Image, coefficients: NDArray[np.float64]) -> Mask:
    """Look at a strip through one of `random_poses`: a mask (32, 32), or several (32, 32, C) from one of colours."""
    side = SIDE * _OVERSAMPLING
    turned = strip.transform((side, side), Image.Transform.AFFINE, coefficients.tolist(), Image.Resampling.BICUBIC)
    return np.asarray(turned.reduce(_OVERSAMPLING))
