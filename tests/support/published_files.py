"""Small files of published data sets, in the layouts they are published in."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from afield.data.photographs import load_published
from afield.data.photographs.sets import SETS


def write_images(root: Path, names: list[str], seed: int = 0, side: int = 16) -> None:
    """Image files of these names, no two of them equal."""
    rng = np.random.default_rng(seed)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(path)


def write_lists(
    root: Path, images: Path, lists: dict[str, dict[str, int]], domains: tuple[str, ...], first: int = 0
) -> None:
    """Images, and lists of them: {"{domain}_train.txt": {"dog": 3}} is three dogs in every domain's list."""
    classes = sorted({label for counts in lists.values() for label in counts})
    for seed, domain in enumerate(domains):
        for pattern, counts in lists.items():
            word = pattern.split("/")[-1].removeprefix("{domain}_").removesuffix(".txt")
            rows = [
                (f"{domain}/{c}/{word}_{n}.png", classes.index(c) + first) for c in counts for n in range(counts[c])
            ]
            write_images(images, [name for name, _ in rows], seed=[seed, len(word)])
            path = root / pattern.format(domain=domain)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{name} {label}\n" for name, label in rows))


def small(name: str, classes: int, splits: dict[str, int], **changes):
    """A published data set as it would be with so many classes and small images, so many of them in every domain."""
    counts = dict.fromkeys(SETS[name].domains, splits)
    return replace(SETS[name], **{"counts": counts, "classes": classes, "digests": {}, "side": 0} | changes)


def load_small(name: str, classes: int, splits: dict[str, int], **changes):
    """That data set, read from its folder."""
    return load_published(small(name, classes, splits, **changes))
