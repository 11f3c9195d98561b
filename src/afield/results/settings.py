"""The settings of a recorded run that differ from those of its protocol and method: they make a row of their own."""

import json
from functools import cache, lru_cache
from typing import Any

from afield.config.cards import Card, cards
from afield.config.catalogue import is_known
from afield.config.layers import Values, resolve
from afield.config.plan import HOW_NOT_WHAT
from afield.config.protocols import Protocol

# Keys that differ between the runs of one row, or that say how a run was carried out.
NO_MATTER = {
    "data.name", "task.target", "method.name", "training.seed",
    *(f"{section}.{key}" for section, keys in HOW_NOT_WHAT.items() for key in keys),
}  # fmt: skip


SAID = {"training.lr": "rate"}
"""By a setting's key, the word with which a row's label may name the setting, as in `far, rate 0.02`."""

LARGEST = 2**53  # up to here, every whole number is a float too


def usual_settings(preset: str, method: str, protocol: Protocol | None) -> dict[str, str]:
    """The settings of a run that names nothing but its preset, method and protocol, as JSON by `section.key`.

    A table imports no method to learn them: one from outside is known only where something else has imported it.
    """
    return _usual_settings(preset, method, protocol, cards().get(method))


@cache
def _usual_settings(preset: str, method: str, protocol: Protocol | None, _card: Card | None) -> dict[str, str]:
    """The same once for each method that is registered under the name, as it may be registered anew."""
    known = is_known(method)
    task = {"kind": protocol.task, "sources": list(protocol.sources)} if protocol else {"kind": "uda"}
    config = resolve({"data": {"preset": preset}, "task": task, "method": {"name": method if known else "far"}})
    # An unknown method has no usual options, so all options of its runs are named.
    return flat({**config.as_dict(), **({} if known else {"method": {}})})


def unusual_settings(config: Values, protocol: Protocol | None) -> dict[str, str]:
    """The settings of a stored config that are not the usual ones. Options it does not have yet do not count."""
    usual = usual_settings(config["data"]["preset"], config["method"]["name"], protocol)
    return {key: value for key, value in flat(config).items() if key not in NO_MATTER and usual.get(key) != value}


def is_said(label: str, key: str, value: str) -> bool:
    """Whether a label already names a setting, as `far, rate 0.02` does."""
    return key in SAID and f"{SAID[key]} {value}" in label.split(", ")


def flat(config: Values) -> dict[str, str]:
    """Values as JSON by `section.key`."""
    return {f"{section}.{key}": _json(value) for section, values in config.items() for key, value in values.items()}


def _json(value: Any) -> str:
    return _short_json(value) if value.__hash__ else json.dumps(value)


@lru_cache(maxsize=10_000, typed=True)  # the runs of a long file have the same few values
def _short_json(value: Any) -> str:
    # A config does not distinguish 1 and 1.0, so they must be written alike.
    return json.dumps(float(value) if type(value) is int and abs(value) < LARGEST else value)


def written(settings: dict[str, str]) -> str:
    """Settings in one line, such as `training.steps=3900, method.gate=conv`."""
    values = {key: value.strip('"').removesuffix(".0") for key, value in settings.items()}
    return ", ".join(f"{key}={value}" for key, value in values.items())
