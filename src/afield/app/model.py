"""A trained method ready for use: load it from a checkpoint and predict on images of any common form."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn.functional import interpolate

from afield.config.layers import Config, resolve
from afield.data.normalise import Normalise
from afield.data.preprocessing import Preprocessing
from afield.errors import AfieldError
from afield.methods import Method
from afield.methods.create import method_of
from afield.training.checkpoint import load_checkpoint

CHUNK = 256
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


class UnreadableImageError(AfieldError):
    """A file that should be an image is not one."""


class Model(nn.Module):
    """A trained method in evaluation mode, without the parts that only training needs.

    `model(images)` takes float tensors (N, 3, size, size) in 0..1 and gives class scores. `model.predict` takes images
    in any form and gives class names; `model.predict_proba` gives the probabilities.
    """

    def __init__(self, method: Method, preprocessing: Preprocessing, classes: tuple[str, ...], config: Config) -> None:
        super().__init__()
        self.method = method
        self.preprocessing = preprocessing
        self.normalise = Normalise(preprocessing)
        self.classes = classes
        self.config = config
        method.drop_training_parts()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (N, classes) of images in 0..1."""
        scores: Tensor = self.method(self.normalise(images))
        return scores

    def predict(self, images: Any) -> list[str]:
        """The class of each image: paths, PIL images, arrays or tensors, one or many."""
        return [self.classes[index] for index in self.predict_proba(images).argmax(dim=1).tolist()]

    @torch.inference_mode()
    def predict_proba(self, images: Any) -> Tensor:
        """Class probabilities (N, classes) of images in any form."""
        device = next(self.parameters()).device
        chunks = _chunks(as_images(images, self.preprocessing.image_size), CHUNK)
        probabilities = [self(torch.stack(chunk).to(device)).softmax(dim=1).cpu() for chunk in chunks]
        return torch.cat(probabilities) if probabilities else torch.zeros(0, len(self.classes))


def load(path: str | Path) -> Model:
    """The model of a checkpoint, on the CPU. Safe with files from strangers; anything but a checkpoint is an error."""
    checkpoint = load_checkpoint(Path(path))
    try:
        config = resolve({**checkpoint.config, "network": {**checkpoint.config["network"], "pretrained": False}})
        preprocessing = TypeAdapter(Preprocessing).validate_json(json.dumps(checkpoint.preprocessing), strict=True)
        if not all(isinstance(name, str) for name in checkpoint.classes) or min(preprocessing.std) <= 0:
            raise AfieldError("its classes are not names, or its normalisation divides by zero")
        # Weights come from the file: building must not disturb the caller's generators.
        with torch.random.fork_rng(devices=[]):
            sources = len(checkpoint.sources)
            method = method_of(config, preprocessing.image_size, len(checkpoint.classes), sources)
        method.load_state_dict(checkpoint.state["model"])
    except (AfieldError, RuntimeError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise AfieldError(f"{path} is damaged or from another version of afield: {reason}") from error
    return Model(method, preprocessing, checkpoint.classes, config)


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as given, folders searched through; a missing path or a folder without images is an error."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not inside:
                raise AfieldError(f"no images in folder {path}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise AfieldError(f"no file or folder {path}")
    return found


def as_images(images: Any, size: int) -> Iterator[Tensor]:
    """Each image as float (3, size, size) in 0..1."""
    if isinstance(images, str | Path | Image.Image):
        images = [images]
    elif isinstance(images, np.ndarray | Tensor) and images.ndim < 4:
        images = images[None]
    elif not isinstance(images, Sequence | np.ndarray | Tensor):
        raise AfieldError(f"images must be paths, PIL images, arrays or tensors, not {type(images).__name__}")
    for image in images:
        yield read_image(Path(image), size) if isinstance(image, str | Path) else _fit(_as_image(image), size)


def read_image(path: Path, size: int) -> Tensor:
    """An image file as float (3, size, size) in 0..1; whatever is wrong with it, the error names it."""
    try:
        with Image.open(path) as image:
            return _fit(_from_pil(image), size)
    except FileNotFoundError as error:
        raise AfieldError(f"no file {path}") from error
    except AfieldError as error:
        raise UnreadableImageError(f"cannot read image {path}: {error}") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableImageError(f"cannot read image {path}") from error


def _as_image(image: Any) -> Tensor:
    """One image in memory as float (3, H, W) in 0..1."""
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] != 3:
            raise AfieldError(f"an image tensor has shape (3, H, W), not {tuple(image.shape)}")
        return _scaled(image)
    raise AfieldError(f"an image is a path, a PIL image, an array or a tensor, not {type(image).__name__}")


def _from_pil(image: Image.Image) -> Tensor:
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        return _from_array(np.asarray(upright))
    if upright.mode.startswith("I"):  # more than 8 bits a pixel, which convert("RGB") would cut off at 255
        values = np.asarray(upright)
        return _from_array((values / (65535 if values.max(initial=0) > 255 else 255)).clip(0, 1))
    return _from_array(np.asarray(upright.convert("RGB")))


def _from_array(array: np.ndarray[Any, Any]) -> Tensor:
    if array.ndim == 2:
        array = np.stack([array] * 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3:
        raise AfieldError(f"an image array has shape (H, W, 3) or (H, W), not {array.shape}")
    if array.dtype.kind not in "uifb":
        raise AfieldError(f"image values are uint8 (0..255) or float (0..1), not {array.dtype}")
    return _scaled(torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).permute(2, 0, 1))


def _scaled(image: Tensor) -> Tensor:
    if image.dtype == torch.uint8:
        return image.float() / 255
    if not image.is_floating_point():
        raise AfieldError(f"image values are uint8 (0..255) or float (0..1), not {image.dtype}")
    if image.numel() and not (image.min() >= 0 and image.max() <= 1):
        raise AfieldError(f"float images hold values in 0..1, not {image.min():g}..{image.max():g}")
    return image.float()


def _fit(image: Tensor, size: int) -> Tensor:
    if not image.numel():
        raise AfieldError(f"an image of {image.shape[1]} x {image.shape[2]} pixels is empty")
    if image.shape[1:] == (size, size):
        return image
    resized = interpolate(image[None], (size, size), mode="bilinear", antialias=True, align_corners=False)
    return resized[0]


def _chunks(items: Iterator[Tensor], size: int) -> Iterator[list[Tensor]]:
    chunk: list[Tensor] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
