"""Methods by the name used in tables."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import TypeVar

from afield.errors import unknown
from afield.methods.method import Method

M = TypeVar("M", bound=type[Method])
_methods: dict[str, "Registration"] = {}


@dataclass(frozen=True)
class Registration:
    """A method class and what a reader of a table wants to know about it."""

    name: str
    method: type[Method]
    summary: str
    reference: str

    @property
    def file(self) -> str:
        """The method's one file."""
        return f"afield/methods/{PurePath(inspect.getfile(self.method)).name}"


def register_method(name: str, *, summary: str, reference: str) -> Callable[[M], M]:
    """Class decorator: make a method known under the name that tables use."""

    def register(method: M) -> M:
        if not all(before < share for before, share in pairwise((0, *method.phases, 1))):
            raise ValueError(f"the phases of {name} begin at ascending shares between 0 and 1, not at {method.phases}")
        _methods[name] = Registration(name, method, summary, reference)
        return method

    return register


def registered_methods() -> dict[str, Registration]:
    """All registered methods by name."""
    return dict(_methods)


def find_method(name: str) -> Registration:
    """The method of a name, or the error with the nearest spelling."""
    if name not in _methods:
        raise unknown("method", name, _methods)
    return _methods[name]
