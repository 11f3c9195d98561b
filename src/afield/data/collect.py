"""From listed images to a data set: look at each, set the bad ones apart, check the classes, divide into splits."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from afield.data.classes import check_domains, labels_by_domain, notes_on_classes, sorted_classes
from afield.data.decoding import EncodedImages, Probe
from afield.data.domain import Domain, DomainSet, Split
from afield.data.entries import ImageEntry, Listing, counted
from afield.data.images import Images, Indices
from afield.data.leaks import notes_on_leaks
from afield.data.probing import probe_all
from afield.data.splits import TEST_SHARE, divide
from afield.errors import AfieldError

NAMED = 3
SKIP = "skip_bad (--skip-bad) leaves them out"


def make_domain_set(
    name: str,
    listing: Listing,
    *,
    skip_bad: bool = False,
    remedy: str = SKIP,
    workers: int = 0,
    held_out: float = TEST_SHARE,
    classes: Sequence[str] = (),
) -> DomainSet:
    """The data set of listed images; the first time, this reads every one of them.

    `remedy` is what the error about images that cannot be read tells to do.
    """
    check_domains(name, labels_by_domain(listing.entries), listing.hint)  # before reading, which may take minutes
    probes = probe_all(listing.sources, listing.stamps, listing.place, workers)
    bad = [number for number, probe in enumerate(probes) if probe.error]
    notes = listing.notes
    if bad:
        message = f"{counted(len(bad))} of {len(probes):,} cannot be read: {_named(bad, listing.entries, probes)}"
        if not skip_bad:
            raise AfieldError(f"{message}; {remedy}")
        notes = (f"left out: {message}", *notes)
    take = partial(_encoded, listing, probes, workers)
    good = [number for number, probe in enumerate(probes) if not probe.error]
    return assemble(
        name, listing.entries, probes, take, good,
        origin=listing.origin, hint=listing.hint, notes=notes, held_out=held_out, classes=classes,
    )  # fmt: skip


def assemble(
    name: str,
    entries: Sequence[ImageEntry],
    probes: Sequence[Probe],
    take: Callable[[Indices], Images],
    numbers: Sequence[int],
    *,
    origin: str,
    hint: str,
    notes: tuple[str, ...] = (),
    classes: Sequence[str] = (),
    held_out: float = TEST_SHARE,
) -> DomainSet:
    """The data set of those entries whose numbers are given; `take` gives the images of some of them.

    Classes are sorted, unless given in an order of their own.
    """
    labels = labels_by_domain(entries[number] for number in numbers)
    check_domains(name, labels, hint)
    classes = tuple(classes) or sorted_classes(labels)
    index = {label: place for place, label in enumerate(classes)}
    by_domain: dict[str, list[int]] = {domain: [] for domain in labels}
    for number in numbers:
        by_domain[entries[number].domain].append(number)
    divided = {domain: divide(domain, members, entries, probes, held_out) for domain, members in by_domain.items()}

    def split(numbers: list[int], labelled: bool) -> Split:
        found = [index[entries[number].label or ""] for number in numbers] if labelled else None
        return Split(take(np.array(numbers, np.int64)), None if found is None else np.array(found, np.int64))

    domains = {}
    for domain, parts in divided.items():
        made = {part: split(found, bool(labels[domain]) and part != "unlabelled") for part, found in parts.items()}
        if parts["test"] is parts["train"]:
            made["test"] = made["train"]
        domains[domain] = Domain(domain, origin=origin, **made)  # type: ignore[arg-type]
    found = (
        *notes,
        *_notes_on_labels(by_domain, entries),
        *notes_on_classes(labels, classes),
        *notes_on_leaks(divided, entries, probes),
    )
    return DomainSet(name, classes, domains, notes=found)


def _encoded(listing: Listing, probes: Sequence[Probe], workers: int, which: Indices) -> Images:
    return EncodedImages(listing.sources, which, probes, workers=workers)


def _named(bad: Sequence[int], entries: Sequence[ImageEntry], probes: Sequence[Probe]) -> str:
    """The first bad images, each with what is wrong with it."""
    names = [f"{entries[number].source} ({_reason(probes[number].error)})" for number in bad[:NAMED]]
    return ", ".join(names) + (", ..." if len(bad) > NAMED else "")


def _reason(error: str) -> str:
    reason = error.removeprefix("cannot read an image").strip().removeprefix("(").removesuffix(")")
    return reason.replace("an image has ", "", 1) or "no image"


def _notes_on_labels(by_domain: dict[str, list[int]], entries: Sequence[ImageEntry]) -> list[str]:
    notes = []
    for domain, numbers in by_domain.items():
        without = sum(entries[number].label is None for number in numbers)
        if without == len(numbers):
            notes.append(f"domain {domain} has no labels ({counted(without)})")
        elif without:
            notes.append(f"domain {domain}: {without:,} of {len(numbers):,} images have no label")
    return notes
