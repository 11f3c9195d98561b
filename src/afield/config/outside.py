"""Methods that are not part of afield, imported by reference: `./mine.py`, `./mine.py:name` or `package.module:Name`.

Only what a user has said is followed: an argument, a config file, a plan. A name in a checkpoint, in records or in a
run's folder is never a reason to import anything. Importing a method imports torch, and this file does not.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path, PurePath
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

from afield.config.cards import FILE_MODULE, outside_cards, remove_card
from afield.errors import AfieldError, unknown
from afield.files import check_regular

HOW = "decorate a subclass of afield.Method with @afield.register_method"
MOST_CHARACTERS = 300
"""How much of an error that a user's file raises is shown."""


@dataclass(frozen=True)
class _Executed:
    text: bytes
    methods: tuple[str, ...]


_executed: dict[str, _Executed] = {}


def is_reference(text: str) -> bool:
    """Whether a text is a reference to a method's place, not a method's name."""
    return _is_path(text) or ":" in text


def _is_path(text: str) -> bool:
    return text.endswith(".py") or any(separator in text for separator in ("/", os.sep))


def import_method(reference: str) -> str:
    """Import the method of a reference, and return the name it is registered under.

    A file is executed anew if it has changed since the last time.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or (_is_path(reference) and not place.endswith(".py")):
        place, name = reference, ""
    if not _is_path(place):
        return import_from_module(place, name)
    path = Path(place).expanduser().resolve()
    executed = execute_file(path, _read(path, place), place)
    if name:
        return _named(sys.modules[module_of(path)], name, place)
    if len(executed) > 1:
        raise AfieldError(
            f"{place} registers several methods, {', '.join(executed)}: name one, such as {place}:{executed[0]}"
        )
    return executed[0]


def followed(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer of a config that a user has written, with the method's name in place of a reference to it."""
    section = layer.get("method")
    name = section.get("name") if isinstance(section, dict) else None
    if not (isinstance(name, str) and is_reference(name)):
        return layer
    return {**layer, "method": {**layer["method"], "name": import_method(name)}}


def module_of(path: Path) -> str:
    """The name of the module that a file is executed as: the same in every process."""
    return f"{FILE_MODULE}{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{sha256(str(path).encode()).hexdigest()[:8]}"


def text_of(file: str) -> bytes:
    """The text of a file as it was executed, which may have changed on disk since."""
    return _executed[file].text


def execute_file(path: Path, text: bytes, shown: str) -> tuple[str, ...]:
    """Execute a file's text unless it has been, and return the names of the methods it registers: one or more."""
    known, registered = _executed.get(str(path)), outside_cards()
    if known and known.text == text and set(known.methods) <= registered.keys():
        return known.methods
    module = ModuleType(module_of(path))
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # where pydantic and pickle look for its classes
    try:
        with _importable(path.parent):
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        _put_back(module.__name__, before)
        raise AfieldError(_explained(error, shown, lambda frame: frame.f_code.co_filename == str(path))) from error
    new = [card for name, card in outside_cards().items() if registered.get(name) is not card]
    methods = tuple(card.name for card in new if card.origin and card.origin.module == module.__name__)
    if not methods:
        _put_back(module.__name__, before)
        raise AfieldError(f"{shown} registers no method: {HOW}")
    for name in set(known.methods if known else ()) - set(methods):
        remove_card(name)  # the file calls it something else now
    _executed[str(path)] = _Executed(text, methods)
    return methods


def _read(path: Path, shown: str) -> bytes:
    if path.is_dir():
        raise AfieldError(f"{shown} is a folder, not a file with a method")
    if not path.name.endswith(".py"):
        raise AfieldError(f"a file with a method is a Python file, such as ./mine.py, not {shown}")
    check_regular(path)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise AfieldError(f"there is no file {shown} to take a method from") from error
    except OSError as error:
        raise AfieldError(f"cannot read {shown}: {error.strerror}") from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """What lies in a folder can be imported by its name, as if a script ran there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _put_back(name: str, before: ModuleType | None) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


def import_from_module(place: str, name: str) -> str:
    """Import a module that Python finds by its name, and return the name that a method in it is registered under."""
    if not name or not all(part.isidentifier() for part in place.split(".")):
        raise AfieldError(f"a method is a name, ./mine.py or package.module:Name, not '{place}:{name}'")
    return _named(load_module(place), name, place)


def load_module(name: str) -> ModuleType:
    """Import an installed module, or raise in one line what is wrong with it."""
    top = name.partition(".")[0]
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise AfieldError(f"no module named '{error.name}'; a file is named by its path, ./mine.py") from error
        reason = _explained(error, "", lambda frame: str(frame.f_globals.get("__name__")).partition(".")[0] == top)
        raise AfieldError(f"cannot import {name}: {reason}") from error


def _named(module: ModuleType, wanted: str, shown: str) -> str:
    """The registered name of a method that is given by that name, or by its class's name in a module."""
    thing = getattr(module, wanted, None)
    where = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    names = []
    for card in outside_cards().values():
        assert card.origin
        if (card.origin.module, card.origin.name) == where:
            return card.name
        if card.origin.module == module.__name__:
            names.append(card.name)
    by_case = {name.casefold(): name for name in names}
    if wanted.casefold() in by_case:
        return by_case[wanted.casefold()]
    if thing is not None or not names:
        missing = f"{wanted} of {shown} is not a method" if thing is not None else f"{shown} has no method {wanted}"
        raise AfieldError(f"{missing}: {HOW}")
    raise unknown(f"method of {shown}", wanted, names)


def _explained(error: BaseException, shown: str, belongs: Callable[[FrameType], bool]) -> str:
    """An error in a user's code, in one line: the file, the line's number in it, the kind of error, the message.

    `belongs` knows the frames of that code, and `shown` is what the user calls its file; empty: the file's own name.
    """
    places = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__) if belongs(frame)]
    kind, text = type(error).__name__, str(error)
    if isinstance(error, SyntaxError) and error.filename and (not places or not shown):
        places, text = [(error.filename, error.lineno or 1)], error.msg
    where = [f"{shown or PurePath(places[-1][0]).name}, line {places[-1][1]}"] if places else [shown] if shown else []
    what = [text] if isinstance(error, AfieldError) else [kind, text]
    return " ".join(": ".join(part for part in (*where, *what) if part).split())[:MOST_CHARACTERS]
