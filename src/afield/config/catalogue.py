"""Every method by the name tables use: the registered ones, and the presets that set some of their options."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from afield.config.cards import Card, cards
from afield.errors import AfieldError, unknown

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


def list_methods() -> list[str]:
    """The names that `train`, `create_method` and tables take."""
    return sorted({*cards(), *_presets()})


def canonical_name(name: str) -> str:
    """A method's name as tables write it, given in any case; an unknown name comes back unchanged."""
    if name in cards() or name in _presets():
        return name
    return {known.casefold(): known for known in list_methods()}.get(name.casefold(), name)


def find_entry(name: str) -> Entry:
    """The method of a name in any case, or the error with the nearest spelling."""
    known, name = cards(), canonical_name(name)
    if name in known:
        return Entry(name, known[name].summary, known[name])
    if name not in _presets():
        raise unknown("method", name, list_methods())
    preset = dict(_presets()[name])
    summary, base = preset.pop("summary"), known[preset.pop("base")]
    return Entry(name, summary, base, preset)


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
