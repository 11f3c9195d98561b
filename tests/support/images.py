"""Folders of small images that can be learned from: the class is a shape, the domain is the ground behind it."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

Layout = dict[str, "dict[str, int] | int"]


def write_folder(
    root: Path, layout: Layout, size: tuple[int, int] = (48, 40), seed: int = 0, suffix: str = ".png"
) -> Path:
    """DOMAIN/CLASS/NUMBER.png for {"camera1": {"bus": 6}}; a number in place of classes is a domain without labels."""
    rng = np.random.default_rng(seed)
    classes = sorted({name for inside in layout.values() if isinstance(inside, dict) for name in inside}) or ["any"]
    for number, (domain, inside) in enumerate(layout.items()):
        counts = inside if isinstance(inside, dict) else {"": inside}
        for label, count in counts.items():
            folder = root / domain / label
            folder.mkdir(parents=True, exist_ok=True)
            for place in range(count):
                shape = classes.index(label) if label else int(rng.integers(len(classes)))
                draw_image(shape, number, size, rng).save(folder / f"{place:03d}{suffix}")
    return root


def draw_image(shape: int, ground: int, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """One of several shapes, in a light colour, somewhere on a dark ground with the domain's tint and noise."""
    width, height = size
    tint = np.array([[90, 20, 20], [20, 90, 20], [20, 20, 90], [70, 70, 10], [10, 70, 70]][ground % 5])
    pixels = tint + rng.normal(0, 6 + 3 * (ground % 4), (height, width, 3))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    side = min(size) // 2
    left, top = int(rng.integers(width - side)), int(rng.integers(height - side))
    box = (left, top, left + side, top + side)
    colour = tuple(int(value) for value in rng.integers(170, 256, 3))
    pen = ImageDraw.Draw(image)
    third = side // 3
    match shape % 5:
        case 0:
            pen.rectangle((left, top + third, left + side, top + 2 * third), fill=colour)
        case 1:
            pen.rectangle((left + third, top, left + 2 * third, top + side), fill=colour)
        case 2:
            pen.ellipse(box, fill=colour)
        case 3:
            pen.rectangle(box, outline=colour, width=max(1, side // 8))
        case _:
            pen.line((left, top, left + side, top + side), fill=colour, width=max(2, side // 4))
    return image


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (16, 12)) -> Path:
    """One image that no other seed gives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)).save(path)
    return path
