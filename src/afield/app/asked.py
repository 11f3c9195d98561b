"""The config of a run, from the options and settings a user gave. Nothing here imports torch."""

import os
from pathlib import Path
from typing import Any

from afield.config.catalogue import check_there
from afield.config.data import OWN_PRESETS, DataOptions
from afield.config.layers import (
    Config,
    Values,
    by_section,
    check_same,
    completed,
    divided,
    merge,
    read_config,
    resolve,
    stack,
)
from afield.config.network import NetworkOptions
from afield.config.options import validated
from afield.config.outside import followed
from afield.config.upgrade import upgraded
from afield.data.domain import DomainSet
from afield.data.open import open_data, suggested_settings
from afield.errors import AfieldError
from afield.results.folder import RunFolder, first_event

NAMED = {
    "data": "data.name", "task": "task.kind", "target": "task.target", "sources": "task.sources",
    "method": "method.name", "backbone": "network.backbone", "pretrained": "network.pretrained",
    "weights": "network.weights", "steps": "training.steps", "lr": "training.lr",
    "batch_size": "training.batch_size", "device": "training.device", "seed": "training.seed",
}  # fmt: skip
"""The config keys that have an option on the command line and an argument in `afield.train`, by its name."""


def asked_layers(config: str | Path | None, settings: dict[str, Any] | None, **named: Any) -> list[Values]:
    """The layers of a config that a user gives: a file, values by the names in NAMED (None: not given), single keys."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in named.items()}
    given = by_section({NAMED[name]: value for name, value in plain.items() if value is not None})
    return [read_layer(Path(config)) if config else {}, followed(given), followed(by_section(settings or {}))]


def read_layer(path: Path) -> Values:
    """A config file of the user's. One in a run's folder is that run's, and no reference in it is followed."""
    values, folder = read_config(path), RunFolder(path.parent)
    return values if path.name == folder.config.name and folder.holds_run else followed(values)


def read_stored(folder: RunFolder) -> Values:
    """The config of the run in a folder, whose method must be known: nothing is imported because a folder says so."""
    stored = upgraded(read_config(folder.config))
    section = stored.get("method")
    name = section.get("name") if isinstance(section, dict) else None
    check_there("the run's", name, first_event(folder.records).get("origin"))
    return stored


def check_early(layers: list[Values], stored: list[Values]) -> Config:
    """Raise what is wrong with a config before any data is loaded, which may take minutes; or return a config.

    Which preset suits a user's own images is not known yet, so all of them are tried: it is an error only if every one
    fails. The config is that of the first preset that does not.
    """
    options, errors = data_options(*stored, *layers), []
    known = options.preset or options.name in OWN_PRESETS
    for preset in [{}] if known else [{"data": {"preset": name}} for name in ("", "photos", "small")]:
        try:
            config = resolve(preset, *stored, *layers)
        except AfieldError as error:
            errors.append(error)
        else:
            if not stored:  # a checkpoint has its own
                check_weights(config.network)
            return config
    raise errors[0]


def check_weights(options: NetworkOptions) -> None:
    """Raise unless the file of weights that the backbone is to start from exists."""
    path = os.path.expanduser(options.weights)  # noqa: PTH111 - no error where there is no such user
    if options.weights and not os.path.isfile(path):  # noqa: PTH113 - false, not an error, for what can be no path
        reason = "is a folder" if os.path.isdir(path) else "there is no such file"  # noqa: PTH112
        raise AfieldError(f"cannot read network.weights: {options.weights}: {reason}")


def data_options(*layers: Values) -> DataOptions:
    """The data options in layers of a config."""
    return validated(DataOptions, "data", stack(layers)["data"])


def choose_config(domains: DomainSet, layers: list[Values], stored: list[Values]) -> Config:
    """The config of a run: the given values over the preset that suits the data; for a resumed run the stored one."""
    if not stored:
        return resolve(suggested_settings(domains, data_options(*layers)), *layers)
    config, given = resolve(*map(completed, stored)), merge(*layers)
    check_same(config, given)
    return divided(config, given)


def check_like_before(folder: RunFolder, layers: list[Values], what: str, way: str) -> None:
    """Raise if the run in a folder has other settings than it would have now; `what` is what the folder above holds."""
    if not folder.config.exists():
        return
    try:
        check_same(resolve(completed(read_stored(folder))), merge(*layers))
    except AfieldError as error:
        raise AfieldError(f"{folder.path.parent} holds {what} with other settings; {way}: {error}") from error


def config_to_be(layers: list[Values]) -> Config:
    """The config that a run would have; images are looked at only where they decide about it."""
    check_early(layers, [])
    options = data_options(*layers)
    return resolve(*layers) if options.name in OWN_PRESETS else choose_config(open_data(options), layers, [])
