"""Built arrays on disk: written whole or not at all, and checked before they are used."""

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from afield.files import remove_leftovers, replacing

Arrays = dict[str, NDArray[Any]]

_DIGEST = "sha256"
SECONDS_OF_A_DAY = 24 * 60 * 60
"""Half-written files older than this were left by a kill: nothing takes so long to write."""


def cache_folder() -> Path:
    """The folder named by the environment variable AFIELD_CACHE, or else the user's cache folder."""
    return Path(os.environ.get("AFIELD_CACHE") or user_cache_dir("afield"))


def load_or_build(
    key: str, build: Callable[[], Mapping[str, NDArray[Any]]], takes: str = "a few seconds", *, compress: bool = False
) -> Arrays:
    """The arrays cached under a key; where there are none, or they are damaged, those that `build` makes."""
    path = cache_folder() / f"{key}.npz"
    if path.exists():
        try:
            return _read(path)
        except Exception as error:  # a damaged archive can fail in any way, and every way is mended by building again
            warnings.warn(f"cached data in {path} is damaged ({error}); building it again", stacklevel=3)
    if sys.stderr.isatty():
        print(f"building {key}: once, {takes}", file=sys.stderr, flush=True)
    arrays = dict(build())
    try:
        _write(path, arrays, np.savez_compressed if compress else np.savez)
    except OSError as error:
        warnings.warn(f"cannot cache data in {path} ({error}); it will be built again next time", stacklevel=3)
    return arrays


def _read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if str(arrays.pop(_DIGEST)) != _digest(path.stem, arrays):
        raise ValueError("its checksum does not match")
    return arrays


def _write(path: Path, arrays: Arrays, save: Callable[..., None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path, older_than=SECONDS_OF_A_DAY)
    # Two processes that build at once replace each other's equal result.
    with replacing(path) as temporary, temporary.open("wb") as handle:
        save(handle, allow_pickle=False, **{_DIGEST: np.array(_digest(path.stem, arrays))}, **arrays)


def _digest(key: str, arrays: Arrays) -> str:
    """SHA-256 over the key too, so that a file copied to another name is noticed."""
    digest = hashlib.sha256(key.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
