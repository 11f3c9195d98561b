"""Data sets by name."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from afield.data.domain import DomainSet
from afield.errors import unknown

Builder = Callable[[], DomainSet]
B = TypeVar("B", bound=Builder)
_builders: dict[str, Builder] = {}


def register_data(name: str) -> Callable[[B], B]:
    """Make a data set loadable by name; the decorated function needs no argument and returns a DomainSet."""

    def register(build: B) -> B:
        _builders[name] = build
        return build

    return register


def builders() -> dict[str, Builder]:
    """All data sets by name: the package's own, which register themselves when first asked for, and the user's."""
    from afield.data import digit5 as _digit5  # noqa: F401
    from afield.data import digits as _digits  # noqa: F401
    from afield.data import photographs as _photographs  # noqa: F401
    from afield.data import rotated_mnist as _rotated_mnist  # noqa: F401
    from afield.data.digit5 import m3sda as _m3sda  # noqa: F401

    return _builders


def data_folder() -> Path:
    """The folder of all data sets that are not embedded: AFIELD_DATA, or else `data` in the current folder."""
    return Path(os.environ.get("AFIELD_DATA") or "data")


def list_data() -> list[str]:
    """The names `afield.train(data=...)` takes, beside folders, manifests and Hugging Face data sets."""
    return sorted(builders())


def check_data(name: str) -> None:
    """Raise, with the nearest spelling, unless the data set exists. Loads nothing."""
    if name not in builders():
        raise unknown("data set", name, builders())


def load_data(name: str) -> DomainSet:
    """Load (and where needed build) a data set; asked again, the same object: do not write into its images."""
    check_data(name)
    return _load(builders()[name], data_folder().absolute())


@lru_cache(maxsize=4)  # a plan may need several
def _load(build: Builder, folder: Path) -> DomainSet:
    # By builder, not by name: a name may be registered anew. By folder, because it decides what is there to load.
    return build()
