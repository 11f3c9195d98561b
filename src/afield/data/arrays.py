"""Images in memory as a data set: `afield.from_arrays`."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from afield.data.collect import assemble
from afield.data.decoding import Probe
from afield.data.domain import DomainSet
from afield.data.entries import ImageEntry, split_named
from afield.data.images import ArrayImages, Images, Indices, Pixels
from afield.errors import AfieldError, unknown

HINT = "`domains` says for each image where it comes from, and `labels` which class it is"
SHAPES = "an image is (height, width), (height, width, 1) or (height, width, 3)"

ImagesByDomain = Mapping[str, tuple[Any, Any]]


def from_arrays(
    images: "ArrayLike | Sequence[ArrayLike] | ImagesByDomain",
    labels: Sequence[str | int | None] | ArrayLike | None = None,
    domains: Sequence[str] | ArrayLike | None = None,
    *,
    splits: Sequence[str] | ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> DomainSet:
    """A data set of images in memory: bytes, or floats from 0 to 1, grey or RGB, of one size or a list of several.

    For each image: a label (a class's name or number; None, "" or -1 where nobody knows it), a domain, and, unless
    splits are to be made, "train", "val" or "test". `classes` names classes that are given by number. Instead of three
    lists, `images` may be {domain: (images, labels)}, with labels None for a domain without them.
    """
    if isinstance(images, Mapping):
        if labels is not None or domains is not None or splits is not None:
            raise AfieldError("images by domain come with their labels; labels, domains and splits are not taken")
        pixels, labels, domains = _flattened(images)
    else:
        pixels = as_pixels(images)
    if domains is None:
        raise AfieldError(f"domains are missing: {HINT}")
    names = [_domain(number, domain) for number, domain in enumerate(_list("domains", domains, len(pixels)))]
    found = [None] * len(pixels) if labels is None else _list("labels", labels, len(pixels))
    given = [None] * len(pixels) if splits is None else _list("splits", splits, len(pixels))
    entries = [
        ImageEntry(
            f"image {number}",
            names[number],
            _label(number, found[number], classes),
            None if given[number] in (None, "") else split_named(str(given[number]), f"image {number}"),
        )
        for number in range(len(pixels))
    ]
    probes = [Probe(_digest(image), image.shape[1], image.shape[0], "") for image in pixels]

    def take(which: Indices) -> Images:
        return ArrayImages(pixels[which] if isinstance(pixels, np.ndarray) else [pixels[number] for number in which])

    return assemble(
        name, entries, probes, take, range(len(entries)), origin="arrays in memory", hint=HINT, classes=classes or ()
    )


def _flattened(images: ImagesByDomain) -> tuple[Pixels | list[Pixels], list[Any], list[str]]:
    """Images by domain as three lists."""
    pixels: list[Pixels] = []
    labels: list[Any] = []
    domains: list[str] = []
    for domain, pair in images.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise AfieldError(f"domain {domain} must be a pair of images and labels (or None)")
        own = as_pixels(pair[0])
        pixels += list(own)
        labels += [None] * len(own) if pair[1] is None else _list(f"labels of {domain}", pair[1], len(own))
        domains += [domain] * len(own)
    return as_pixels(pixels), labels, domains


def as_pixels(images: Any) -> Pixels | list[Pixels]:
    """Images, an array or a list of them, as RGB bytes: in one array where they have one size."""
    if hasattr(images, "__array__"):
        array = np.asarray(images)
        if array.ndim not in (3, 4):
            raise AfieldError(f"images must be (number, height, width[, channels]), not {array.shape}")
        _check_shape(array.shape[1:], "images")
        if array.dtype == np.uint8 and array.shape[3:] == (3,):
            return array
        made = np.empty((*array.shape[:3], 3), np.uint8)
        for number, image in enumerate(array):
            made[number] = _rgb(image, number)
        return made
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise AfieldError(f"images must be an array or a list of arrays, not {type(images).__name__}")
    each = [_rgb(np.asarray(image), number) for number, image in enumerate(images)]
    if not each:
        raise AfieldError("there are no images in the list")
    return np.stack(each) if len({image.shape for image in each}) == 1 else each


def _check_shape(shape: tuple[int, ...], what: str) -> None:
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)) or 0 in shape:
        first = " (channels come last)" if len(shape) == 3 and shape[0] in (1, 3) else ""
        raise AfieldError(f"{what} of shape {tuple(shape)}: {SHAPES}{first}")


def _rgb(image: Any, number: int) -> Pixels:
    """One image as (height, width, 3) of bytes."""
    _check_shape(image.shape, f"image {number}")
    if np.issubdtype(image.dtype, np.floating):
        low, high = float(image.min()), float(image.max())
        if not (low >= 0 and high <= 1):  # false for NaN too
            has = "values that are no numbers" if np.isnan(low) else f"values from {low:g} to {high:g}"
            raise AfieldError(f"image {number} has {has}; floats must be from 0 to 1, and bytes have dtype uint8")
        image = np.rint(image * 255).astype(np.uint8)
    elif image.dtype != np.uint8:
        raise AfieldError(f"image {number} has dtype {image.dtype}; it must be uint8, or floats from 0 to 1")
    if image.ndim == 2:
        image = image[:, :, None]
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))


def _list(what: str, values: Any, length: int) -> list[Any]:
    """Values of any kind of sequence, one for each image."""
    if hasattr(values, "tolist"):  # numpy, torch and pandas
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise AfieldError(f"{what} must be a list with one for each image, not {values!r:.40}")
    if len(values) != length:
        raise AfieldError(f"there are {length:,} images but {len(values):,} {what}")
    return list(values)


def _domain(number: int, domain: object) -> str:
    if not isinstance(domain, str) or not domain:
        raise AfieldError(f"the domain of image {number} must be a name, not {domain!r}")
    return domain


def _label(number: int, label: object, classes: Sequence[str] | None) -> str | None:
    """The class's name; None where there is no label."""
    if getattr(label, "ndim", None) == 0:  # a number of NumPy's or PyTorch's
        label = label.item()  # type: ignore[attr-defined]
    if label is None or label == "" or label == -1 or label != label:  # NaN, as pandas has it for none
        return None
    if isinstance(label, int):
        if classes is None:
            return str(label)
        if not 0 <= label < len(classes):
            raise AfieldError(f"image {number} has label {label}, but classes has {len(classes)} names")
        return classes[label]
    if not isinstance(label, str):
        raise AfieldError(f"the label of image {number} must be a name or a whole number, not {label!r}")
    if classes is not None and label not in classes:
        raise unknown(f"label of image {number}", label, classes)
    return label


def _digest(image: Pixels) -> str:
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()
