"""The config of a run: defaults, then the data set's preset, the method's preset, a file, and single keys, in turn."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from afield.catalogue import PRESETS, Entry, check_sources, check_target, find_entry
from afield.domains import TaskKind
from afield.errors import AfieldError, unknown
from afield.methods import MethodOptions
from afield.networks import DIGIT_NETWORK, NetworkOptions, check_backbone
from afield.options import validated
from afield.training.options import TrainingOptions

Values = dict[str, dict[str, Any]]


class DataOptions(BaseModel):
    """Which images."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field("digits", description="a data set's name; see `afield data`")


class TaskOptions(BaseModel):
    """Which domains are learned from, and which is the target."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: TaskKind = Field("uda", description="'uda' sees the target's images without labels, 'dg' never sees them")
    target: str | None = Field(None, description="the domain to work in")
    sources: tuple[str, ...] = Field((), description="labelled domains; none named means all but the target")


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

    Whether the data set exists is not asked: a checkpoint's config is valid wherever its model is used.
    """
    given = merge(*layers)
    data = validated(DataOptions, "data", given["data"])
    name = given["method"].pop("name", "far")
    if not isinstance(name, str):
        raise AfieldError(f"config key 'method.name': must be a method's name, not {name!r}")
    entry = find_entry(name)
    check_preset(entry, given)
    values = merge(data_preset(data.name), entry.fixed, given)
    task = validated(TaskOptions, "task", values["task"])
    check_target(entry, task.kind)
    if task.sources:
        check_sources(entry, len(task.sources))
    network = validated(NetworkOptions, "network", values["network"])
    check_backbone(network.backbone)
    if network.pretrained and network.backbone == DIGIT_NETWORK:
        raise AfieldError("config key 'network.pretrained': there are no ImageNet weights for the digit network")
    method = validated(entry.registration.method.Options, "method", values["method"])
    training = validated(TrainingOptions, "training", values["training"])
    return Config(data, task, network, name, method, training)


def check_preset(entry: Entry, given: Values) -> None:
    """Raise if a value contradicts the preset it comes with: a table's row must be what its name says."""
    for section, fixed in entry.fixed.items():
        for key, value in fixed.items():
            if given[section].get(key, value) != value:
                asked = given[section][key]
                raise AfieldError(f"method '{entry.name}' means {section}.{key} = {value}, and {asked} was asked for")


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
    """The network and recipe that suit a data set, if the package has them."""
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
