"""A folder of images: DOMAIN/CLASS/*.jpg, with folders for splits above, between or below, or with none.

A folder is one of a split only where all its neighbours are: beside `bus` and `car`, `train` is a class.
"""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from afield.data.entries import SPLITS, Files, ImageEntry, Listing, some_of, stamp
from afield.data.pixels import IMAGE_SUFFIXES, OTHER_SUFFIXES
from afield.errors import AfieldError

LAYOUT = "images are expected as DOMAIN/CLASS/*.jpg, those of a domain without labels as DOMAIN/*.jpg"


class Found(NamedTuple):
    """An image file: its path in the folder, with slashes, and what tells whether it has changed."""

    name: str
    size: int
    changed: int


class Contents(NamedTuple):
    """What is found on the way through a folder."""

    images: list[Found]
    empty: list[str]
    """Folders without images, beside others that have some."""
    others: Counter[str]
    """How many photographs there are that are not read, by their ending."""


class Location(NamedTuple):
    """Where a file lies, as far as that is understood."""

    split: str | None
    domain: str
    label: str | None
    deeper: list[str]


Reading = Callable[[Sequence[Sequence[str]], str], "list[Location | None]"]
"""From the folders that images lie in, and the folder of them all, to their meaning."""


def list_folder(folder: Path, read: Reading | None = None, layout: str = LAYOUT) -> Listing:
    """All images below a folder, with the meaning of the folders they lie in: that of `read_layout` or another."""
    found, empty, others = contents = Contents([], [], Counter())
    _search(str(folder), "", frozenset(), contents)
    endings = ", ".join(f"{count:,} {ending}" for ending, count in sorted(others.items()))
    unread = f"photographs in formats that are not read: {endings}; convert them, for example to .jpg"
    if not found:
        raise AfieldError(f"no images in {folder}: {f'it has {unread}' if others else layout}")
    found.sort()
    notes = [f"left out: {unread}"] if others else []
    notes += [f"folders without images: {some_of(sorted(empty), 10)}"] if empty else []
    parents = [each.name.rpartition("/")[0] for each in found]
    distinct = sorted(set(parents) - {""})  # far fewer than files
    meanings = (read or read_layout)([parent.split("/") for parent in distinct], str(folder))
    places = dict(zip(distinct, meanings, strict=True))
    root = os.path.abspath(folder)  # noqa: PTH100 - `resolve` would follow links
    entries, stamps, stray = [], [], []
    for each, parent in zip(found, parents, strict=True):
        place = places.get(parent)
        if place is None:
            stray.append(each.name)
            continue
        entries.append(ImageEntry(each.name, place.domain, place.label, place.split))
        stamps.append(stamp(f"{root}/{each.name}", each.size, each.changed))
    if not entries:
        raise AfieldError(f"the images in {folder} lie in no folder of a domain: {layout}")
    if stray:
        notes.append(f"left out, because they lie in no folder of a domain: {some_of(stray)}")
    files = Files(root, [entry.source for entry in entries])
    return Listing(entries, files, stamps, root, f"image files in {folder}", layout, tuple(notes))


def images_below(folder: Path) -> list[Path]:
    """The image files in a folder and in those inside it, whatever these mean: the files that training would find."""
    contents = Contents([], [], Counter())
    _search(str(folder), "", frozenset(), contents)
    return sorted(folder / each.name for each in contents.images)


def _search(root: str, inside: str, around: frozenset[tuple[int, int]], contents: Contents) -> bool:
    """Collect what is in one folder and in those in it; whether there are images."""
    folder = f"{root}/{inside}" if inside else root
    before, without = len(contents.images), []
    try:
        status = os.stat(folder)  # noqa: PTH116
        around = around | {(status.st_dev, status.st_ino)}
        with os.scandir(folder) as children:
            for child in children:
                if child.name.startswith("."):
                    continue
                name = f"{inside}/{child.name}" if inside else child.name
                if _is_folder(child):
                    # A link to a folder that it lies in would never end.
                    inner = child.stat()
                    if (inner.st_dev, inner.st_ino) not in around and not _search(root, name, around, contents):
                        without.append(name)
                    continue
                suffix = os.path.splitext(child.name)[1].lower()  # noqa: PTH122
                if suffix in IMAGE_SUFFIXES:
                    contents.images.extend(_image(child, name))
                elif suffix in OTHER_SUFFIXES:
                    contents.others[suffix] += 1
    except OSError as error:
        raise AfieldError(f"cannot read folder {folder}: {error.strerror}") from error
    if len(contents.images) > before:
        contents.empty.extend(without)
    return len(contents.images) > before


def _is_folder(child: "os.DirEntry[str]") -> bool:
    try:
        return child.is_dir()
    except OSError:  # a link to itself
        return False


def _image(child: "os.DirEntry[str]", name: str) -> list[Found]:
    """A file as it was found. A link that leads nowhere counts: it is to be named as unreadable, not overlooked."""
    try:
        status = child.stat()
    except OSError:
        return [Found(name, -1, 0)]
    return [Found(name, status.st_size, status.st_mtime_ns)] if child.is_file() else []


def read_layout(folders: Sequence[Sequence[str]], root: str) -> list[Location | None]:
    """The meaning of folders that images lie in, given as the names on the way there; None for one in no domain."""
    places: list[Location | None] = []
    splits_above = _are_splits([path[0] for path in folders], root)
    for path in folders:
        inside = list(path[1:]) if splits_above else list(path)
        split = SPLITS[path[0].lower()] if splits_above else None
        places.append(Location(split, inside[0], None, inside[1:]) if inside else None)
    if not splits_above:
        places = _take_splits(places, root, lambda place: place.domain)
    places = [p and (p._replace(label=p.deeper[0], deeper=p.deeper[1:]) if p.deeper else p) for p in places]
    if not splits_above:
        places = _take_splits(places, root, lambda place: place.label and f"{place.domain}/{place.label}")
    return places


def _take_splits(
    places: list[Location | None], root: str, parent: Callable[[Location], str | None]
) -> list[Location | None]:
    """Where all folders in a parent are those of splits: what is in them, with its split."""
    children: dict[Hashable, dict[str, None]] = {}
    for place in places:
        if place and place.split is None and place.deeper and (name := parent(place)):
            children.setdefault(name, {})[place.deeper[0]] = None
    of_splits = {name for name, inside in children.items() if _are_splits(list(inside), f"{root}/{name}")}
    return [
        place._replace(split=SPLITS[place.deeper[0].lower()], deeper=place.deeper[1:])
        if place and place.split is None and place.deeper and parent(place) in of_splits
        else place
        for place in places
    ]


def _are_splits(names: Sequence[str], where: str) -> bool:
    """Whether folders side by side are those of splits: all of them are. Two among others are an error."""
    distinct = set(names)
    splits = {name for name in distinct if name.lower() in SPLITS}
    others = distinct - splits
    if others and len(splits) > 1:
        raise AfieldError(
            f"{where} holds folders of splits ({', '.join(sorted(splits))}) beside others "
            f"({some_of(sorted(others))}), which belong to no split"
        )
    return bool(splits) and not others
