"""Which digits go where: halves, train and test, and a random stream of its own for each domain."""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from afield.data.digits import sources
from afield.data.digits.patches import divide
from afield.data.digits.render import enlarge, font_digits, on_photographs, pad
from afield.data.digits.street import street_numbers
from afield.data.images import Labels, Pixels

BUILDER_VERSION = 1
"""Part of the cache file's name: raise it with every change that changes an image."""

CLASSES = tuple("0123456789")
PER_CLASS = {"train": 200, "test": 50}
ORIGINS = {
    "mnist": "real: MNIST digits",
    "photo": "real digits on real photographs: MNIST digits, as the absolute difference with the photograph",
    "uci": "real: UCI optical digits, enlarged from 8 x 8 pixels",
    "fonts": "rendered from matplotlib's fonts",
    "street": "rendered as house numbers from matplotlib's fonts, on walls that are real photographs or paint",
}
"""What the domains are, in their order."""

Indices = NDArray[np.int64]
Parts = dict[str, tuple[Pixels, Labels]]


def build_digits(seed: int) -> dict[str, Pixels | Labels]:
    """Make all domains; the keys are `<domain>/<train or test>/<images or labels>`."""
    streams = random_streams(seed)
    photographs = divide(sources.photographs(sources.PHOTOGRAPHS))
    walls = divide(sources.photographs(sources.PHOTOGRAPHS + sources.TEXTURES))
    digits, labels = sources.mnist_digits()
    plain, blended = halves(labels, streams["halves"])
    uci, uci_labels = sources.uci_digits()

    made: dict[str, Parts] = {}
    made["mnist"] = _split(pad(digits[plain]), labels[plain], streams["mnist"])
    made["photo"] = {
        part: (on_photographs(images, photographs[part], streams["photo"]), part_labels)
        for part, (images, part_labels) in _split(pad(digits[blended]), labels[blended], streams["photo"]).items()
    }
    made["uci"] = _split(enlarge(uci), uci_labels, streams["uci"])
    made["fonts"] = _render(lambda part, wanted: font_digits(wanted, streams["fonts"]), streams["fonts"])
    made["street"] = _render(
        lambda part, wanted: street_numbers(wanted, walls[part], streams["street"]), streams["street"]
    )
    arrays: dict[str, Pixels | Labels] = {}
    for domain, parts in made.items():
        for part, (images, labels) in parts.items():
            arrays |= {f"{domain}/{part}/images": images, f"{domain}/{part}/labels": labels}
    return arrays


def random_streams(seed: int) -> dict[str, Generator]:
    """One stream for each domain and one for the halves, so that a change to one domain leaves the others alone."""
    names = ("halves", *ORIGINS)
    return {name: default_rng(child) for name, child in zip(names, SeedSequence(seed).spawn(len(names)), strict=True)}


def halves(labels: Labels, rng: Generator) -> tuple[Indices, Indices]:
    """Two disjoint halves of MNIST, equal in every class: one for `mnist`, the other for `photo`."""
    return pick_per_class(labels, PER_CLASS["train"] + PER_CLASS["test"], rng)


def pick_per_class(labels: Labels, count: int, rng: Generator) -> tuple[Indices, Indices]:
    """The indices of `count` examples of each class, and all other indices, both in random order."""
    order = rng.permutation(len(labels))
    picked = np.concatenate([order[labels[order] == label][:count] for label in np.unique(labels)])
    return rng.permutation(picked), rng.permutation(np.setdiff1d(order, picked))


def _split(images: Pixels, labels: Labels, rng: Generator) -> Parts:
    test, train = pick_per_class(labels, PER_CLASS["test"], rng)
    return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}


def _render(renderer: Callable[[str, Labels], Pixels], rng: Generator) -> Parts:
    parts: Parts = {}
    for part, count in PER_CLASS.items():
        labels = rng.permutation(np.repeat(np.arange(len(CLASSES), dtype=np.int64), count))
        parts[part] = (renderer(part, labels), labels)
    return parts
