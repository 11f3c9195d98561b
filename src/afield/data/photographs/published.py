"""What is known of a published data set before its files are looked at, and the check that they are all there."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from afield.data.entries import ImageEntry, Listing, counted
from afield.errors import AfieldError

ALL = "all"
"""In counts, in place of a split: images of a domain in all splits together; in place of a domain: of all domains."""

Counts = Mapping[str, Mapping[str, int]]
"""By domain, then by split as `Domain` names them: how many images were published."""


class Arrangement(Protocol):
    """How a data set's files lie in its folder."""

    def list_images(self, folder: Path, domains: Sequence[str]) -> Listing:
        """The images of these domains, by paths relative to the folder; or the error that says what is missing."""


@dataclass(frozen=True)
class PublishedSet:
    """One data set as others published it."""

    name: str
    title: str
    folders: tuple[str, ...]
    """The names it may have inside the folder of all data sets, ours first, then those that it is unpacked by."""
    layout: str
    """What has to lie there, in words."""
    page: str
    """Where the files are to be had."""
    arrangement: Arrangement
    classes: int
    counts: Counts
    preset: str
    digests: Mapping[str, str] = field(default_factory=dict)
    """By domain, where its lists are public files that never change: what `digest_of` must give."""
    tested_whole: bool = False
    """Whether a target is tested on all of its images, because those to validate on are of use for sources only."""
    side: int = 0
    """Height and width of all published images; 0 where they have sizes of their own."""

    @property
    def domains(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(domain for domain in self.counts if domain != ALL)

    @property
    def where(self) -> str:
        """How to get it."""
        return f"see {self.page}"

    @property
    def place(self) -> str:
        """Where it is to be put, and in what layout."""
        return f"the folder {self.folders[0]} in AFIELD_DATA (default: data), which holds {self.layout}"

    def folder_in(self, folder: Path) -> Path:
        """Its own folder in that of all data sets: the first that is there."""
        return next((place for name in self.folders if (place := folder / name).is_dir()), folder / self.folders[0])


def check_published(entries: Sequence[ImageEntry], published: PublishedSet) -> None:
    """Raise unless there are as many images and classes as were published, and they are divided as they were."""
    check_counts(entries, published.counts)
    classes = len({entry.label for entry in entries})
    if classes != published.classes:
        raise AfieldError(f"{classes} classes are there, and {published.classes} were published")
    for domain, digest in published.digests.items():
        if digest_of(entry for entry in entries if entry.domain == domain) != digest:
            raise AfieldError(f"the lists of {domain} name other images or splits than the published ones")


def check_counts(entries: Iterable[ImageEntry], counts: Counts) -> None:
    """Raise unless every domain has as many images as it should have, in each split that has a count."""
    found: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        for domain in (entry.domain, ALL):
            found.update([(domain, entry.split or ""), (domain, ALL)])
    for domain, splits in counts.items():
        for split, wanted in splits.items():
            if found[domain, split] != wanted:
                who = "all domains together have" if domain == ALL else f"{domain} has"
                part = "" if split == ALL else f" to {_PURPOSE[split]}"
                raise AfieldError(f"{who} {counted(found[domain, split])}{part}, and {wanted:,} were published")


_PURPOSE = {"train": "train on", "validation": "validate on", "test": "test on"}


def digest_of(entries: Iterable[ImageEntry]) -> str:
    """SHA-256 over names, classes and splits, in whatever order they come."""
    lines = sorted(f"{entry.split} {entry.source} {entry.label}" for entry in entries)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
