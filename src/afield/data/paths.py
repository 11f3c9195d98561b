"""Image files that are named one by one as a data set."""

import os
from collections.abc import Sequence

from afield.data.arrays import HINT
from afield.data.collect import make_domain_set
from afield.data.domain import DomainSet
from afield.data.entries import Files, ImageEntry, Listing
from afield.errors import AfieldError


def from_paths(
    paths: Sequence[str], labels: Sequence[str | None], domains: Sequence[str], *, classes: Sequence[str] = ()
) -> DomainSet:
    """A data set of image files, with a label (None: nobody knows it) and a domain for each."""
    files = Files("", [os.path.abspath(path) for path in paths])  # noqa: PTH100 - ten times faster than Path
    stamps = files.stamps()
    missing = [path for path, stamp in zip(paths, stamps, strict=True) if not stamp]
    if missing:
        more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise AfieldError(f"no such image file: {missing[0]}{more}")
    entries = [ImageEntry(*one, None) for one in zip(paths, domains, labels, strict=True)]
    place = os.path.commonpath(files.names) if paths else ""
    return make_domain_set(
        "paths", Listing(entries, files, stamps, place, "image files named one by one", HINT), classes=classes
    )
