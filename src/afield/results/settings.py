"""What a recorded run sets otherwise than its protocol and its method do: such a run is a row of its own."""

import json
from functools import cache
from typing import Any

from afield.config.catalogue import list_methods
from afield.config.layers import Values, resolve
from afield.config.plan import HOW_NOT_WHAT
from afield.config.protocols import Protocol

# What tells the runs of one row, or how they were carried out.
NO_MATTER = {
    "data.name", "task.target", "method.name", "training.seed",
    *(f"{section}.{key}" for section, keys in HOW_NOT_WHAT.items() for key in keys),
}  # fmt: skip


@cache
def usual_settings(preset: str, method: str, protocol: Protocol | None) -> dict[str, str]:
    """What a run has of which nothing but preset, method and protocol is said: each key with its value as JSON."""
    known = method in list_methods()
    task = {"kind": protocol.task, "sources": list(protocol.sources)} if protocol else {"kind": "uda"}
    config = resolve({"data": {"preset": preset}, "task": task, "method": {"name": method if known else "far"}})
    # Of a method that is not there nothing is usual: all that its runs set is named.
    return flat({**config.as_dict(), **({} if known else {"method": {}})})


def unusual_settings(config: Values, protocol: Protocol | None) -> dict[str, str]:
    """The settings of a stored config that are not the usual ones. An option younger than the config is not unusual."""
    usual = usual_settings(config["data"]["preset"], config["method"]["name"], protocol)
    return {key: value for key, value in flat(config).items() if key not in NO_MATTER and usual.get(key) != value}


def flat(config: Values) -> dict[str, str]:
    """By `section.key`, each value as JSON writes it."""
    return {f"{section}.{key}": _json(value) for section, values in config.items() for key, value in values.items()}


def _json(value: Any) -> str:
    # So that 1 and 1.0, which a config does not tell apart, are one value.
    return json.dumps(float(value) if type(value) is int else value)


def written(settings: dict[str, str]) -> str:
    """Settings as people write them: `training.steps=3900, method.gate=conv`."""
    values = {key: value.strip('"').removesuffix(".0") for key, value in settings.items()}
    return ", ".join(f"{key}={value}" for key, value in values.items())
