"""Which images of a domain are learned from and which are measured on: as given, or else by their contents."""

from collections.abc import Sequence

from afield.data.decoding import Probe
from afield.data.entries import ImageEntry
from afield.errors import AfieldError

TEST_SHARE = 0.2

Parts = dict[str, list[int]]
"""The numbers of the images in each split, by the names that `Domain` has for splits."""


def divide(
    domain: str,
    numbers: Sequence[int],
    entries: Sequence[ImageEntry],
    probes: Sequence[Probe],
    share: float = TEST_SHARE,
) -> Parts:
    """The splits of one domain, of which these are the images; where none are given, a share is held out to test on."""
    labelled = [number for number in numbers if entries[number].label is not None]
    without = [number for number in numbers if entries[number].label is None]
    parts = _as_given(domain, labelled or without, entries)
    if labelled and without:
        parts["unlabelled"] = without
    if "test" in parts:
        return parts
    if "validation" in parts:
        parts["test"] = parts.pop("validation")
    elif not labelled:
        parts["test"] = parts["train"]  # all of it is adapted to and predicted; there is nothing to measure
    else:
        test = _held_out(domain, parts["train"], entries, probes, share)
        parts["test"] = [number for number in parts["train"] if number in test]
        parts["train"] = [number for number in parts["train"] if number not in test]
    return parts


def _as_given(domain: str, numbers: Sequence[int], entries: Sequence[ImageEntry]) -> Parts:
    """By the splits that were given; all in `train` where none were."""
    parts: Parts = {}
    for number in numbers:
        parts.setdefault(entries[number].split or "", []).append(number)
    if set(parts) == {""}:
        return {"train": parts[""]}
    if "" in parts:
        example = entries[parts[""][0]].source
        raise AfieldError(
            f"domain {domain}: {len(parts['']):,} of {len(numbers):,} images are in no split, such as {example}; "
            "give all images one, or none"
        )
    if "train" not in parts:
        raise AfieldError(
            f"domain {domain} has only {' and '.join(sorted(parts))} images; some to learn from are needed too: train"
        )
    return parts


def _held_out(
    domain: str, numbers: Sequence[int], entries: Sequence[ImageEntry], probes: Sequence[Probe], share: float
) -> set[int]:
    """A share of each class, chosen by the images' contents alone: the first by digest. Equal images stay together."""
    labels_of: dict[str, set[str]] = {}
    by_class: dict[str, dict[str, list[int]]] = {}
    for number in numbers:
        digest, label = probes[number].digest, entries[number].label or ""
        labels_of.setdefault(digest, set()).add(label)
        by_class.setdefault(label, {}).setdefault(digest, []).append(number)
    chosen: set[int] = set()
    for label, images in sorted(by_class.items()):
        if len(images) < 2:
            copies = sum(map(len, images.values()))
            has = "one image" if copies == 1 else f"one image, in {copies} copies"
            raise AfieldError(
                f"class {label} of domain {domain} has {has}, and two are needed: one to learn from, one to test on"
            )
        # An image under two labels would be on one side by the one and on the other by the other: it is learned from.
        own = sorted(digest for digest in images if len(labels_of[digest]) == 1)
        if not own:
            raise AfieldError(f"all images of class {label} of domain {domain} are in another of its classes too")
        for digest in own[: min(max(1, round(share * len(images))), len(images) - 1)]:
            chosen.update(images[digest])
    return chosen
