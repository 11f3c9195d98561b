"""Any image that Pillow reads, as a square of RGB bytes."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from afield.errors import AfieldError

if TYPE_CHECKING:  # a process that only decodes does without pydantic
    from afield.config.data import Oblong

MOST_PIXELS = 100_000_000
"""A larger image is refused: it may be small on disk and take gigabytes decoded."""

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
Image.MAX_IMAGE_PIXELS = None  # ours is checked in `open_image`, as an error that names the file


class UnreadableImageError(AfieldError):
    """Something that should be an image is not one."""


def read_square(source: str | Path | bytes, side: int, oblong: "Oblong") -> NDArray[np.uint8]:
    """An image file, or its content, as (side, side, 3)."""
    with open_image(source, side) as image:
        return make_square(image, side, oblong)


def open_image(source: str | Path | bytes, least_side: int | None = None) -> Image.Image:
    """The decoded image; whatever is wrong with it, the error names the file.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where both sides stay at least `least_side` long.
    """
    name = "an image" if isinstance(source, bytes) else f"image {source}"
    try:
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise UnreadableImageError(f"{name} has {width} x {height} pixels; at most {MOST_PIXELS:,} are decoded")
        if least_side is not None:
            image.draft("RGB", (least_side, least_side))
        image.load()
    except FileNotFoundError as error:
        raise AfieldError(f"no file {os.fsdecode(source)}") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, TypeError) as error:
        reason = " ".join(str(error).split())
        reason = "" if isinstance(error, UnidentifiedImageError) or not reason else f" ({reason})"
        raise UnreadableImageError(f"cannot read {name}{reason}") from error
    return image


def make_square(image: Image.Image, side: int, oblong: "Oblong") -> NDArray[np.uint8]:
    """Upright, RGB, and `side` pixels high and wide."""
    image = to_rgb(upright(shrunk(image, side)))
    size = (side, side)
    if image.size == size:
        return np.asarray(image)
    if oblong == "crop":
        image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    elif oblong == "pad":
        image = ImageOps.pad(image, size, Image.Resampling.BILINEAR)
    else:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image)


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """A very large image at a whole fraction of its size, so that what follows takes little memory."""
    factor = min(image.size) // (4 * side)
    if factor < 2 or image.mode in ("1", "P", "PA") or image.mode.startswith(("I", "F")):
        return image
    smaller = image.reduce(factor)
    smaller.info = image.info  # which holds EXIF's orientation
    return smaller


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says. Damaged EXIF says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, ZeroDivisionError):
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Eight bits per channel. What is transparent lies on black; more than eight bits are scaled, not cut off."""
    if image.mode == "RGB":
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image, dtype=np.float64)
        top = 1.0 if image.mode == "F" else (65535.0 if values.max(initial=0) > 255 else 255.0)
        return Image.fromarray(np.rint((values / top).clip(0, 1) * 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "black")
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")
