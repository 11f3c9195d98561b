"""Errors a user can cause. Each is one line that says what is wrong and what would be right."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class AfieldError(Exception):
    """Something the user asked for cannot be done; the command line prints it and exits with 2."""

    def __str__(self) -> str:
        """One line, also where a file's own words are quoted, which may be many."""
        return " ".join(super().__str__().splitlines())


def printable(text: str) -> str:
    """A text that a stranger may have written, without control characters, which could change a terminal's state."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


class MissingMethodError(AfieldError):
    """The method of a run or a checkpoint is not part of afield, and is not known in this process."""

    def __init__(self, whose: str, name: str, origin: str) -> None:
        # A stranger may have written the origin: it is repeated only where it looks like one.
        is_module = re.fullmatch(r"(?!__)[\w.]+:[\w.]+", origin)
        self.again = origin if is_module or re.fullmatch(r"[\w .+-]+\.py", origin) else "mine.py"
        place = "module" if is_module else "file"
        self.said = f"{whose} method '{name}' is not part of afield: name the {place} it is in again, such as "
        super().__init__(f"{self.said}method='{self.again}'")

    @property
    def for_command(self) -> str:
        """The same with the command line's option in place of the argument."""
        return f"{self.said}--method {self.again}"


def unknown(what: str, given: str, known: Iterable[str]) -> AfieldError:
    """The error for a name that does not exist: with the nearest spelling, or with all names that do exist."""
    known = sorted(known)
    names = {name.casefold(): name for name in known}
    nearest = get_close_matches(given.casefold(), names, n=1, cutoff=0.5)
    hint = f"did you mean '{names[nearest[0]]}'?" if nearest else f"known: {', '.join(known) or 'none'}"
    return AfieldError(f"unknown {what} '{given}'; {hint}")
