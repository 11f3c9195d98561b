"""Fetch the domains that torchvision can fetch, and say how it stands with each."""

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from afield.data.digit5.load import digit5_folder, find_format
from afield.data.digit5.published import PUBLISHED, Format
from afield.errors import AfieldError


def download_digit5() -> Iterator[str]:
    """Fetch what is not there; yields one line for each domain, and raises at the end if a download failed."""
    folder = digit5_folder()
    failures = []
    for name, published in PUBLISHED.items():
        format = _find(name, folder)
        if format is None and published.fetched:
            try:
                _fetch(name, folder)
            except Exception as error:  # a network can fail in any way, and the user can mend none of them here
                failures.append(f"{published.title} ({' '.join(str(error).split()) or type(error).__name__})")
            format = _find(name, folder)
        yield f"{name:4}{published.title}: {_status(name, format, folder)}"
    if failures:
        raise AfieldError(f"could not download {', '.join(failures)}")


def _fetch(name: str, folder: Path) -> None:
    from torchvision import datasets

    with redirect_stdout(sys.stderr):  # torchvision tells of its attempts; the answer is what goes to stdout
        if name == "sv":
            for split in ("train", "test"):
                datasets.SVHN(folder, split=split, download=True)
        else:
            fetch = datasets.MNIST if name == "mt" else datasets.USPS
            for train in (True, False):
                fetch(folder, train=train, download=True)


def _find(name: str, folder: Path) -> Format | None:
    try:
        return find_format(PUBLISHED[name], folder)
    except AfieldError:  # some of its files are there, but not all
        return None


def _status(name: str, format: Format | None, folder: Path) -> str:
    if format:
        return f"there ({folder / format.names[0]})"
    published = PUBLISHED[name]
    otherwise = "; afield renders digits in its place" if name == "syn" else ""
    return f"missing in {folder}: {published.wanted}; see {published.page}{otherwise}"
