"""Digit-Five as the authors of M3SDA published it (Peng et al., ICCV 2019): six MATLAB files, and their splits.

`digit5-m3sda` differs from `digit5` in the images: MNIST and MNIST-M without the 5,000 that others validate on, USPS
divided anew and at 28 x 28 pixels, SYN as 25,000 and 9,000 images. As in the authors' loaders, 25,000 training images
of a domain are drawn at random (here always the same), of SVHN the first 25,000, and the first 9,000 test images are
taken. They repeat USPS, which has fewer; here a batch has as many images of each domain anyway, so that it is taken
once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afield.data.digit5 import CLASSES
from afield.data.digit5.fitting import fit, resized
from afield.data.digit5.formats import checked_labels, load_mat, naming
from afield.data.digit5.load import SIZES, digit5_folder, draw
from afield.data.digit5.others import M3SDA_FILES, m3sda_folder
from afield.data.digits.patches import SIDE
from afield.data.domain import Domain, DomainSet, Split
from afield.data.images import Pixels
from afield.data.registry import register_data
from afield.errors import AfieldError

LAYOUT = f"the folder digit5/Digit-Five or digit5 in AFIELD_DATA (default: data), which holds {', '.join(M3SDA_FILES)}"
PAGE = "the folder M3SDA/code_MSDA_digit of https://github.com/VisionLearningGroup/VisionLearningGroup.github.io"

Read = Callable[[Path, str], tuple[NDArray[Any], NDArray[Any]]]
"""From a file and a part, `train` or `test`, to images and labels as they are there."""


@dataclass(frozen=True)
class MatDomain:
    """One domain: its files, how they are read, and how many images they have."""

    origin: str
    files: Mapping[str, str]
    read: Read
    counts: Mapping[str, int]
    drawn: bool = True
    """Whether training images are drawn at random; otherwise the first are taken."""


def _variables(path: Path, *names: str) -> list[NDArray[Any]]:
    content = load_mat(path, *names)
    missing = [name for name in names if name not in content]
    if missing:
        raise ValueError(f"it has no {' and no '.join(missing)}")
    return [content[name] for name in names]


def _read_mnist(path: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = _variables(path, f"{part}_32", f"label_{part}")
    return images.reshape(len(images), SIDE, SIDE), labels.argmax(axis=1)


def _read_mnist_m(path: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = _variables(path, part, f"label_{part}")
    return images, labels.argmax(axis=1)


def _read_usps(path: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    (cells,) = _variables(path, "dataset")
    images, labels = cells[0 if part == "train" else 1]
    # From 0 to 1, where all other files have bytes.
    return np.floor(np.asarray(images[:, 0], np.float64) * 255 + 0.5), labels.ravel()


def _read_svhn(path: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = _variables(path, "X", "y")
    return np.moveaxis(images, -1, 0), labels.ravel() % 10  # 10 stands for the digit 0


def _read_syn(path: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = _variables(path, f"{part}_data", f"{part}_label")
    return images, labels.ravel()


def _in_one(name: str) -> dict[str, str]:
    return {"train": name, "test": name}


DOMAINS = {
    "mm": MatDomain(
        "real: MNIST digits blended with photographs (MNIST-M), resized from 28 x 28 to 32 x 32 pixels",
        _in_one("mnistm_with_label.mat"), _read_mnist_m, {"train": 55_000, "test": 10_000},
    ),
    "mt": MatDomain(
        "real: MNIST, stored at 32 x 32 pixels", _in_one("mnist_data.mat"), _read_mnist,
        {"train": 55_000, "test": 10_000},
    ),
    "up": MatDomain(
        "real: USPS, resized from 28 x 28 to 32 x 32 pixels", _in_one("usps_28x28.mat"), _read_usps,
        {"train": 7_438, "test": 1_860},
    ),
    "sv": MatDomain(
        "real: SVHN, cropped house numbers", {part: f"svhn_{part}_32x32.mat" for part in SIZES}, _read_svhn,
        {"train": 73_257, "test": 26_032}, drawn=False,
    ),
    "syn": MatDomain(
        "rendered: SYN as published with DANN", _in_one("syn_number.mat"), _read_syn, {"train": 25_000, "test": 9_000}
    ),
}  # fmt: skip
"""By name, in the order of `digit5`."""


@register_data("digit5-m3sda")
def digit5_m3sda(sizes: Mapping[str, int] = SIZES, domains: Mapping[str, MatDomain] = DOMAINS) -> DomainSet:
    """All five domains, each drawn down to these sizes."""
    folder = m3sda_folder(digit5_folder())
    files = sorted({file for domain in domains.values() for file in domain.files.values()})
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise AfieldError(f"missing in {folder}: {', '.join(missing)}; digit5-m3sda is read from {LAYOUT}; see {PAGE}")
    made = {}
    for name, domain in domains.items():
        splits = {part: _split(folder / domain.files[part], part, name, domain, size) for part, size in sizes.items()}
        made[name] = Domain(name, splits["train"], splits["test"], domain.origin)
    return DomainSet("digit5-m3sda", CLASSES, made, preset="digit5")


def _split(path: Path, part: str, name: str, domain: MatDomain, size: int) -> Split:
    try:
        with naming(path):
            images, labels = domain.read(path, part)
            if len(images) != domain.counts[part]:
                raise ValueError(f"{part} has {len(images):,} images, and {domain.counts[part]:,} were published")
            drawn = domain.drawn and part == "train"
            chosen = draw(len(images), size, f"m3sda/{name}/{part}") if drawn else np.arange(min(size, len(images)))
            labels = checked_labels(labels, len(images), 0, 9)
            return Split.of_array(_fitted(images[chosen]), labels[chosen])
    except AfieldError as error:
        raise AfieldError(f"{error}; remove it and get it again: see {PAGE}") from error


def _fitted(images: NDArray[Any]) -> Pixels:
    """Images (N, 32, 32, 3) from grey or coloured ones of 28 x 28 or 32 x 32, with values from 0 to 255."""
    if (
        images.ndim not in (3, 4)
        or images.shape[1:3] not in ((28, 28), (SIDE, SIDE))
        or images.shape[3:] not in ((), (3,))
    ):
        raise ValueError(f"images must be (N, 28, 28) or (N, 32, 32), grey or coloured, not {images.shape}")
    if not ((images >= 0) & (images <= 255)).all():
        raise ValueError("images must have values from 0 to 255")
    pixels = np.ascontiguousarray(images.astype(np.uint8))
    if pixels.ndim == 3:
        return fit(pixels, "resized")
    return pixels if pixels.shape[1] == SIDE else resized(pixels, SIDE)
