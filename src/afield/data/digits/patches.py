"""Random 32 x 32 patches of photographs."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from afield.data.images import Pixels

SIDE = 32
"""Height and width of every image of the data set."""

_TILES = 4
_LEAST_SPREAD = 6


def divide(photographs: list[Pixels]) -> dict[str, list[Pixels]]:
    """Cut every photograph into 4 x 4 tiles, those on the diagonal for test: no pixel serves both train and test."""
    parts: dict[str, list[Pixels]] = {"train": [], "test": []}
    for photograph in photographs:
        for row, band in enumerate(np.array_split(photograph, _TILES, axis=0)):
            for column, tile in enumerate(np.array_split(band, _TILES, axis=1)):
                # Half size as well: at full size alone, most patches would show little but one colour.
                parts["test" if row == column else "train"] += [tile, np.asarray(Image.fromarray(tile).reduce(2))]
    return parts


def crop(tiles: list[Pixels], count: int, rng: Generator) -> Pixels:
    """Random patches (count, 32, 32, 3) that show something: those of a single colour are drawn again."""
    patches = _crop_any(tiles, count, rng)
    while (flat := spread(patches) < _LEAST_SPREAD).any():
        patches[flat] = _crop_any(tiles, int(flat.sum()), rng)
    return patches


def spread(patches: Pixels) -> NDArray[np.float64]:
    """Standard deviation over the pixels of each patch, taken within the channels.

    Sums of integers are exact, so a comparison with this number comes out the same on every machine.
    """
    values = patches.astype(np.int64)
    pixels = values.shape[1] * values.shape[2]
    scaled = pixels * (values**2).sum(axis=(1, 2)) - values.sum(axis=(1, 2)) ** 2
    deviations: NDArray[np.float64] = np.sqrt(scaled.sum(axis=1) / 3) / pixels
    return deviations


def _crop_any(tiles: list[Pixels], count: int, rng: Generator) -> Pixels:
    which = rng.integers(len(tiles), size=count)
    corners = rng.random((count, 2))
    patches = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for patch, index, corner in zip(patches, which, corners, strict=True):
        tile = tiles[index]
        top, left = (corner * (np.array(tile.shape[:2]) - SIDE + 1)).astype(int)
        patch[:] = tile[top : top + SIDE, left : left + SIDE]
    return patches
