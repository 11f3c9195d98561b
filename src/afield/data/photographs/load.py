"""From a published data set's files to its domains."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from afield.data.collect import make_domain_set
from afield.data.domain import Domain, DomainSet, Split
from afield.data.entries import Listing
from afield.data.images import JoinedImages
from afield.data.photographs.published import PublishedSet, check_published
from afield.data.registry import data_folder
from afield.errors import AfieldError

HELD_OUT = 0.1
"""Of each class of each domain to validate on, where no splits were published: as much as PACS has."""


def load_published(published: PublishedSet) -> DomainSet:
    """The data set, if it is there and complete; the first time, this reads every image once."""
    folder = published.folder_in(data_folder())
    listing = list_published(published, folder)
    # Figures on a part of a published set could not be compared with any others.
    remedy = f"{published.title} is used whole, also with --skip-bad: get it again into {folder}; {published.where}"
    data = make_domain_set(published.name, listing, held_out=HELD_OUT, remedy=remedy)
    divided = any(entry.split for entry in listing.entries)
    domains = {
        name: replace(tested_whole(domain), adapted_whole=not divided) if published.tested_whole else domain
        for name, domain in data.domains.items()
    }
    notes = (*data.notes, *size_notes(data, published.side))
    return replace(data, domains=domains, preset=published.preset, notes=notes)


def size_notes(data: DomainSet, side: int) -> list[str]:
    """What to know where images are smaller than those published, with which all published figures were made."""
    splits = [split for domain in data.domains.values() for split in domain.splits.values()]
    smallest = min(int(split.images.sizes().min()) for split in splits) if side else 0
    small = f"the published images have {side} x {side} pixels, and one here has {smallest}: they have been resized"
    return [small] if smallest < side else []


def list_published(published: PublishedSet, folder: Path) -> Listing:
    """All images of a published data set, checked to be those, before any of them is read."""
    if not folder.is_dir():
        raise AfieldError(f"no folder {folder}: {published.name} is read from {published.place}; {published.where}")
    try:
        listing = published.arrangement.list_images(folder, published.domains)
        check_published(listing.entries, published)
    except AfieldError as error:
        raise AfieldError(
            f"{published.title} cannot be used: {error}; {folder} must hold {published.layout}; {published.where}"
        ) from error
    # Two data sets may share images, and what is remembered of them is kept for each.
    place = f"{listing.place} as {published.name}"
    return replace(listing, place=place, origin=f"real: {published.title}", hint=published.layout, notes=())


def tested_whole(domain: Domain) -> Domain:
    """The domain with all its images to test on; those held out become the ones to validate on."""
    assert domain.train.labels is not None
    assert domain.test.labels is not None
    images = JoinedImages([domain.train.images, domain.test.images])
    everything = Split(images, np.concatenate([domain.train.labels, domain.test.labels]))
    return replace(domain, validation=domain.test, test=everything, tested_whole=True)
