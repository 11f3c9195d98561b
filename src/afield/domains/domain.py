"""What a domain is: a name, a labelled train split, a labelled test split, and where they come from."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from afield.errors import unknown

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Images (N, H, W, 3) as uint8 and one class index for each."""

    images: Images
    labels: Labels

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] != 3 or self.images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 (N, H, W, 3), not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != np.int64:
            raise ValueError(f"labels must be int64 ({len(self.images)},), not {self.labels.dtype} {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Domain:
    """One way of taking pictures of the same classes."""

    name: str
    train: Split
    test: Split
    origin: str
    """'real' or 'rendered', and from what."""
    stand_in: bool = False
    """Rendered by afield in place of published images that were not there."""


@dataclass(frozen=True)
class Augmentation:
    """What may be done to a training image of this data without changing its class."""

    shift: int = 0
    """Largest shift in pixels: the image is padded by as much and cropped at random."""
    flip: bool = False
    """Mirror left and right. Never for digits: a mirrored 2 is not a 2."""


@dataclass(frozen=True)
class DomainSet:
    """Several domains that share their classes."""

    name: str
    classes: tuple[str, ...]
    domains: dict[str, Domain]
    augmentation: Augmentation

    def __getitem__(self, name: str) -> Domain:
        if name not in self.domains:
            raise unknown("domain", name, self.domains)
        return self.domains[name]

    @property
    def image_size(self) -> int:
        """Height and width in pixels; images are square."""
        return int(next(iter(self.domains.values())).train.images.shape[1])

    def checksum(self) -> str:
        """SHA-256 over every split of every domain, so that a record can say exactly which images it is about."""
        return self._checksum

    @cached_property
    def _checksum(self) -> str:
        # Once an object: a large data set takes a second, and a benchmark makes hundreds of records of it.
        digest = hashlib.sha256()
        for name, domain in self.domains.items():
            for part, split in (("train", domain.train), ("test", domain.test)):
                digest.update(f"{name}/{part}/{split.images.shape}".encode())
                digest.update(np.ascontiguousarray(split.images).data)
                digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()
