"""Small pictures: images and activation maps as what a page can hold."""

import base64
import io

import numpy as np
from PIL import Image

from afield.analysis.features import Floats
from afield.data.images import Pixels

HEAT_SHARE = 0.65


def as_uri(pixels: Pixels, side: int) -> str:
    """An image (h, w, 3) as a JPEG of at most that side, in a text that stands for its address."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    held = io.BytesIO()
    image.save(held, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(held.getvalue()).decode()}"


def heated(pixels: Pixels, activation: Floats, largest: float, side: int) -> Pixels:
    """An activation map as colours over the image's greys; `largest` is the brightest colour."""
    from matplotlib import colormaps

    grey = Image.fromarray(pixels).convert("L").resize((side, side), Image.Resampling.BICUBIC)
    values = Image.fromarray((activation / max(largest, 1e-12)).astype(np.float32))
    smooth = np.asarray(values.resize((side, side), Image.Resampling.BICUBIC)).clip(0, 1)
    heat = np.asarray(colormaps["inferno"](smooth))[..., :3] * 255
    mixed = HEAT_SHARE * heat + (1 - HEAT_SHARE) * np.asarray(grey, float)[..., None]
    return mixed.clip(0, 255).astype(np.uint8)
