"""Find each domain's files, check them, draw large sets down to size, and bring images to one size."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from afield.data.digit5.fitting import Fitting, fit
from afield.data.digit5.formats import Indices, Stored
from afield.data.digit5.others import said_of_others
from afield.data.digit5.published import PUBLISHED, Format, PublishedDomain
from afield.data.digits.patches import SIDE
from afield.data.domain import Domain, Split
from afield.data.registry import data_folder
from afield.errors import AfieldError

SIZES = {"train": 25_000, "test": 9_000}
"""The sizes Dassl uses. A smaller set (USPS) is taken whole."""

_SEED = 0


def digit5_folder() -> Path:
    """Where the files lie."""
    return data_folder() / "digit5"


def load_published(folder: Path, how: Fitting, sizes: Mapping[str, int] = SIZES) -> dict[str, Domain]:
    """Every domain whose files are there; only `syn` may be missing."""
    if not folder.is_dir():
        raise AfieldError(
            f"no folder {folder}: digit5 is read from the folder digit5 in AFIELD_DATA (default: data); "
            "`afield data download digit5` fills it and says what is missing"
        )
    formats = {name: find_format(published, folder) for name, published in PUBLISHED.items()}
    missing = [PUBLISHED[name] for name, format in formats.items() if format is None and name != "syn"]
    if missing:
        wants = [f"{published.title} ({published.wanted}; {published.where})" for published in missing]
        raise AfieldError(f"{said_of_others(folder)}missing in {folder}: {', '.join(wants)}")
    return {
        name: _load_domain(name, format, folder, how, sizes) for name, format in formats.items() if format is not None
    }


def find_format(published: PublishedDomain, folder: Path) -> Format | None:
    """The first format all of whose files are there, or None where there is no file of any."""
    begun = None
    for format in published.formats:
        there = [(folder / name).exists() for name in format.names]
        if all(there):
            return format
        if any(there):
            begun = begun or format
    if begun is None:
        return None
    lacking = next(name for name in begun.names if not (folder / name).exists())
    raise AfieldError(f"missing {folder / lacking}, a part of {published.title}: {published.where}")


def _load_domain(name: str, format: Format, folder: Path, how: Fitting, sizes: Mapping[str, int]) -> Domain:
    published = PUBLISHED[name]
    try:
        stored = {part: format.read(part, [folder / file for file in format.files[part]]) for part in sizes}
        # All images of a domain are treated alike: a frame counts only where train and test both have it.
        framed = published.side < SIDE and all(part.framed for part in stored.values())
        splits = {part: _split(stored[part], size, f"{name}/{part}", how, framed) for part, size in sizes.items()}
    except AfieldError as error:
        raise AfieldError(f"{error}; remove it and get {published.title} again: {published.where}") from error
    origin = published.origin(how, sized=any(part.sized for part in stored.values()), framed=framed)
    return Domain(name, splits["train"], splits["test"], origin)


def _split(stored: Stored, size: int, stream: str, how: Fitting, framed: bool) -> Split:
    chosen = draw(stored.count, size, stream)
    return Split.of_array(fit(stored.pick(chosen), how, framed=framed), stored.labels[chosen])


def draw(count: int, size: int, stream: str) -> Indices:
    """Which of `count` images to keep: all in their order, or a random choice that the stream's name alone decides."""
    if count <= size:
        return np.arange(count)
    return np.random.default_rng([_SEED, *stream.encode()]).permutation(count)[:size]
