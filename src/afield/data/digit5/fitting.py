"""Digits smaller than 32 x 32 pixels brought to that size, in one of two ways.

`resized`: by bilinear interpolation, as the authors of most methods do (torchvision's Resize): MNIST from 28 x 28, USPS
from 16 x 16. `padded`: MNIST as it is on a black ground, USPS enlarged to MNIST's size before. Version 0.1.0 padded,
and its recorded tables are of such images.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afield.data.digits.patches import SIDE
from afield.data.digits.render import pad
from afield.data.images import Pixels

Fitting = Literal["resized", "padded"]

MNIST_SIDE = 28
FRAME = (SIDE - MNIST_SIDE) // 2
"""Pixels on each side of a padded digit."""


def fit(digits: NDArray[np.uint8], how: Fitting, *, framed: bool = False) -> Pixels:
    """Images (N, 32, 32, 3) from grey digits (N, h, h), or from images that have this size already.

    To be resized, images that are `framed` are cut out of their frame; all others of this size stay as they are.
    """
    if how == "padded":
        return digits if digits.ndim == 4 else padded(digits)
    if digits.ndim == 4:
        return resized(digits[:, FRAME:-FRAME, FRAME:-FRAME], SIDE) if framed else digits
    return np.repeat(resized(digits, SIDE)[..., None], 3, axis=3)


def padded(digits: NDArray[np.uint8]) -> Pixels:
    """Grey digits (N, h, h), made as large as MNIST's where they are smaller, on a black ground (N, 32, 32, 3)."""
    if digits.shape[1] != MNIST_SIDE:
        digits = resized(digits, MNIST_SIDE, Image.Resampling.BICUBIC)
    return pad(digits)


def resized(
    images: NDArray[np.uint8], side: int, by: Image.Resampling = Image.Resampling.BILINEAR
) -> NDArray[np.uint8]:
    """Images (N, h, h) or (N, h, h, 3), each resized by Pillow."""
    return np.stack([np.asarray(Image.fromarray(image).resize((side, side), by)) for image in images])


def has_frame(images: Pixels) -> bool:
    """Whether in all images (N, 32, 32, 3) the outer 2 pixels are black, as where digits of 28 x 28 were padded."""
    edge = [*range(FRAME), *range(-FRAME, 0)]
    return not (images[:, edge].any() or images[:, :, edge].any())
