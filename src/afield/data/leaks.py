"""Images that occur more than once, so that an accuracy may be too high or a label is doubtful."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from afield.data.decoding import Probe
from afield.data.entries import ImageEntry, counted
from afield.data.splits import Parts

Pair = tuple[str, str]
Found = dict[tuple[str, ...], list[Pair]]

ORDER = ("train", "validation", "test")


def notes_on_leaks(divided: Mapping[str, Parts], entries: Sequence[ImageEntry], probes: Sequence[Probe]) -> list[str]:
    """A line for each two domains that share images, each two splits of a domain that do, and for double labels."""
    between: Found = {}
    within: Found = {}
    doubtful: list[str] = []
    split_of = _splits(divided)
    for copies in _repeated(divided, probes):
        domains = _first_by((entries[number].domain, number) for number in copies)
        for one, other in combinations(sorted(domains), 2):
            _add(between, (one, other), domains[one], domains[other], entries)
        for domain in domains:
            splits = _first_by((split_of[n], n) for n in copies if entries[n].domain == domain and n in split_of)
            for first, second in combinations(sorted(splits, key=ORDER.index), 2):
                _add(within, (domain, first, second), splits[first], splits[second], entries)
        labels = _first_by((label, n) for n in copies if (label := entries[n].label) is not None)
        if len(labels) > 1:
            doubtful.append(" = ".join(f"{entries[n].source} ({label})" for label, n in sorted(labels.items())))
    notes = [
        f"leak: {_counted(found)} in both {one} and {two}{_example(found)}" for (one, two), found in between.items()
    ]
    notes += [
        f"leak: {_counted(found)} in both {first} and {second} of {domain}{_example(found)}"
        for (domain, first, second), found in within.items()
    ]
    if doubtful:
        have = "has" if len(doubtful) == 1 else "have"
        notes.append(f"{counted(len(doubtful))} {have} more than one label, e.g. {doubtful[0]}")
    return notes


def _splits(divided: Mapping[str, Parts]) -> dict[int, str]:
    """The split of each image. Where a domain without labels has the same images in two, that is no leak."""
    return {
        number: split
        for parts in divided.values()
        for split in ORDER
        if split in parts and not (split == "test" and parts["test"] is parts["train"])
        for number in parts[split]
    }


def _repeated(divided: Mapping[str, Parts], probes: Sequence[Probe]) -> list[list[int]]:
    """The numbers of equal images, together, wherever there are several."""
    first: dict[str, int] = {}
    several: dict[str, list[int]] = {}
    for number in sorted({number for parts in divided.values() for numbers in parts.values() for number in numbers}):
        digest = probes[number].digest
        if digest in first:
            several.setdefault(digest, [first[digest]]).append(number)
        else:
            first[digest] = number
    return list(several.values())


def _first_by(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for name, number in found:
        first.setdefault(name, number)
    return first


def _add(found: Found, key: tuple[str, ...], one: int, other: int, entries: Sequence[ImageEntry]) -> None:
    found.setdefault(key, []).append((entries[one].source, entries[other].source))


def _counted(found: Sequence[Pair]) -> str:
    return f"{counted(len(found))} {'is' if len(found) == 1 else 'are'}"


def _example(found: Sequence[Pair]) -> str:
    return f", e.g. {found[0][0]} = {found[0][1]}"
