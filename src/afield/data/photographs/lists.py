"""Lists of image files: one text file per domain and split, with lines such as `photo/dog/056_0022.jpg 1`.

A class is the folder its images lie in. The number after the name says the same, and is checked to do so.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afield.data.entries import Files, ImageEntry, Listing
from afield.errors import AfieldError
from afield.files import read_text


@dataclass(frozen=True)
class Lists:
    """Where lists and images lie: of several places and names, the first that is there counts."""

    names: Mapping[str, Sequence[str]]
    """For each split the names its list may have, with `{domain}` in place of the domain's."""
    folders: Sequence[str]
    """Where lists may lie in the data set's folder."""
    images: Sequence[str] = (".",)
    """Where the images may lie that the lists name."""

    def list_images(self, folder: Path, domains: Sequence[str]) -> Listing:
        """The images that the lists name."""
        entries: list[ImageEntry] = []
        numbers: dict[str, str] = {}
        for domain in domains:
            for split, names in self.names.items():
                path = self._find(folder, [name.format(domain=domain) for name in names])
                entries += read_list(path, domain, split, numbers)
        root = self._root(folder, entries[0].source)
        files = Files(str(root), [entry.source for entry in entries])
        stamps = files.stamps()
        missing = [entry.source for entry, found in zip(entries, stamps, strict=True) if not found]
        if missing:
            first, count = missing[0], f"{len(missing):,} of {len(entries):,}"
            raise AfieldError(f"missing in {root}: {count} images that the lists name, first {first}")
        return Listing(entries, files, stamps, str(root), "", "")

    def _find(self, folder: Path, names: Sequence[str]) -> Path:
        for place in self.folders:
            for name in names:
                if (path := folder / place / name).is_file():
                    return path
        raise AfieldError(f"missing in {folder / self.folders[0]}: {' or '.join(names)}")

    def _root(self, folder: Path, example: str) -> Path:
        places = [folder / place for place in self.images]
        # The first place is named where none has the image.
        return next((place for place in places if (place / example).exists()), places[0]).absolute()


def read_list(path: Path, domain: str, split: str, numbers: dict[str, str]) -> list[ImageEntry]:
    """The images of one list. `numbers` has the class of every number so far, and takes up those that are new."""
    lines = read_text(path, "list").splitlines()
    entries = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, number = line.strip().rpartition(" ")
        label = os.path.basename(os.path.dirname(name))  # noqa: PTH119, PTH120 - ten times faster than Path
        if not label or not number.isdecimal():
            raise AfieldError(f"{path}, line {place} is not like 'photo/dog/056_0022.jpg 1'")
        if numbers.setdefault(number, label) != label:
            raise AfieldError(f"{path}, line {place}: label {number} is {label} here and {numbers[number]} before")
        entries.append(ImageEntry(name, domain, label, split))
    if not entries:
        raise AfieldError(f"no images in {path}: it has no lines")
    return entries
