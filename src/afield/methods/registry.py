"""Methods by the name used in tables."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath
from typing import TypeVar

from afield.config.cards import Card, add_card
from afield.errors import unknown
from afield.methods.method import Method

M = TypeVar("M", bound=type[Method])
_methods: dict[str, type[Method]] = {}


def register_method(name: str, *, summary: str, reference: str) -> Callable[[M], M]:
    """Class decorator: make a method known under the name that tables use."""

    def register(method: M) -> M:
        if not all(before < share for before, share in pairwise((0, *method.phases, 1))):
            raise ValueError(f"the phases of {name} begin at ascending shares between 0 and 1, not at {method.phases}")
        file = f"afield/methods/{PurePath(inspect.getfile(method)).name}"
        add_card(Card(name, summary, reference, file, method.needs_target, method.min_sources, method.Options))
        _methods[name] = method
        return method

    return register


def registered_methods() -> dict[str, type[Method]]:
    """All registered methods by name."""
    return dict(_methods)


def find_method(name: str) -> type[Method]:
    """The method of a name, or the error with the nearest spelling."""
    if name not in _methods:
        raise unknown("method", name, _methods)
    return _methods[name]
