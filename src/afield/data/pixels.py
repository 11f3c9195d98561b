"""Any image that Pillow reads, as a square of RGB bytes."""

import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from afield.errors import AfieldError
from afield.files import check_regular

if TYPE_CHECKING:  # a process that only decodes does without pydantic
    from afield.config.data import Oblong

PIXELS_VERSION = 2
"""Raise it with every change that changes the pixels of an image: packed caches are kept under it."""

MOST_PIXELS = 100_000_000
"""A larger image is refused: it may be small on disk and take gigabytes decoded."""
PIXELS_AT_A_TIME = 4_000_000
"""How many are converted to RGB at a time: a conversion may take tens of bytes per pixel."""

ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SAY_ORIENTATION = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
"""Where a turned image would still say that it is to be turned."""
IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".tga"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
OTHER_SUFFIXES = frozenset(
    {".heic", ".heif", ".hif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"}
)
"""Of photographs in formats that Pillow does not read: those of telephones, and what sensors have measured."""
Image.MAX_IMAGE_PIXELS = None  # ours is checked in `load_image`, as an error that names the file
# What Pillow's readers raise on damaged files; MemoryError is not the file's doing.
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, TypeError, IndexError, KeyError, struct.error, zlib.error)


class UnreadableImageError(AfieldError):
    """Something that should be an image is not one."""


def read_square(source: str | Path | bytes, side: int, oblong: "Oblong") -> NDArray[np.uint8]:
    """An image file, or its content, as (side, side, 3)."""
    # What is decoded at just the size that is needed differs by several grey levels from the whole image made smaller.
    with open_image(source, 2 * side) as image:
        try:
            return make_square(image, side, oblong)
        except UnreadableImageError as error:
            raise UnreadableImageError(f"cannot read {_name(source)}: {error}") from error


def open_image(source: str | Path | bytes, least_side: int | None = None) -> Image.Image:
    """The decoded image; whatever is wrong with it, the error names the file.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where both sides stay at least `least_side` long.
    """
    name = _name(source)
    if not isinstance(source, bytes):
        check_regular(Path(source))
    try:
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except FileNotFoundError as error:
        raise UnreadableImageError(f"no file {name.removeprefix('image ')}") from error
    except DAMAGE as error:
        raise _unreadable(name, error) from error
    load_image(image, name, least_side)
    return image


def load_image(image: Image.Image, name: str = "an image", least_side: int | None = None) -> None:
    """Decode an opened image, unless it is too large to be decoded, or damaged."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise UnreadableImageError(f"{name} has {width} x {height} pixels; at most {MOST_PIXELS:,} are decoded")
    try:
        if least_side is not None:
            image.draft("RGB", (least_side, least_side))
        image.load()
    except DAMAGE as error:
        raise _unreadable(name, error) from error


def _name(source: str | Path | bytes) -> str:
    return "an image" if isinstance(source, bytes) else f"image {source}"


def _unreadable(name: str, error: Exception) -> UnreadableImageError:
    reason = " ".join(str(error).split())
    reason = "" if isinstance(error, UnidentifiedImageError) or not reason else f" ({reason})"
    return UnreadableImageError(f"cannot read {name}{reason}")


def make_square(image: Image.Image, side: int, oblong: "Oblong") -> NDArray[np.uint8]:
    """Upright, RGB, and `side` pixels high and wide."""
    image = upright(shrunk(image, side, oblong))
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


def shrunk(image: Image.Image, side: int, oblong: "Oblong") -> Image.Image:
    """In RGB, and a very large image at a whole fraction of its size, so that what follows takes little memory.

    At least four times as large as it is to be, on each side that counts: an oblong image that is cropped by its
    shorter one, one that is padded by its longer one, and one that is squashed by both.
    """
    info, top = image.info, brightest(image)  # before the image is cropped, which changes neither
    if oblong == "crop":
        image = _middle(image)
    width, height = image.size
    sides = {"crop": (min(image.size),) * 2, "pad": (max(image.size),) * 2, "squash": image.size}[oblong]
    across, down = factors = max(1, sides[0] // (4 * side)), max(1, sides[1] // (4 * side))
    rows = max(1, PIXELS_AT_A_TIME // (width * down)) * down
    if image.mode in ("RGB", "L"):
        result = to_rgb(image.reduce(factors) if factors != (1, 1) else image)
    elif factors == (1, 1) and rows >= height:
        result = to_rgb(image, top)
    else:
        result = Image.new("RGB", (-(-width // across), -(-height // down)))
        for start in range(0, height, rows):
            strip = to_rgb(image.crop((0, start, width, min(start + rows, height))), top)
            result.paste(strip.reduce(factors) if factors != (1, 1) else strip, (0, start // down))
    result.info = info  # which holds EXIF's orientation
    return result


def _middle(image: Image.Image) -> Image.Image:
    """What cropping to a square leaves, or one pixel more, about the same middle."""
    width, height = image.size
    left, upper = max(0, width - height) // 2, max(0, height - width) // 2
    return image.crop((left, upper, width - left, height - upper)) if left or upper else image


def orientation(image: Image.Image) -> int:
    """EXIF's: 1 is upright. Damaged EXIF says nothing."""
    try:
        found = image.getexif().get(ORIENTATION)
    except DAMAGE:
        return 1
    return found if found in TURNS else 1


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says."""
    # Not by ImageOps.exif_transpose: it also writes EXIF anew, which fails on tags that many cameras get wrong.
    found = orientation(image)
    if found == 1:
        return image
    turned = image.transpose(TURNS[found])
    turned.info = {name: value for name, value in turned.info.items() if name not in SAY_ORIENTATION}
    return turned


def brightest(image: Image.Image) -> float:
    """The value that is white, in an image of more than eight bits: 1 of fractions, else by what there is."""
    if image.mode == "F":
        least, most = np.ravel(image.getextrema())
        if not (least >= 0 and most <= 1):
            raise UnreadableImageError(f"float images hold values in 0..1, not {least:g}..{most:g}")
        return 1.0
    if image.mode.startswith("I"):
        # Of sixteen bits with the high byte first, as ImageJ writes them, Pillow finds no extremes.
        most = np.max(np.asarray(image) if image.mode == "I;16B" else image.getextrema())
        return 65535.0 if most > 255 else 255.0
    return 255.0


def to_rgb(image: Image.Image, top: float | None = None) -> Image.Image:
    """Eight bits per channel. What is transparent lies on black; more than eight bits are scaled, not cut off."""
    if image.mode == "RGB":
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image, dtype=np.float32) * (255 / (top or brightest(image)))
        return Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "black")
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")
