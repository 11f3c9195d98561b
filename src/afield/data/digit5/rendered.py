"""Digits that afield renders from fonts, to stand in for SYN where its images are not there.

They follow the recipe SYN was published with: numbers of one to three digits in many fonts, with varied places,
orientations, colours of ground, ink and outline, and amounts of blur. They are not SYN's images.
"""

import sys
from collections.abc import Mapping

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from afield.data.cache import load_or_build
from afield.data.digits.glyphs import Mask, draw_outlined, pose, random_poses
from afield.data.digits.patches import SIDE
from afield.data.digits.render import Colours, brightness, cover, readable_colours, to_bytes
from afield.data.digits.sources import FONTS
from afield.data.digits.street import blur
from afield.data.domain import Split
from afield.data.images import Labels, Pixels

RENDERER_VERSION = 1
"""Part of the cache file's name: raise it with every change that changes an image."""

_SEED = 5
_CHUNK = 500
_NEIGHBOUR_SHARE = 0.5
_OUTLINE_SHARE = 0.5
_TWO_TONE_SHARE = 0.6


def rendered_digits(sizes: Mapping[str, int]) -> dict[str, Split]:
    """So many digits for each part, from the cache or rendered there; the same sizes give the same bits."""
    key = "-".join([f"digit5-syn-v{RENDERER_VERSION}", *map(str, sizes.values())])
    arrays = load_or_build(key, lambda: _render_parts(sizes), "about a minute", compress=True)
    return {part: Split.of_array(arrays[f"{part}/images"], arrays[f"{part}/labels"]) for part in sizes}


def _render_parts(sizes: Mapping[str, int]) -> dict[str, NDArray[np.uint8] | Labels]:
    arrays: dict[str, NDArray[np.uint8] | Labels] = {}
    for number, (part, count) in enumerate(sizes.items()):
        labels = default_rng([_SEED, number]).permutation(np.arange(count, dtype=np.int64) % 10)
        chunks = range(0, count, _CHUNK)
        console = Console(stderr=True)
        shown = track(chunks, f"rendering {part}", console=console, transient=True, disable=not sys.stderr.isatty())
        images = [render(labels[at : at + _CHUNK], default_rng([_SEED, number, at])) for at in shown]
        arrays |= {f"{part}/images": np.concatenate(images), f"{part}/labels": labels}
    return arrays


def render(labels: Labels, rng: Generator) -> Pixels:
    """One image for each label, which is the digit in the middle."""
    outlined, inked = _masks(labels, rng)
    ground, ink = readable_colours(len(labels), rng)
    outline = rng.uniform(0, 255, ground.shape)
    scene = cover(_grounds(ground, rng), outline[:, None, None], outlined)
    scene = cover(scene, ink[:, None, None], inked)
    return to_bytes(blur(scene, rng, passes=3))


def _masks(labels: Labels, rng: Generator) -> tuple[Mask, Mask]:
    """Where ink and outline cover the ground, and where the ink does."""
    count = len(labels)
    faces = rng.integers(len(FONTS), size=count)
    strokes = np.where(rng.random(count) < _OUTLINE_SHARE, rng.integers(3, 9, size=count), 0)
    neighbours = np.where(rng.random((count, 2)) < _NEIGHBOUR_SHARE, rng.integers(0, 10, (count, 2)), -1)
    poses = random_poses(count, rng, heights=(16, 27), turn=0.4, shear=0.25, shift=3)
    masks = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for index, label in enumerate(labels):
        left, right = (" " if digit < 0 else str(digit) for digit in neighbours[index])
        strip = draw_outlined(f"{left}{label}{right}", FONTS[faces[index]], int(strokes[index]))
        masks[index] = pose(strip, poses[index])
    return masks[..., 0], masks[..., 1]


def _grounds(colours: Colours, rng: Generator) -> NDArray[np.float64]:
    """Grounds of one colour, and grounds that change to a second one in a soft slope or at an edge."""
    count = len(colours)
    tint = rng.uniform(-110, 110, colours.shape)
    # With a little of its own brightness only, a tint changes the colour but hardly the contrast.
    tint = np.where(rng.random((count, 1)) < _TWO_TONE_SHARE, tint - 0.75 * brightness(tint)[:, None], 0)
    across = np.linspace(-1, 1, SIDE)
    edge = rng.uniform(0.2, 2, (count, 1, 1))
    steepness = edge * edge * edge  # as products: a power may differ in its last bit between machines
    along_x, along_y, level = rng.uniform(-1, 1, (3, count, 1, 1))
    slope: NDArray[np.float64] = np.clip(
        steepness * (along_x * across + along_y * across[:, None] + 0.6 * level), -1, 1
    )
    return colours[:, None, None] + tint[:, None, None] * slope[..., None]
