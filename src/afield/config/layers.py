"""The config of a run, in layers: defaults, the data set's preset, the method's preset, a file, then single keys."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from afield.config.catalogue import (
    PRESETS,
    Entry,
    canonical_name,
    check_preset,
    check_sources,
    check_target,
    find_entry,
)
from afield.config.data import OWN_PRESETS, DataOptions, TaskOptions
from afield.config.network import DIGIT_NETWORK, NetworkOptions
from afield.config.options import MethodOptions, validated
from afield.config.selectors import check_images
from afield.config.training import TrainingOptions
from afield.errors import AfieldError, unknown
from afield.files import read_text

Values = dict[str, dict[str, Any]]
MOST_BYTES = 1_000_000
"""Of a config file; a file with about a hundred options has ten thousand."""


@dataclass(frozen=True)
class Config:
    """A resolved, valid config."""

    data: DataOptions
    task: TaskOptions
    network: NetworkOptions
    method_name: str
    method: MethodOptions
    training: TrainingOptions

    def as_dict(self) -> Values:
        """Plain values by section, as stored in TOML, JSON and checkpoints. Keys without a value are left out."""
        sections: dict[str, BaseModel] = {
            "data": self.data, "task": self.task, "network": self.network,
            "method": self.method, "training": self.training,
        }  # fmt: skip
        values = {name: options.model_dump(mode="json", exclude_none=True) for name, options in sections.items()}
        values["method"] = {"name": self.method_name, **values["method"]}
        return values

    def as_toml(self) -> str:
        """The config as the text of a file that `afield.train(config=...)` and `afield train --config` read."""
        return tomli_w.dumps(self.as_dict())


SECTIONS = ("data", "task", "network", "method", "training")
PROCESSES = ("devices", "nodes")
"""Keys of the section training with the number of processes that share a batch: they may change when a run resumes."""


def resolve(*layers: Values) -> Config:
    """The config from layers of given values on top of the presets they name; later layers override earlier ones.

    Whether the data set and the backbone exist is not checked: a checkpoint's config must be valid where its data is
    missing, and a table must not import torch.
    """
    given = stack(layers)
    data = validated(DataOptions, "data", given["data"])
    given["data"]["preset"] = preset = data.preset or OWN_PRESETS.get(data.name, "")
    name = given["method"].pop("name", "far")
    entry = find_entry(name)
    check_preset(entry, given["method"])
    values = merge(data_preset(preset), entry.fixed, given)
    network = given["network"]
    otherwise = network.get("weights") or network.get("backbone") == DIGIT_NETWORK
    if otherwise and "pretrained" not in network:
        values["network"].pop("pretrained", None)  # a preset's, which `weights` or the digit network overrides
    config = typed(entry, values)
    check_target(entry, config.task.kind)
    for selector in (*config.training.keep, *([config.training.stop_by] if config.training.patience else [])):
        check_images(selector, config.task.kind)
    if config.task.sources:
        check_sources(entry, len(config.task.sources))
    return config


def keeping(config: Config, selector: str) -> Config:
    """The config of a run that also keeps the checkpoint of this selector."""
    check_images(selector, config.task.kind)
    if selector == "last":
        return config  # which every run keeps
    kept = tuple(dict.fromkeys([*config.training.keep, selector]))
    return replace(config, training=config.training.model_copy(update={"keep": kept}))


def typed(entry: Entry, values: Values) -> Config:
    """The config of a method with these values; missing keys take their defaults."""
    return Config(
        data=validated(DataOptions, "data", values["data"]),
        task=validated(TaskOptions, "task", values["task"]),
        network=validated(NetworkOptions, "network", values["network"]),
        method_name=entry.name,
        method=validated(entry.card.options, "method", values["method"]),
        training=validated(TrainingOptions, "training", values["training"]),
    )


def completed(stored: Values, *, importing: bool = False) -> Values:
    """A stored config with defaults for the options that did not exist when it was stored.

    Presets are not applied: what they set today is not what an older run was trained with. Of an installed package's
    method that has not been imported, no default is known: `importing` says that it may be.
    """
    values = merge(stored)
    if not isinstance(name := values["method"].pop("name", None), str):
        raise AfieldError("config key 'method.name': a stored config must name its method")
    return typed(find_entry(name, importing=importing), values).as_dict()


def stack(layers: Iterable[Values]) -> Values:
    """Merge layers. Where a layer names another method than the layers before it, their method options are dropped.

    So a stored config of one method can be used as the base for another: `--config stored.toml --method other`.
    """
    given = merge()
    for layer in layers:
        old, new = given["method"].get("name"), merge(layer)["method"].get("name")
        if not isinstance(new, str | None):
            raise AfieldError(f"config key 'method.name': must be a method's name, not {new!r}")
        if old and new and old != new:
            given["method"] = {}
            leaving, coming = find_entry(old).fixed, find_entry(new).fixed
            for section, values in given.items():
                stale = {k for k, v in values.items() if leaving.get(section, {}).get(k) == v}
                given[section] = {k: v for k, v in values.items() if k not in stale | coming.get(section, {}).keys()}
        given = merge(given, layer)
    return given


def merge(*layers: Values) -> Values:
    """One set of values: keys in later layers override the same keys in earlier ones."""
    merged: Values = {section: {} for section in SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            if section not in merged:
                raise unknown("config section", section, SECTIONS)
            if not isinstance(values, dict):
                raise AfieldError(f"config section '{section}' must be a table of keys, not {values!r}")
            merged[section] |= values
    normalise_names(merged)
    return merged


def normalise_names(values: Values) -> None:
    """Write the method's and the task's names in the case that records and tables use."""
    for section, key, written in (("method", "name", canonical_name), ("task", "kind", str.lower)):
        given = values[section].get(key)
        if isinstance(given, str):
            values[section][key] = written(given)


def data_preset(name: str) -> Values:
    """The settings of a data preset; empty if there is no preset of that name."""
    # Looked up, not joined to a path: the name may come from a checkpoint that someone else wrote.
    return _data_presets().get(name, {})


@cache
def _data_presets() -> dict[str, Values]:
    files = (PRESETS / "data").iterdir()
    return {file.name.removesuffix(".toml"): tomllib.loads(file.read_text("utf-8")) for file in files}


def read_config(path: Path) -> Values:
    """The values of a TOML file."""
    try:
        return tomllib.loads(read_text(path, "config file", MOST_BYTES))
    except (ValueError, RecursionError) as error:  # also of numbers of thousands of digits, and of lists in lists
        raise AfieldError(f"config file {path} is not valid TOML: {error}") from error


def parse_assignment(text: str) -> dict[str, Any]:
    """Parse `section.key=value`; the value is TOML, or a word without quotes."""
    path, equals, value = text.partition("=")
    if not equals or "." not in path:
        raise AfieldError(f"a setting is written section.key=value, not '{text}'")
    if "\n" in value:
        raise AfieldError(f"a setting is one section.key=value on one line, not '{text}'")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    return {path.strip(): parsed}


def by_section(settings: dict[str, Any]) -> Values:
    """A layer of a config from settings such as {"training.steps": 3} or {"training": {"steps": 3}}."""
    values: Values = {}
    for path, value in settings.items():
        section, dot, key = path.partition(".")
        given = {key: value} if dot else value
        if not isinstance(given, dict):
            raise AfieldError(f"a setting's name is section.key, not '{path}'")
        values.setdefault(section, {}).update(given)
    return values


def among_any(values: Values) -> Values:
    """Values of a config without the keys in PROCESSES."""
    training = {key: value for key, value in values.get("training", {}).items() if key not in PROCESSES}
    return {**values, "training": training}


def divided(config: Config, given: Values) -> Config:
    """A run's config with the number of processes that is given for its remaining steps."""
    chosen = {key: value for key, value in given.get("training", {}).items() if key in PROCESSES}
    training = validated(TrainingOptions, "training", {**config.as_dict()["training"], **chosen})
    return replace(config, training=training)


def check_same(config: Config, given: Values) -> None:
    """Raise if a value given for a resumed run differs from the run's stored config."""
    stored, given = config.as_dict(), among_any(given)
    for section, values in given.items():
        for key, value in values.items():
            has = stored[section].get(key)
            if has != (list(value) if isinstance(value, tuple) else value):
                raise AfieldError(f"cannot resume with {section}.{key} = {value}: the run was started with {has}")
