"""The classes of several domains: which there are, which a domain lacks, and which are one class in two spellings."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain, combinations

from afield.data.entries import ImageEntry, some_of
from afield.errors import AfieldError

LEAST_LETTERS = 5
"""Shorter names are near to each other by chance: cat and cats, bus and bun."""
LEAST_LIKENESS = 0.85
"""Leaves out house and mouse, where one letter is much of the word."""

Labels = Mapping[str, frozenset[str]]
"""For each domain the classes of its images; none for a domain without labels."""


def labels_by_domain(entries: Iterable[ImageEntry]) -> Labels:
    """The classes of each domain, domains sorted."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        labels = found.setdefault(entry.domain, set())
        if entry.label is not None:
            labels.add(entry.label)
    return {domain: frozenset(found[domain]) for domain in sorted(found)}


def check_domains(name: str, labels: Labels, hint: str) -> None:
    """Raise unless there are two domains, one of them with labels, of two classes or more."""
    for text in (*labels, *(label for found in labels.values() for label in found)):
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
            raise AfieldError(f"{name}: the name {text!r} of a domain or a class has characters that are no text")
    if not labels:
        raise AfieldError(f"{name} has no images that can be read")
    if len(labels) < 2:
        needed = "two are needed, one to learn from and one to work in"
        raise AfieldError(f"{name} has one domain, '{next(iter(labels))}'; {needed}; {hint}")
    classes = sorted({label for found in labels.values() for label in found})
    if not classes:
        raise AfieldError(f"{name}: none of the domains {some_of(labels, 5)} has labels, and one must; {hint}")
    if len(classes) < 2:
        raise AfieldError(f"{name} has one class, '{classes[0]}'; two are needed to tell apart; {hint}")
    _check_spelling(labels)


def sorted_classes(labels: Labels) -> tuple[str, ...]:
    """All classes; numbers by their value, all else by its letters."""
    classes = sorted({label for found in labels.values() for label in found})
    if all(name.isdecimal() for name in classes):
        classes.sort(key=int)
    return tuple(classes)


def notes_on_classes(labels: Labels, classes: Sequence[str]) -> list[str]:
    """Which domains lack which classes."""
    lacking = {domain: [c for c in classes if c not in found] for domain, found in labels.items() if found}
    return [f"domain {domain} has no images of: {some_of(names, 10)}" for domain, names in lacking.items() if names]


def _check_spelling(labels: Labels) -> None:
    """Raise where two names that never occur in one domain are too much alike to be two classes."""
    labelled = {domain: found for domain, found in labels.items() if found}
    homes: dict[str, set[str]] = {}
    for domain, found in labelled.items():
        for label in found:
            homes.setdefault(label, set()).add(domain)
    partial = sorted(label for label, domains in homes.items() if len(domains) < len(labelled))
    alike: dict[str, list[str]] = {}  # by first letter: of thousands of names, few are left to compare
    for label in partial:
        alike.setdefault(_plain(label)[0], []).append(label)
    for one, other in chain.from_iterable(combinations(group, 2) for group in alike.values()):
        if homes[one].isdisjoint(homes[other]) and look_like_one(one, other):
            accents = ": only their accents are encoded in two ways" if _composed(one) == _composed(other) else ""
            names = f"'{one}' in {min(homes[one])} and '{other}' in {min(homes[other])}"
            raise AfieldError(f"{names} look like one class{accents}; rename one")


def look_like_one(one: str, other: str) -> bool:
    """Whether two names differ in nothing but letter case, separators and encoding, or in one slip of the pen.

    Not in digits, which tell classes apart, and not in the first letter, where a slip is rare and meaning changes:
    typical and atypical.
    """
    one, other = _plain(one), _plain(other)
    if one == other:
        return True
    if abs(len(one) - len(other)) > 1 or min(_letters(one), _letters(other)) < LEAST_LETTERS or one[0] != other[0]:
        return False
    if re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    return _one_slip(one, other) and SequenceMatcher(None, one, other).ratio() >= LEAST_LIKENESS


def _plain(name: str) -> str:
    name = _composed(name)
    return re.sub(r"[\s_\-]+", "", name).casefold() or name


def _composed(name: str) -> str:
    """With every accent in its letter. Folders from a Mac may have it beside the letter, which looks the same."""
    return unicodedata.normalize("NFC", name)


def _letters(name: str) -> int:
    return sum(map(str.isalpha, name))


def _one_slip(one: str, other: str) -> bool:
    """One letter more, fewer or another, or two neighbours exchanged."""
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    if len(one) != len(other):
        longer, shorter = sorted((one, other), key=len, reverse=True)
        return longer[1:] == shorter
    return one[1:] == other[1:] or (one[2:] == other[2:] and one[:2] == other[1::-1])
