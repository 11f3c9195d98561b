"""Opening the data a config names: a registered set, a folder, a manifest, or a Hugging Face data set."""

from pathlib import Path
from typing import Any

from afield.config.data import DataOptions
from afield.data.domain import DomainSet
from afield.data.packed import packed
from afield.data.registry import builders, load_data
from afield.errors import AfieldError, unknown

SMALL_SIDE = 64
"""Images whose shorter side is at most this long are small: a network for photographs would be of no use to them."""


def open_data(options: DataOptions) -> DomainSet:
    """The data set an option names. Checked as far as that goes without decoding everything."""
    name = options.name
    if name in builders():
        return load_data(name)
    path = Path(name)
    if path.exists():
        raise AfieldError(f"{path} cannot be opened yet")
    raise unknown("data set", name, builders())


def ready_to_train(data: DomainSet, options: DataOptions) -> DomainSet:
    """The data set at the config's image size, image files in front of a packed cache; the same objects if asked again.

    That they are the same lets many runs on one data set share what lies on the device.
    """
    made = data.__dict__.setdefault("_ready", {})
    key = options.image_size, options.oblong, options.cache_gb
    if key not in made:
        made[key] = data.sized(*key[:2]).mapped(lambda images: packed(images, options.cache_gb))
    ready: DomainSet = made[key]
    return ready


def suggested_settings(data: DomainSet, options: DataOptions) -> dict[str, dict[str, Any]]:
    """The lowest layer of a config: the preset that suits the images, and the size of images that have one size."""
    preset = options.preset or data.preset or "small"
    size = {"image_size": data.image_size} if data.image_size else {}
    return {"data": {"preset": preset, **size}}
