"""What a domain is: a name, its images with or without labels, and where they come from."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from afield.config.data import Oblong
from afield.data.images import ArrayImages, Digest, Images, Labels, Pixels
from afield.errors import unknown

MOST_SHOWN = 8
"""Domains that the text of a data set names."""


@dataclass(frozen=True, repr=False)
class Split:
    """Images and, unless nobody has labelled them, one class index for each."""

    images: Images
    labels: Labels | None

    def __post_init__(self) -> None:
        if self.labels is not None and (self.labels.shape != (len(self),) or self.labels.dtype != np.int64):
            raise ValueError(f"labels must be int64 ({len(self)},), not {self.labels.dtype} {self.labels.shape}")

    @classmethod
    def of_array(cls, images: Pixels, labels: Labels | None) -> "Split":
        """A split of images in memory, uint8 (N, H, W, 3)."""
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 (N, H, W, 3), not {images.dtype} {images.shape}")
        return cls(ArrayImages(images), labels)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Split({len(self)} images, {'no labels' if self.labels is None else 'labelled'})"

    def mapped(self, change: Callable[[Images], Images]) -> "Split":
        """The same split with its images behind another way to read them."""
        return replace(self, images=change(self.images))

    def add_to(self, digest: Digest, name: str) -> None:
        """Take part in a checksum."""
        self.images.add_to(digest, name)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels).data)


@dataclass(frozen=True, repr=False)
class Domain:
    """One way of taking pictures of the same classes.

    `train` is learned from and `test` is measured on; `validation`, where there is one, takes the place of `test` in
    choosing among a run's evaluations. A domain without labels has the same images, without labels, in both, unless its
    splits are given.
    """

    name: str
    train: Split
    test: Split
    origin: str
    """Where the images come from, in words: 'real' or 'rendered', and from what."""
    stand_in: bool = False
    """Rendered by afield in place of published images that were not there."""
    validation: Split | None = None
    unlabelled: Split | None = None
    """Further images of a labelled domain that have no label; a target's training sees them too."""
    tested_whole: bool = False
    """Whether `test` has the images of `train` and `validation` again: a target is tested on all of its images."""
    adapted_whole: bool = False
    """Whether a target's training sees `validation` too, as it does where nobody published what to hold out."""

    def __repr__(self) -> str:
        return f"Domain({self.name!r}, {', '.join(f'{name}={len(split)}' for name, split in self.splits.items())})"

    @property
    def labelled(self) -> bool:
        """Whether it can be a source, and whether accuracy on it can be known."""
        return self.train.labels is not None

    @property
    def splits(self) -> dict[str, Split]:
        """All there are, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test, "unlabelled": self.unlabelled}
        return {name: split for name, split in splits.items() if split is not None}

    @property
    def size(self) -> int:
        """How many images there are; those that are in two splits count once."""
        again = ("test",) if self.tested_whole else ()
        distinct = {id(split.images): split for name, split in self.splits.items() if name not in again}
        return sum(map(len, distinct.values()))

    @property
    def as_source(self) -> "Domain":
        """The domain as it tests a model that learned from it: on held-out images, even if a target has all of them."""
        if not self.tested_whole:
            return self
        assert self.validation is not None
        return replace(self, test=self.validation, validation=None, tested_whole=False)

    def mapped(self, change: Callable[[Images], Images]) -> "Domain":
        """The same domain with all its images behind another way to read them."""
        changed: dict[str, Any] = {name: split.mapped(change) for name, split in self.splits.items()}
        return replace(self, **changed)


@dataclass(frozen=True, repr=False)
class DomainSet:
    """Several domains that share their classes."""

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Domain]
    preset: str = ""
    """The settings in `config/presets/data` that suit it; without one they are chosen by the size of the images."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a user should know of the data: classes that a domain lacks, files left out, images in two domains."""

    def __repr__(self) -> str:
        sizes = {name: domain.size for name, domain in self.domains.items()}
        shown = ", ".join(f"{name}: {size}" for name, size in list(sizes.items())[:MOST_SHOWN])
        more = f", {len(sizes) - MOST_SHOWN} more" if len(sizes) > MOST_SHOWN else ""
        return f"DomainSet({self.name!r}, {len(self.classes)} classes, images {{{shown}{more}}})"

    def __getitem__(self, name: str) -> Domain:
        if name not in self.domains:
            raise unknown("domain", name, self.domains)
        return self.domains[name]

    @property
    def image_size(self) -> int | None:
        """Height and width in pixels, or None where images have sizes of their own."""
        sides = {split.images.side for domain in self.domains.values() for split in domain.splits.values()}
        return sides.pop() if len(sides) == 1 else None

    def with_sources(self, names: Collection[str]) -> "DomainSet":
        """The same data set to test a model with these sources: never on images that it learned from."""
        domains = {name: domain.as_source if name in names else domain for name, domain in self.domains.items()}
        return replace(self, domains=domains)

    def sized(self, side: int, oblong: Oblong = "squash") -> "DomainSet":
        """The same data set with all images square and of one size."""
        return self.mapped(lambda images: images.sized(side, oblong))

    def mapped(self, change: Callable[[Images], Images]) -> "DomainSet":
        """The same data set with all images behind another way to read them, which is no other data set."""
        return replace(self, domains={name: domain.mapped(change) for name, domain in self.domains.items()})

    def checksum(self) -> str:
        """SHA-256 over every split of every domain, so that a record can say exactly which images it is about."""
        return self._checksum

    @cached_property
    def _checksum(self) -> str:
        digest = hashlib.sha256()
        for name, domain in self.domains.items():
            for part, split in domain.splits.items():
                split.add_to(digest, f"{name}/{part}")
        return digest.hexdigest()
