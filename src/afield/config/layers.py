"""The config of a run: defaults, then the data set's preset, the method's preset, a file, and single keys, in turn."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from afield.config.catalogue import PRESETS, check_preset, check_sources, check_target, find_entry
from afield.config.data import OWN_PRESETS, DataOptions, TaskOptions
from afield.config.network import NetworkOptions
from afield.config.options import MethodOptions, validated
from afield.config.training import TrainingOptions
from afield.errors import AfieldError, unknown

Values = dict[str, dict[str, Any]]


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
        """Plain values by section, as TOML, JSON and checkpoints hold them. What is not set is left out."""
        sections: dict[str, BaseModel] = {
            "data": self.data, "task": self.task, "network": self.network,
            "method": self.method, "training": self.training,
        }  # fmt: skip
        values = {name: options.model_dump(mode="json", exclude_none=True) for name, options in sections.items()}
        values["method"] = {"name": self.method_name, **values["method"]}
        return values

    def as_toml(self) -> str:
        """The config as a file that `--config` takes."""
        return tomli_w.dumps(self.as_dict())


SECTIONS = ("data", "task", "network", "method", "training")


def resolve(*layers: Values) -> Config:
    """The config of layers of given values, later ones first in rank, over the presets they name.

    Neither the data set nor the backbone is looked for: a checkpoint's config is valid wherever its model is used, and
    a table is made without torch.
    """
    given = stack(layers)
    data = validated(DataOptions, "data", given["data"])
    given["data"]["preset"] = preset = data.preset or OWN_PRESETS.get(data.name, "")
    name = given["method"].pop("name", "far")
    entry = find_entry(name)
    check_preset(entry, given["method"])
    values = merge(data_preset(preset), entry.fixed, given)
    config = typed(name, values)
    check_target(entry, config.task.kind)
    if config.task.sources:
        check_sources(entry, len(config.task.sources))
    return config


def typed(name: str, values: Values) -> Config:
    """Values as options; what they leave out is at its default."""
    return Config(
        data=validated(DataOptions, "data", values["data"]),
        task=validated(TaskOptions, "task", values["task"]),
        network=validated(NetworkOptions, "network", values["network"]),
        method_name=name,
        method=validated(find_entry(name).card.options, "method", values["method"]),
        training=validated(TrainingOptions, "training", values["training"]),
    )


def completed(stored: Values) -> Values:
    """A stored config with the defaults of the options that are younger than it.

    Presets are not asked: what they set today is not what an older run was trained with.
    """
    values = merge(stored)
    name = values["method"].pop("name")
    return typed(name, values).as_dict()


def stack(layers: Iterable[Values]) -> Values:
    """Layers merged; where one names another method than those below it, what they say of the methods goes.

    So that the stored config of one method's run, with another method named on top, is that other method.
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
    """One set of values: a later layer's key replaces an earlier one's."""
    merged: Values = {section: {} for section in SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            if section not in merged:
                raise unknown("config section", section, SECTIONS)
            if not isinstance(values, dict):
                raise AfieldError(f"config section '{section}' must be a table of keys, not {values!r}")
            merged[section] |= values
    return merged


def data_preset(name: str) -> Values:
    """The network and recipe that suit a kind of images, if the package has them."""
    # Looked up, not joined to a path: the name may come from a stranger's checkpoint.
    files = {file.name: file for file in (PRESETS / "data").iterdir()}
    file = files.get(f"{name}.toml")
    return tomllib.loads(file.read_text("utf-8")) if file else {}


def read_config(path: Path) -> Values:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise AfieldError(f"cannot read config file {path}: {getattr(error, 'strerror', None) or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise AfieldError(f"config file {path} is not valid TOML: {error}") from error


def parse_assignment(text: str) -> dict[str, Any]:
    """One `section.key=value` of the command line; the value as TOML writes it, or a bare word."""
    path, equals, value = text.partition("=")
    if not equals or "." not in path:
        raise AfieldError(f"--set takes section.key=value, not '{text}'")
    if "\n" in value:
        raise AfieldError(f"--set takes one section.key=value, not '{text}'")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return {path.strip(): parsed}


def by_section(settings: dict[str, Any]) -> Values:
    """Settings by `section.key`, or by section and then key, as a layer of a config."""
    values: Values = {}
    for path, value in settings.items():
        section, dot, key = path.partition(".")
        given = {key: value} if dot else value
        if not isinstance(given, dict):
            raise AfieldError(f"a setting's name is section.key, not '{path}'")
        values.setdefault(section, {}).update(given)
    return values


def check_same(config: Config, given: Values) -> None:
    """Raise if a resumed run is asked to be another run than the one stored."""
    stored = config.as_dict()
    for section, values in given.items():
        for key, value in values.items():
            has = stored[section].get(key)
            if has != (list(value) if isinstance(value, tuple) else value):
                raise AfieldError(f"cannot resume with {section}.{key} = {value}: the run there was begun with {has}")
