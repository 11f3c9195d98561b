"""House numbers: a digit between its neighbours on a wall or a plate, in uneven light, blurred and noisy."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from afield.data.digits.glyphs import Mask, draw_number, pose, random_poses
from afield.data.digits.patches import SIDE, crop, spread
from afield.data.digits.render import Colours, brightness, cover, to_bytes
from afield.data.digits.sources import STURDY_FONTS
from afield.data.images import Labels, Pixels

Scene = NDArray[np.float64]

_NEIGHBOUR_SHARE = 0.75
_PLATE_SHARE = 0.3
_SHADOW_SHARE = 0.5
_MOST_TEXTURE = 22
_WARM = np.array([1.0, 0.1, -1.0])


def street_numbers(labels: Labels, walls: list[Pixels], rng: Generator) -> Pixels:
    """Render one house number for each label, which is the digit in the middle."""
    count = len(labels)
    digits, plates = _masks(labels, rng)
    wall, wall_colour = _walls(count, walls, rng)
    has_plate = rng.random(count) < _PLATE_SHARE
    plate_colour = _muted_colours(count, rng)
    ink = _ink_for(np.where(has_plate[:, None], plate_colour, wall_colour), rng)

    scene = cover(wall, plate_colour[:, None, None], plates * has_plate[:, None, None])
    scene = _cast_shadow(scene, digits, rng)
    scene = cover(scene, ink[:, None, None], digits)
    scene = blur(scene * _light(count, rng), rng, passes=2)
    return to_bytes(scene + _each(rng.uniform(1, 8, count)) * rng.standard_normal(scene.shape))


def _each(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """One value per image, shaped to multiply images (N, 32, 32, 3)."""
    return values[:, None, None, None]


def _masks(labels: Labels, rng: Generator) -> tuple[Mask, Mask]:
    count = len(labels)
    faces = rng.integers(len(STURDY_FONTS), size=count)
    strokes = rng.integers(0, 4, size=count)
    neighbours = np.where(rng.random((count, 2)) < _NEIGHBOUR_SHARE, rng.integers(0, 10, (count, 2)), -1)
    poses = random_poses(count, rng, heights=(19, 26), turn=0.16, shear=0.15, shift=1.5)
    masks = np.empty((2, count, SIDE, SIDE), np.uint8)
    for index, label in enumerate(labels):
        left, right = (" " if digit < 0 else str(digit) for digit in neighbours[index])
        strips = draw_number(f"{left}{label}{right}", STURDY_FONTS[faces[index]], int(strokes[index]))
        masks[:, index] = [pose(strip, poses[index]) for strip in strips]
    return masks[0], masks[1]


def _walls(count: int, tiles: list[Pixels], rng: Generator) -> tuple[Scene, Colours]:
    """Patches of photographs faded towards a paint, from plain paint to a texture that still lets a digit be read."""
    colours = _muted_colours(count, rng)
    patches = crop(tiles, count, rng)
    texture = patches - patches.mean(axis=(1, 2), keepdims=True)
    contrast = np.minimum(rng.uniform(0, 0.8, count), _MOST_TEXTURE / spread(patches))
    return colours[:, None, None] + texture * _each(contrast), colours


def _muted_colours(count: int, rng: Generator) -> Colours:
    """Colours of walls and plates: a grey, warmer or cooler, that is seldom quite neutral."""
    grey, warmth = rng.uniform(40, 220, (count, 1)), rng.uniform(-25, 32, (count, 1))
    colours: Colours = np.clip(grey + warmth * _WARM + rng.uniform(-9, 9, (count, 3)), 10, 245)
    return colours


def _ink_for(grounds: Colours, rng: Generator) -> Colours:
    """A colour that is clearly brighter or darker than its ground: whichever leaves room, or either by chance."""
    level = brightness(grounds)
    distance = rng.uniform(70, 150, len(grounds))
    brighter = np.where(level < 90, True, np.where(level > 165, False, rng.random(len(grounds)) < 0.5))
    target = np.clip(level + np.where(brighter, distance, -distance), 5, 250)
    tint = rng.uniform(-30, 30, (len(grounds), 3))
    # Without its own brightness a tint changes the colour but not the contrast.
    return target[:, None] + tint - brightness(tint)[:, None]


def _cast_shadow(scene: Scene, digits: Mask, rng: Generator) -> Scene:
    """Darken the ground beside and below the strokes, as under numbers that stand off the wall."""
    count = len(digits)
    strength = np.where(rng.random(count) < _SHADOW_SHARE, rng.uniform(0.2, 0.6, count), 0)
    from_left = rng.random(count) < 0.5
    framed = np.pad(digits, ((0, 0), (1, 0), (1, 1)), mode="edge")[:, :SIDE]
    shadow = np.where(from_left[:, None, None], framed[:, :, :SIDE], framed[:, :, 2:]) / 255
    return scene * (1 - shadow[..., None] * _each(strength))


def _light(count: int, rng: Generator) -> Scene:
    """Brightness over the image: a gain, a slope across it and, in some, the soft edge of a large shadow."""
    across = np.linspace(-1, 1, SIDE)[:, None]
    down = across[:, None]

    def sloped(steepness: float) -> Scene:
        along_x, along_y = rng.uniform(-steepness, steepness, (2, count))
        return _each(along_x) * across + _each(along_y) * down

    edge = np.clip(sloped(3) + _each(rng.uniform(-1, 1, count)), 0, 1)
    depth = np.where(rng.random(count) < 0.35, rng.uniform(0.15, 0.4, count), 0)
    light: Scene = _each(rng.uniform(0.75, 1.15, count)) * (1 + sloped(0.22)) * (1 - edge * _each(depth))
    return light


def blur(scene: Scene, rng: Generator, passes: int) -> Scene:
    """Blur each image by its own amount: a kernel of three pixels, so many times in each direction."""
    side = _each(rng.uniform(0, 0.27, len(scene)))
    for _ in range(2 * passes):
        framed = np.pad(scene, ((0, 0), (1, 1), (0, 0), (0, 0)), mode="edge")
        scene = scene * (1 - 2 * side) + (framed[:, :-2] + framed[:, 2:]) * side
        scene = scene.swapaxes(1, 2)  # the next pass goes in the other direction
    return scene
