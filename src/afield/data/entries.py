"""What every kind of data gives: images by name, domain, label and split, listed before any of them is read."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from afield.data.decoding import Sources
from afield.errors import AfieldError

SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
"""The words for splits, which may be written in any letter case, and the names that `Domain` has for them."""


class ImageEntry(NamedTuple):
    """One image: what messages call it, where it belongs, its class unless nobody knows it, its split if it has one."""

    source: str
    domain: str
    label: str | None
    split: str | None


class Files:
    """Image files of one folder, by paths relative to it or absolute ones."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return os.path.join(self.folder, self.names[index])  # noqa: PTH118 - ten times faster than Path

    def stamps(self) -> list[str]:
        """A word for each that changes when the file may have; empty for one that is not there."""
        found = []
        for number in range(len(self)):
            try:
                status = os.stat(self[number])  # noqa: PTH116 - as above
                found.append(stamp(self[number], status.st_size, status.st_mtime_ns))
            except (OSError, ValueError):
                found.append("")
        return found


@dataclass(frozen=True)
class Listing:
    """The images of a folder, a manifest or a Hugging Face data set."""

    entries: Sequence[ImageEntry]
    sources: Sources
    stamps: Sequence[str]
    """For each image a word that changes when its content may have changed."""
    place: str
    """Where they lie: what is remembered of them is kept under this name."""
    origin: str
    """Where they lie, in words."""
    hint: str
    """What an error about their arrangement reminds the user of."""
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """Changes whenever the data may have changed."""
        digest = hashlib.blake2b(repr((self.place, self.notes)).encode(), digest_size=16)
        for entry, stamp in zip(self.entries, self.stamps, strict=True):
            digest.update(repr((*entry, stamp)).encode())
        return digest.hexdigest()


def stamp(*parts: object) -> str:
    """One short word made of everything that tells whether a content is still the same."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=10).hexdigest()


def split_named(word: str, where: str) -> str:
    """The split that a word names, or the error that says where an unknown word stands."""
    if word.lower() not in SPLITS:
        raise AfieldError(f"{where}: unknown split '{word}'; known: {', '.join(SPLITS)}")
    return SPLITS[word.lower()]


def some_of(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(count: int) -> str:
    """So many images, in words."""
    return "1 image" if count == 1 else f"{count:,} images"
