"""What other processes must be told before they take part: most of all, which methods there are that are not afield's.

A method from a file or a module is imported again there. One that is nowhere but in this process, as a notebook's,
travels by value.
"""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from afield.config.cards import MAIN, Card, Origin, cards
from afield.config.catalogue import find_entry
from afield.config.outside import execute_file, load_module, text_of
from afield.errors import AfieldError
from afield.methods import Method, find_method
from afield.methods.registry import add_method
from afield.training.callbacks import Callback

MEETING = ("MASTER_ADDR", "MASTER_PORT")
GUARD = "a script that starts other processes must do so under `if __name__ == '__main__':`"


@dataclass(frozen=True)
class Parcel:
    """Something for another process, with what that process needs to know to open it."""

    method: str
    origin: Origin | None
    """What to import first; None: nothing."""
    text: bytes
    """Of a file, as it was executed here: all processes run the same, even if it is being edited."""
    content: bytes


def pack(content: Any, method: str) -> Parcel:
    """Make something ready for another process that is about a method of this name."""
    card = find_entry(method).card
    found, origin = find_method(card.name), card.origin
    travelling: list[tuple[Card, type[Method]]] = []
    if origin and not _importable(found):
        travelling, origin = [(card, found)], None
    text = text_of(origin.file) if origin and origin.is_file else b""
    try:
        return Parcel(card.name, origin, text, cloudpickle.dumps((travelling, content)))
    except Exception as error:  # whatever the user's class holds may have an error of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise AfieldError(f"method '{method}' cannot be sent to another process; in a file it can: {reason}") from error


def packed_callbacks(callbacks: Sequence[Callback]) -> bytes:
    """Callbacks ready for another process; those of a notebook travel by value."""
    try:
        return bytes(cloudpickle.dumps(tuple(callbacks)))
    except Exception as error:  # whatever they hold may have an error of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise AfieldError(f"a callback cannot be sent to the processes of training.devices: {reason}") from error


def unpack(parcel: Parcel) -> Any:
    """What was packed, once its method is known here."""
    origin = parcel.origin
    if origin and parcel.method not in cards():
        if origin.is_file:
            execute_file(Path(origin.file), parcel.text, origin.file)
        else:
            load_module(origin.module)
        if parcel.method not in cards():
            raise AfieldError(f"importing {origin} in another process does not register method '{parcel.method}'")
    travelling, content = pickle.loads(parcel.content)
    for card, method in travelling:
        add_method(card, method)
    return content


def _importable(method: type[Method]) -> bool:
    """Whether another process finds the class by its name: not one of a notebook, nor one made inside a function."""
    if method.__module__ in MAIN:
        return False
    try:
        return bool(attrgetter(method.__qualname__)(sys.modules.get(method.__module__)) is method)
    except AttributeError:
        return False


@contextmanager
def without_script() -> Iterator[None]:
    """A process started inside does not import the script that this one runs: it needs nothing from it."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def without_nameless_script() -> Iterator[None]:
    """The same for a script that was read from a pipe, which no other process could import."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).is_file():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


@contextmanager
def place_to_meet() -> Iterator[None]:
    """Processes started inside meet at a port that is free now, not where the environment says another run's do."""
    kept = {name: os.environ.pop(name) for name in MEETING if name in os.environ}
    try:
        yield
    finally:
        for name in MEETING:
            os.environ.pop(name, None)
        os.environ.update(kept)


@contextmanager
def children_told() -> Iterator[None]:
    """If this process is stopped inside, its children are too, and it waits for them: they save where they stand."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        try:
            for child in children:
                child.join()
        finally:  # a second Ctrl-C ends the waiting
            for child in children:
                child.kill()
        raise


def starter() -> int:
    """The process that started this one; for a child that Python started, even if it has ended already."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def is_loss_of_another(error: Exception) -> bool:
    """Whether an error says that another process of the run has ended, for which gloo has no class of its own."""
    words = ("gloo", "Gloo", "NCCL", "by peer", "Broken pipe")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def check_guarded() -> None:
    """Raise in a process that is only importing the script which started it, or it would begin everything anew."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise AfieldError(GUARD)
