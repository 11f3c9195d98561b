"""Opening the data a config names: a registered set, a folder, a manifest, or a Hugging Face data set."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from afield.config.data import DataOptions
from afield.config.layers import data_preset
from afield.data.collect import make_domain_set
from afield.data.domain import DomainSet
from afield.data.entries import Listing
from afield.data.folder import list_folder
from afield.data.hub import PREFIX, is_saved, list_hub
from afield.data.manifest import MANIFEST_SUFFIXES, list_manifest
from afield.data.packed import packed
from afield.data.registry import builders, load_data
from afield.errors import AfieldError, unknown

SMALL_SIDE = 64
"""Images whose shorter side is at most this long are small: a network for photographs would be of no use to them."""

SIZES = range(8, 2049)
"""The values that the option `image_size` takes."""

_opened: dict[tuple[object, ...], DomainSet] = {}
KEPT = 2


def open_data(options: DataOptions) -> DomainSet:
    """The data set an option names, every image of it looked at; asked again for unchanged files, the same object."""
    if options.name in builders():
        return load_data(options.name)
    listing = _list(options)
    key = (options.name, options.skip_bad, options.workers, listing.fingerprint())
    if key not in _opened:
        made = make_domain_set(options.name, listing, skip_bad=options.skip_bad, workers=options.workers)
        for old in list(_opened)[: len(_opened) + 1 - KEPT]:
            del _opened[old]
        _opened[key] = made
    return _opened[key]


def open_own(options: DataOptions, hint: str = "data (--data) says where they are now") -> DomainSet:
    """The data set that a run was trained on; where it cannot be opened, the error says whose it is, and the hint."""
    try:
        return open_data(options)
    except AfieldError as error:
        raise AfieldError(f"the run's images cannot be opened: {error}; {hint}") from error


def _list(options: DataOptions) -> Listing:
    """The images of a data set that is not registered."""
    name = os.path.expanduser(options.name)  # noqa: PTH111 - no shell does so after an equals sign
    path = Path(name)
    columns = {"image": options.image_column, "domain": options.domain_column, "label": options.label_column}
    if name.startswith(PREFIX):
        return list_hub(name, **columns)
    if os.path.isdir(name):  # noqa: PTH112 - false, not an error, for what can be no path
        return list_hub(name, **columns) if is_saved(path) else list_folder(path)
    if os.path.exists(name):  # noqa: PTH110
        if path.suffix.lower() in MANIFEST_SUFFIXES:
            return list_manifest(path, skip_bad=options.skip_bad, **columns)
        raise AfieldError(f"{name} is neither a folder of images nor a manifest ({', '.join(MANIFEST_SUFFIXES)})")
    if any(sign in name for sign in (os.sep, "/", ".")):
        raise AfieldError(f"no such file or folder: {name}")
    raise AfieldError(f"{unknown('data set', name, builders())}; nor is there a file or folder of that name")


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
    preset = options.preset or data.preset
    side = data.image_size
    if side is None or not preset:
        sizes = np.concatenate(
            [split.images.sizes() for domain in data.domains.values() for split in domain.splits.values()]
        )
        preset = preset or ("small" if np.median(sizes.min(axis=1)) <= SMALL_SIDE else "photos")
        side = int(sizes[0, 0]) if (sizes == sizes[0, 0]).all() else None
    # A preset that is not made for images of any size knows the size of its own; `small` has one for want of another.
    sized = preset != "small" and "image_size" in data_preset(preset).get("data", {})
    size = {"image_size": side} if side in SIZES and not sized else {}
    return {"data": {"preset": preset, **size}}
