"""Real digits as 32 x 32 RGB images, and digits rendered from fonts."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from afield.data.digits.glyphs import Mask, draw_number, pose, random_poses
from afield.data.digits.patches import SIDE, crop
from afield.data.digits.sources import FONTS
from afield.data.images import Labels, Pixels

Colours = NDArray[np.float64]

_UCI_SIDE = 26
_LEAST_CONTRAST = 70


def pad(digits: NDArray[np.uint8]) -> Pixels:
    """Grey digits (N, H, W) on a black ground (N, 32, 32, 3)."""
    before = (SIDE - digits.shape[1]) // 2
    after = SIDE - digits.shape[1] - before
    padded = np.pad(digits, ((0, 0), (before, after), (before, after)))
    return np.repeat(padded[..., None], 3, axis=3)


def on_photographs(digits: Pixels, tiles: list[Pixels], rng: Generator) -> Pixels:
    """Blend digits with patches of photographs as MNIST-M does: the absolute difference in each channel."""
    patches = crop(tiles, len(digits), rng)
    return np.where(patches > digits, patches - digits, digits - patches)


def enlarge(digits: NDArray[np.uint8]) -> Pixels:
    """UCI digits (N, 8, 8) with values 0 to 16, as large as MNIST's."""
    grey = np.rint(digits * (255 / 16)).astype(np.uint8)
    size = (_UCI_SIDE, _UCI_SIDE)
    return pad(np.stack([np.asarray(Image.fromarray(digit).resize(size, Image.Resampling.BICUBIC)) for digit in grey]))


def font_digits(labels: Labels, rng: Generator) -> Pixels:
    """Digits from all the fonts in one colour on another, slightly turned, slanted, stretched and moved."""
    count = len(labels)
    faces = rng.integers(len(FONTS), size=count)
    poses = random_poses(count, rng, heights=(17, 27), turn=0.3, shear=0.2, shift=2.5)
    masks = np.stack([
        pose(draw_number(f" {label} ", FONTS[face])[0], coefficients)
        for label, face, coefficients in zip(labels, faces, poses, strict=True)
    ])  # fmt: skip
    ground, ink = readable_colours(count, rng)
    return to_bytes(cover(ground[:, None, None], ink[:, None, None], masks))


def readable_colours(count: int, rng: Generator) -> tuple[Colours, Colours]:
    """Random pairs of colours (count, 3) whose brightness differs enough to read one on the other."""
    pairs = rng.uniform(0, 255, (2, count, 3))
    while (alike := np.abs(brightness(pairs[0]) - brightness(pairs[1])) < _LEAST_CONTRAST).any():
        pairs[:, alike] = rng.uniform(0, 255, (2, int(alike.sum()), 3))
    return pairs[0], pairs[1]


def brightness(colours: Colours) -> NDArray[np.float64]:
    """How bright a colour looks, 0 to 255. Written out: a matrix product rounds differently between machines."""
    return 0.299 * colours[..., 0] + 0.587 * colours[..., 1] + 0.114 * colours[..., 2]


def cover(ground: Colours, ink: Colours, masks: Mask) -> NDArray[np.float64]:
    """Lay ink on a ground (both broadcast to (N, 32, 32, 3)) where the masks (N, 32, 32) say."""
    share = masks[..., None] / 255
    return ground + (ink - ground) * share


def to_bytes(images: NDArray[np.float64]) -> Pixels:
    """Round to uint8; what is too dark or too bright is cut off."""
    return np.rint(np.clip(images, 0, 255)).astype(np.uint8)
