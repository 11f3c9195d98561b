"""From images in any form (files, PIL images, arrays, tensors) to what training would have seen."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from afield.config.data import Oblong
from afield.data.folder import images_below
from afield.data.pixels import load_image, make_square, read_square
from afield.errors import AfieldError

CHANNELS = 4
"""So many an image may have at most: of more, the last axis is its width."""


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as given, folders searched through; a missing path or a folder without images is an error."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = images_below(path)
            if not inside:
                raise AfieldError(f"no images in folder {path}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise AfieldError(f"no file or folder {path}")
    return found


def as_images(images: Any, size: int, oblong: Oblong = "squash") -> Iterator[Tensor]:
    """Each image as float (3, size, size) in 0..1."""
    if isinstance(images, str | Path | Image.Image):
        images = [images]
    elif isinstance(images, np.ndarray | Tensor) and _is_one(images):
        images = images[None]
    elif isinstance(images, bytes) or not isinstance(images, Sequence | np.ndarray | Tensor):
        raise AfieldError(f"images must be paths, PIL images, arrays or tensors, not {type(images).__name__}")
    for image in images:
        yield read_image(Path(image), size, oblong) if isinstance(image, str | Path) else _fit(image, size, oblong)


def _is_one(images: NDArray[Any] | Tensor) -> bool:
    """Whether an array is one image, and not several grey ones without an axis of channels."""
    return images.ndim < 4 and not (isinstance(images, np.ndarray) and images.ndim == 3 and images.shape[2] > CHANNELS)


def read_image(path: Path, size: int, oblong: Oblong = "squash") -> Tensor:
    """An image file as float (3, size, size) in 0..1, of the very bytes that training would see."""
    return _from_bytes(read_square(path, size, oblong))


def _fit(image: Any, size: int, oblong: Oblong) -> Tensor:
    """One image in memory as float (3, size, size) in 0..1."""
    if isinstance(image, Image.Image):
        load_image(image)
        return _from_bytes(make_square(image, size, oblong))
    values = _values(image)
    if not values.size:
        raise AfieldError(f"an image of {values.shape[0]} x {values.shape[1]} pixels is empty")
    if values.dtype.kind == "f":
        if not (values.min() >= 0 and values.max() <= 1):
            raise AfieldError(f"float images hold values in 0..1, not {values.min():g}..{values.max():g}")
        if values.shape[:2] == (size, size):
            return torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)
        values = np.rint(255 * values).astype(np.uint8)  # as an image file would have it
    return _from_bytes(make_square(Image.fromarray(np.ascontiguousarray(values)), size, oblong))


def _values(image: Any) -> NDArray[Any]:
    """An array or a tensor as (H, W, 3) of bytes or floats."""
    array: NDArray[Any]
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] not in (1, 3):
            raise AfieldError(f"an image tensor has shape (3, H, W) or (1, H, W), not {tuple(image.shape)}")
        image = image.detach().permute(1, 2, 0).cpu()
        array = (image.float() if image.is_floating_point() else image).numpy()
    elif isinstance(image, np.ndarray):
        array = image[..., None] if image.ndim == 2 else image
        if array.ndim != 3 or array.shape[2] not in (1, 3):
            raise AfieldError(f"an image array has shape (H, W, 3), (H, W, 1) or (H, W), not {array.shape}")
    else:
        raise AfieldError(f"an image is a path, a PIL image, an array or a tensor, not {type(image).__name__}")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise AfieldError(f"image values are uint8 (0..255) or float (0..1), not {array.dtype}")
    return np.broadcast_to(array, (*array.shape[:2], 3))


def _from_bytes(pixels: NDArray[np.uint8]) -> Tensor:
    """(H, W, 3) of bytes as float (3, H, W) in 0..1."""
    return torch.tensor(pixels).permute(2, 0, 1).float() / 255
