"""Every method by the name tables use: the registered ones, and the presets that set some of their options."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from afield.errors import AfieldError, unknown
from afield.methods import Method, Registration, Shape, find_method, registered_methods
from afield.networks import DIGIT_NETWORK, NetworkOptions
from afield.options import validated

PRESETS = files("afield") / "presets"


@dataclass(frozen=True)
class Entry:
    """A method as tables name it: a registered method and the options its preset sets."""

    name: str
    summary: str
    registration: Registration
    fixed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What its preset sets, by section of the config. Of these, the method's own options are what the name means."""

    def as_dict(self) -> dict[str, Any]:
        """What `afield methods --json` says of it."""
        method = self.registration.method
        return {
            "name": self.name,
            "summary": self.summary,
            "tasks": ["uda"] if method.needs_target else ["uda", "dg"],
            "needs_target": method.needs_target,
            "min_sources": method.min_sources,
            "reference": self.registration.reference,
            "file": self.registration.file,
            "sets": {f"{section}.{key}": value for section, keys in self.fixed.items() for key, value in keys.items()},
        }


@cache
def _presets() -> dict[str, dict[str, Any]]:
    folder = PRESETS / "methods"
    return {item.name.removesuffix(".toml"): tomllib.loads(item.read_text("utf-8")) for item in folder.iterdir()}


def list_methods() -> list[str]:
    """The names that `train`, `create_method` and tables take."""
    return sorted({*registered_methods(), *_presets()})


def find_entry(name: str) -> Entry:
    """The method of a name, or the error with the nearest spelling."""
    if name in registered_methods():
        registration = find_method(name)
        return Entry(name, registration.summary, registration)
    if name not in _presets():
        raise unknown("method", name, list_methods())
    preset = dict(_presets()[name])
    summary, base = preset.pop("summary"), find_method(preset.pop("base"))
    return Entry(name, summary, base, preset)


def create_method(
    name: str,
    *,
    backbone: str = DIGIT_NETWORK,
    num_classes: int,
    num_sources: int,
    image_size: int | None = None,
    network: dict[str, Any] | None = None,
    **options: Any,
) -> Method:
    """Build a method by name, with random (or timm's ImageNet) weights.

    `network` takes the other keys of a config's [network] table, `options` those of its [method] table. Images are
    32 x 32 for the digit network and 224 x 224 for timm's unless `image_size` says otherwise.

    >>> method = create_method("far", num_classes=10, num_sources=4)
    """
    entry = find_entry(name)
    check_sources(entry, num_sources)
    if num_classes < 2 or (image_size is not None and image_size < 1):
        raise AfieldError(f"a method needs two classes or more, and images with pixels: {num_classes}, {image_size}")
    method = entry.registration.method
    check_preset(entry, options)
    chosen = {"backbone": backbone, **entry.fixed.get("network", {}), **(network or {})}
    network_options = validated(NetworkOptions, "network", chosen)
    usual_size = 32 if network_options.backbone == DIGIT_NETWORK else 224
    shape = Shape(
        network_options,
        usual_size if image_size is None else image_size,
        num_classes,
        num_sources,
    )
    return method(shape, validated(method.Options, "method", {**entry.fixed.get("method", {}), **options}))


def check_preset(entry: Entry, options: dict[str, Any]) -> None:
    """Raise if an option contradicts the preset it comes with: a table's row must be what its name says."""
    for key, value in entry.fixed.get("method", {}).items():
        if options.get(key, value) != value:
            raise AfieldError(f"method '{entry.name}' means method.{key} = {value}, and {options[key]} was asked for")


def check_sources(entry: Entry, num_sources: int) -> None:
    """Raise unless the task has as many sources as the method needs."""
    needed = entry.registration.method.min_sources
    if num_sources < needed:
        raise AfieldError(f"method '{entry.name}' needs at least {needed} source domains, not {num_sources}")


def check_target(entry: Entry, kind: str) -> None:
    """Raise if the method needs target images and the task shows none."""
    if entry.registration.method.needs_target and kind != "uda":
        raise AfieldError(f"method '{entry.name}' needs target images in training, which a {kind} task does not have")
