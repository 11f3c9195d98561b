"""Rotated MNIST: MNIST's digits turned by 0, 15, 30, 45, 60 and 75 degrees, which are the domains `m0` to `m75`.

Two versions that papers of domain generalization report, both of 28 x 28 grey pixels:

- `rotated-mnist` is DomainBed's (Gulrajani, Lopez-Paz: ICLR 2021): all digits are divided among the six domains, so
  that no digit is in two of them, and a fifth of each domain is held out to test on.
- `rotated-mnist-1000` is the older one (Ghifary et al. 2015, then CCSA, MMD-AAE, CrossGrad): 1,000 digits, 100 of each
  class, each of them in every domain. A target is measured on all of its images. So `train` and `test` are the same
  images, and a source's accuracy is one of training.

Digits are turned counter-clockwise about their middle with bilinear interpolation. They are read from MNIST's files in
the folder `digit5` of the folder that the environment variable AFIELD_DATA names (default: `data` in the current
folder), training and test images alike; where there are fewer than the 70,000 published ones, domains are smaller.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afield.data.digit5 import CLASSES
from afield.data.digit5.fitting import FRAME, MNIST_SIDE, resized
from afield.data.digit5.load import digit5_folder, find_format
from afield.data.digit5.published import PUBLISHED
from afield.data.domain import Domain, DomainSet, Split
from afield.data.images import Labels, Pixels
from afield.data.registry import register_data
from afield.errors import AfieldError

ANGLES = (0, 15, 30, 45, 60, 75)
TEST_SHARE = 0.2  # DomainBed's

_SEED = 15
Digits = NDArray[np.uint8]


@register_data("rotated-mnist")
def rotated_mnist() -> DomainSet:
    """All digits, each in one domain."""
    digits, labels = read_mnist()
    order = np.random.default_rng(_SEED).permutation(len(digits))
    domains = {}
    for number, angle in enumerate(ANGLES):
        own = order[number :: len(ANGLES)]
        images = rotated(digits[own], angle)
        held_out = round(TEST_SHARE * len(own))
        train, test = (
            Split.of_array(images[part], labels[own][part]) for part in (slice(held_out, None), slice(held_out))
        )
        domains[f"m{angle}"] = Domain(f"m{angle}", train, test, _origin(angle))
    return DomainSet("rotated-mnist", CLASSES, domains, preset="rotated-mnist")


@register_data("rotated-mnist-1000")
def rotated_mnist_1000(per_class: int = 100) -> DomainSet:
    """So many digits of each class, the same in every domain."""
    digits, labels = read_mnist()
    order = np.random.default_rng(_SEED).permutation(len(digits))
    chosen = np.concatenate([order[labels[order] == label][:per_class] for label in range(len(CLASSES))])
    if len(chosen) < per_class * len(CLASSES):
        fewest = int(np.bincount(labels, minlength=len(CLASSES)).argmin())
        raise AfieldError(
            f"rotated-mnist-1000 needs {per_class} images of every digit, and MNIST in {digit5_folder()} has "
            f"{int((labels == fewest).sum())} of {fewest}"
        )
    domains = {}
    for angle in ANGLES:
        split = Split.of_array(rotated(digits[chosen], angle), labels[chosen])
        domains[f"m{angle}"] = Domain(f"m{angle}", split, split, _origin(angle))
    notes = ("a domain's test images are its training images: a source's accuracy is one of training",)
    return DomainSet("rotated-mnist-1000", CLASSES, domains, preset="rotated-mnist-1000", notes=notes)


def read_mnist() -> tuple[Digits, Labels]:
    """All of MNIST's digits that are there, (N, 28, 28), and their labels: the training images come first."""
    folder, published = digit5_folder(), PUBLISHED["mt"]
    format = find_format(published, folder)
    if format is None:
        raise AfieldError(f"missing in {folder}: {published.title} ({published.wanted}; {published.where})")
    parts = [format.read(part, [folder / file for file in files]) for part, files in format.files.items()]
    framed = all(part.framed for part in parts)
    digits = [as_digits(part.pick(np.arange(part.count)), framed=framed) for part in parts]
    return np.concatenate(digits), np.concatenate([part.labels for part in parts])


def as_digits(images: Digits, *, framed: bool) -> Digits:
    """Grey digits (N, 28, 28) from images in that shape, or from (N, 32, 32, 3), cut out of their frame or shrunk."""
    if images.ndim == 3:
        return images
    return images[:, FRAME:-FRAME, FRAME:-FRAME, 0] if framed else resized(images[..., 0], MNIST_SIDE)


def rotated(digits: Digits, angle: float) -> Pixels:
    """Grey digits (N, 28, 28) as images (N, 28, 28, 3), turned counter-clockwise by an angle in degrees."""
    turned = [np.asarray(Image.fromarray(digit).rotate(angle, Image.Resampling.BILINEAR)) for digit in digits]
    return np.repeat(np.stack(turned)[..., None], 3, axis=3)


def _origin(angle: int) -> str:
    return f"real: MNIST, turned by {angle} degrees"
