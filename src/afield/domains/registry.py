"""Data sets by name."""

from collections.abc import Callable
from typing import TypeVar

from afield.domains.domain import DomainSet
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


def list_data() -> list[str]:
    """The names `afield.train(data=...)` takes."""
    return sorted(_builders)


def check_data(name: str) -> None:
    """Raise, with the nearest spelling, unless the data set exists. Loads nothing."""
    if name not in _builders:
        raise unknown("data set", name, _builders)


def load_data(name: str) -> DomainSet:
    """Load (and where needed build) a data set."""
    check_data(name)
    return _builders[name]()
