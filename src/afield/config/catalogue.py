"""Every method by the name tables use: the registered ones, and the presets that set some of their options."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from afield.config.cards import Card, cards, own_names
from afield.config.plugins import Plugin, import_plugin, plugins
from afield.errors import AfieldError, MissingMethodError, unknown

PRESETS = files("afield") / "config" / "presets"


@dataclass(frozen=True)
class Entry:
    """A method under the name that tables use: its card, and the options that its preset sets."""

    name: str
    summary: str
    card: Card
    fixed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What its preset sets, by section of the config. The options in `method` are what the name stands for, so they
    cannot be changed; those in other sections are defaults."""

    @property
    def origin(self) -> str:
        """Where the method is, as records and checkpoints name it; empty for afield's own."""
        return str(self.card.origin or "")

    def as_dict(self) -> dict[str, Any]:
        """What `afield methods --json` prints about it."""
        return {
            "name": self.name,
            "summary": self.summary,
            "tasks": ["uda"] if self.card.needs_target else ["uda", "dg"],
            "needs_target": self.card.needs_target,
            "min_sources": self.card.min_sources,
            "reference": self.card.reference,
            "file": self.card.file,
            "sets": {f"{section}.{key}": value for section, keys in self.fixed.items() for key, value in keys.items()},
        }


@cache
def _presets() -> dict[str, dict[str, Any]]:
    folder = PRESETS / "methods"
    return {item.name.removesuffix(".toml"): tomllib.loads(item.read_text("utf-8")) for item in folder.iterdir()}


def reserved_names() -> set[str]:
    """The names of afield's own methods and presets, which no other method can have."""
    return own_names() | _presets().keys()


def list_methods() -> list[str]:
    """The names that `train`, `create_method` and tables take."""
    return sorted({*cards(), *_presets(), *_not_imported()})


def describe_methods() -> list[dict[str, Any]]:
    """What `afield methods` shows of each. A package's method is not imported, and so only its place is known."""
    waiting = _not_imported()
    return [_description(waiting[name]) if name in waiting else find_entry(name).as_dict() for name in list_methods()]


def _description(plugin: Plugin) -> dict[str, Any]:
    """The keys of `Entry.as_dict`, as far as they are known."""
    return {
        "name": plugin.name,
        "summary": f"from the package {plugin.package}",
        "tasks": None,
        "needs_target": None,
        "min_sources": None,
        "reference": None,
        "file": plugin.value,
        "sets": {},
    }


def _not_imported() -> dict[str, Plugin]:
    """The methods of installed packages that are not known yet; a name of afield's own stays afield's."""
    known = {name.casefold() for name in (*cards(), *_presets())}
    return {name: plugin for name, plugin in plugins().items() if name.casefold() not in known}


def is_known(name: str) -> bool:
    """Whether a method's options are known without importing anything."""
    return name in cards() or name in _presets()


def canonical_name(name: str) -> str:
    """A method's name as tables write it, given in any case; an unknown name comes back unchanged."""
    if is_known(name):
        return name
    return {known.casefold(): known for known in list_methods()}.get(name.casefold(), name)


def find_entry(name: str, *, importing: bool = True) -> Entry:
    """The method of a name in any case, or the error with the nearest spelling.

    An installed package's method is imported, unless that is not wanted; nothing else is.
    """
    name = canonical_name(name)
    if importing and not is_known(name) and name in (waiting := _not_imported()):
        import_plugin(waiting[name])
    known = cards()
    if name in known:
        return Entry(name, known[name].summary, known[name])
    if name not in _presets():
        raise unknown("method", name, list_methods())
    preset = dict(_presets()[name])
    summary, base = preset.pop("summary"), known[preset.pop("base")]
    return Entry(name, summary, base, preset)


def check_there(whose: str, name: Any, origin: Any) -> None:
    """Raise if a stored method is one from outside that is not known here; `origin` is where it was then."""
    if isinstance(name, str) and isinstance(origin, str) and origin and canonical_name(name) not in list_methods():
        raise MissingMethodError(whose, name, origin)


def check_preset(entry: Entry, options: dict[str, Any]) -> None:
    """Raise if an option contradicts the method's preset: a row of a table must be what its name says."""
    for key, value in entry.fixed.get("method", {}).items():
        if options.get(key, value) != value:
            raise AfieldError(f"method '{entry.name}' means method.{key} = {value}, not {options[key]}")


def check_sources(entry: Entry, num_sources: int) -> None:
    """Raise unless the task has as many sources as the method needs."""
    needed = entry.card.min_sources
    if num_sources < needed:
        enough = sorted(name for name, card in cards().items() if card.min_sources <= num_sources)
        hint = f"; with {num_sources}: {', '.join(enough)}" if enough else ""
        raise AfieldError(f"method '{entry.name}' needs at least {needed} source domains, not {num_sources}{hint}")


def check_target(entry: Entry, kind: str) -> None:
    """Raise if the method needs target images and the task shows none."""
    if entry.card.needs_target and kind != "uda":
        raise AfieldError(f"method '{entry.name}' needs target images in training, which a {kind} task does not have")
