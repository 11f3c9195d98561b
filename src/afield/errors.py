"""Errors a user can cause. Each is one line that says what is wrong and what would be right."""

from collections.abc import Iterable
from difflib import get_close_matches


class AfieldError(Exception):
    """Something the user asked for cannot be done; the command line prints it and exits with 2."""


def unknown(what: str, given: str, known: Iterable[str]) -> AfieldError:
    """The error for a name that does not exist: with the nearest spelling, or with all names that do exist."""
    known = sorted(known)
    names = {name.casefold(): name for name in known}
    nearest = get_close_matches(given.casefold(), names, n=1, cutoff=0.5)
    hint = f"did you mean '{names[nearest[0]]}'?" if nearest else f"known: {', '.join(known) or 'none'}"
    return AfieldError(f"unknown {what} '{given}'; {hint}")
