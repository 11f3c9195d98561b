"""Methods by the name used in tables."""

import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath
from typing import Any, TypeVar

from afield.config.cards import Card, Origin, add_card, outside_cards
from afield.config.catalogue import reserved_names
from afield.config.options import MethodOptions
from afield.config.outside import HOW, import_method, is_reference
from afield.errors import AfieldError, unknown
from afield.methods.method import Method

M = TypeVar("M", bound=type[Method])
AnyMethod = str | PurePath | type[Method]
"""A method as a user gives it: its name, its class, or a reference to where it is."""
OWN = "afield.methods."
HOW_NAMED = "a config has both as method.name"
NAME = re.compile(r"\w[\w+.-]*")
_methods: dict[str, type[Method]] = {}


def register_method(name: str, *, summary: str, reference: str) -> Callable[[M], M]:
    """Class decorator: make a method known under the name that tables use.

    Registering a name again from the same file, module or notebook replaces what it meant.
    """

    def register(method: M) -> M:
        check_class(name, method)
        origin = origin_of(method)
        if origin:
            check_name(name, origin)
        file = origin.shown if origin else f"afield/methods/{PurePath(inspect.getfile(method)).name}"
        card = Card(name, summary, reference, file, method.needs_target, method.min_sources, method.Options, origin)
        add_method(card, method)
        return method

    return register


def add_method(card: Card, method: type[Method]) -> None:
    """Make a method known by its card, in place of one of the same name."""
    add_card(card)
    _methods[card.name] = method


def check_class(name: str, method: Any) -> None:
    """Raise unless a class can be a method."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise AfieldError(f"'{name}' is registered on {_called(method)}, which is not a subclass of afield.Method")
    if not (isinstance(method.Options, type) and issubclass(method.Options, MethodOptions)):
        raise AfieldError(f"the Options of method '{name}' are not a subclass of afield.MethodOptions")
    if "name" in method.Options.model_fields:
        raise AfieldError(f"an option of method '{name}' cannot be called name, which the method's own is: {HOW_NAMED}")
    for declared in ("ramped", "training_only"):
        if not isinstance(getattr(method, declared), set | frozenset):
            raise AfieldError(f"what method '{name}' declares as {declared} is no set of names, such as {{'a', 'b'}}")
    if not all(before < share for before, share in pairwise((0, *method.phases, 1))):
        raise ValueError(f"the phases of {name} begin at ascending shares between 0 and 1, not at {method.phases}")


def check_name(name: str, origin: Origin) -> None:
    """Raise if a method from outside cannot have a name: it is afield's own, or another file's, or is no name."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or is_reference(name):
        raise AfieldError(f"a method's name is letters, digits, '-', '+', '.' and '_', and no file, not {name!r}")
    if name.casefold() in {own.casefold() for own in reserved_names()}:
        raise AfieldError(f"'{name}' is the name of one of afield's own methods; choose another")
    for other, card in outside_cards().items():
        if other.casefold() == name.casefold() and card.origin and card.origin.place != origin.place:
            raise AfieldError(f"'{name}' is already the name of the method in {card.origin.place}; choose another")


def origin_of(method: type[Method]) -> Origin | None:
    """Where a method's class is; None for afield's own."""
    if method.__module__.startswith(OWN):
        return None
    try:
        file = inspect.getfile(method)
    except (TypeError, OSError):  # a notebook has no file
        file = ""
    is_file = not file.startswith("<")  # as "<stdin>" does
    return Origin(method.__module__, method.__qualname__, file if is_file else "")


def registered_methods() -> dict[str, type[Method]]:
    """All registered methods by name."""
    return dict(_methods)


def find_method(name: str) -> type[Method]:
    """The method of a name, or the error with the nearest spelling."""
    if name not in _methods:
        raise unknown("method", name, _methods)
    return _methods[name]


def name_of(method: AnyMethod) -> str:
    """The name of a method, however it is given; one that is given by a reference is imported."""
    if isinstance(method, str | PurePath):
        return import_method(str(method)) if is_reference(str(method)) else str(method)
    names = [name for name, registered in _methods.items() if registered is method]
    if not names:
        raise AfieldError(f"{_called(method)} is not a registered method: {HOW}")
    return names[0]


def _called(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", None) or repr(thing))
