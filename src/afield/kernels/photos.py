"""The kernels of `data/augmentation.py`: photographs are changed in two passes over the bytes of a batch.

A pool has images of H x W pixels, three bytes each. Each image of a batch has a row of `table`: width, height and place
of the part that is cut out, as in `resized_part`, then a 3 x 3 matrix of colours, and what is added of the mean
luminance.
"""

import triton
import triton.language as tl

ROW = tl.constexpr(14)
"""Numbers per image in `table`."""


@triton.jit
def _source(place, extent, middle, SIDE: tl.constexpr):
    """Between which two rows or columns of the image an output's place lies, and how near to the second."""
    centre = extent * ((2 * place + 1) / SIDE - 1.0) + middle
    found = tl.minimum(tl.maximum(((centre + 1.0) * SIDE - 1.0) * 0.5, 0.0), SIDE - 1.0)
    first = found.to(tl.int32)  # not negative, so that this is rounding down
    return first, tl.minimum(first + 1, SIDE - 1), found - first


@triton.jit
def _value(image, top, bottom, left, right, down, across, channel, inside, W: tl.constexpr):
    """One channel between four pixels, in 0..1."""
    a = tl.load(image + (top * W + left) * 3 + channel, mask=inside, other=0).to(tl.float32)
    b = tl.load(image + (top * W + right) * 3 + channel, mask=inside, other=0).to(tl.float32)
    c = tl.load(image + (bottom * W + left) * 3 + channel, mask=inside, other=0).to(tl.float32)
    d = tl.load(image + (bottom * W + right) * 3 + channel, mask=inside, other=0).to(tl.float32)
    upper, lower = a + (b - a) * across, c + (d - c) * across
    return (upper + (lower - upper) * down) / 255.0


@triton.jit
def _colours(pool, picks, row, number, pixel, inside, H: tl.constexpr, W: tl.constexpr):
    """The colours of pixels of the part that is cut out of an image."""
    image = pool + tl.load(picks + number) * (H * W * 3)
    left, right, across = _source(pixel % W, tl.load(row), tl.load(row + 2), W)
    top, bottom, down = _source(pixel // W, tl.load(row + 1), tl.load(row + 3), H)
    red = _value(image, top, bottom, left, right, down, across, 0, inside, W)
    green = _value(image, top, bottom, left, right, down, across, 1, inside, W)
    blue = _value(image, top, bottom, left, right, down, across, 2, inside, W)
    return red, green, blue


@triton.jit
def luminances(
    pool, picks, table, luminance, sums, H: tl.constexpr, W: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):
    """The sum of a tile's luminance."""
    number, tile = tl.program_id(0), tl.program_id(1)
    pixel = tile * TILE + tl.arange(0, TILE)
    inside = pixel < H * W
    red, green, blue = _colours(pool, picks, table + number * ROW, number, pixel, inside, H, W)
    light = red * tl.load(luminance) + green * tl.load(luminance + 1) + blue * tl.load(luminance + 2)
    tl.store(sums + number * TILES + tile, tl.sum(tl.where(inside, light, 0.0), 0))


@triton.jit
def _mixed(row, red, green, blue, added, to, pixel, inside):
    value = tl.load(row) * red + tl.load(row + 1) * green + tl.load(row + 2) * blue + added
    tl.store(to + pixel * 3, tl.minimum(tl.maximum(value, 0.0), 1.0), mask=inside)


@triton.jit
def change(
    pool, picks, table, sums, out,
    H: tl.constexpr, W: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, ALL_TILES: tl.constexpr,
):  # fmt: skip
    """The changed images, (N, H, W, 3)."""
    number, every = tl.program_id(0), tl.arange(0, ALL_TILES)
    pixel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside, row = pixel < H * W, table + number * ROW
    light = tl.sum(tl.load(sums + number * TILES + every, mask=every < TILES, other=0.0), 0) / (H * W)
    red, green, blue = _colours(pool, picks, row, number, pixel, inside, H, W)
    added, to = tl.load(row + 13) * light, out + number.to(tl.int64) * (H * W * 3)
    _mixed(row + 4, red, green, blue, added, to, pixel, inside)
    _mixed(row + 7, red, green, blue, added, to + 1, pixel, inside)
    _mixed(row + 10, red, green, blue, added, to + 2, pixel, inside)
