"""Readers of the files digits are published in. What is wrong with a file is one line that begins with its name."""

import gzip
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afield.data.digit5.fitting import MNIST_SIDE, has_frame
from afield.data.digits.patches import SIDE
from afield.data.images import Labels, Pixels
from afield.errors import AfieldError
from afield.files import check_regular

Indices = NDArray[np.int64]

_USPS_SIDE = 16
MOST_BYTES = 2_000_000_000
"""Of what a file unpacks to; the largest of those published, the training images of SYN, has three quarters of that."""
MOST_BYTES_OF_IDX = 100_000_000
"""The same for a file of MNIST's, which holds half of that at most. A gzip file does not say how much it holds."""


@dataclass(frozen=True)
class Stored:
    """One part of a domain as it lies in its files; images are converted, or even read, only when picked."""

    count: int
    pick: Callable[[Indices], NDArray[np.uint8]]
    """Images (n, 32, 32, 3), or grey digits (n, h, h) of the size they were published in."""
    labels: Labels
    sized: bool = False
    """Whether the images were brought to 32 x 32 by whoever wrote the file, whatever size they were published in."""
    framed: bool = False
    """If so, whether all have a black frame: then they were padded."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in every error it causes: a damaged file can fail in any way."""
    check_regular(path)
    try:
        yield
    except AfieldError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AfieldError(f"{path} cannot be used: {reason}") from error


def check_size(count: int, most: int | None = None) -> None:
    """Raise if so many bytes are more than any published file has: a small file can unpack to all of the memory."""
    if count > (most := most or MOST_BYTES):
        raise ValueError(f"it unpacks to {count:,} bytes, and at most {most:,} are read")


def read_npz(part: str, paths: list[Path]) -> Stored:
    """Arrays x_train, y_train, x_test, y_test: images (N, 32, 32, 3) as uint8 and labels 0 to 9."""
    with naming(paths[0]), np.load(paths[0], allow_pickle=False) as archive:
        check_size(sum(member.file_size for member in archive.zip.infolist()))
        missing = {f"x_{part}", f"y_{part}"} - set(archive.files)
        if missing:
            raise ValueError(f"it has no {' and no '.join(sorted(missing))}")
        images, labels = archive[f"x_{part}"], archive[f"y_{part}"]
        _check(images, (SIDE, SIDE, 3))
        labels = checked_labels(labels, len(images), 0, 9)
        return Stored(len(images), lambda chosen: images[chosen], labels, sized=True, framed=has_frame(images))


def read_idx(part: str, paths: list[Path]) -> Stored:
    """MNIST's own format: grey digits of 28 x 28."""
    images, labels = (_read_idx(path) for path in paths)
    with naming(paths[0]):
        _check(images, (MNIST_SIDE, MNIST_SIDE))
    with naming(paths[1]):
        return Stored(len(images), lambda chosen: images[chosen], checked_labels(labels, len(images), 0, 9))


def _read_idx(path: Path) -> NDArray[np.uint8]:
    with naming(path):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read((most := min(MOST_BYTES, MOST_BYTES_OF_IDX)) + 1)
        check_size(len(content), most)
        # Two zeros, 8 for uint8, the number of dimensions, then each dimension as a big-endian integer.
        if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
            raise ValueError("it is no idx file of uint8")
        start = 4 + 4 * content[3]
        shape = tuple(np.frombuffer(content[4:start], ">i4").tolist())
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_pngs(part: str, paths: list[Path]) -> Stored:
    """A folder of PNG files beside a text of lines `00000000.png 5`, as MNIST-M was published."""
    folder = paths[0].with_name(f"mnist_m_{part}")
    with naming(paths[0]):
        pairs = [line.split() for line in paths[0].read_text("ascii").splitlines() if line.strip()]
        bad = next((number for number, pair in enumerate(pairs, 1) if len(pair) != 2 or not pair[1].isdigit()), None)
        if bad is not None:
            raise ValueError(f"line {bad} is not like '00000000.png 5'")
        files = [folder / name for name, _ in pairs]
    with naming(folder):
        lost = next((file.name for file in files if not file.exists()), None)
        if lost:
            raise FileNotFoundError(f"{lost} is missing, which {paths[0].name} names")
    with naming(paths[0]):
        count = sum(1 for _ in folder.glob("*.png"))
        labels = checked_labels(np.array([int(label) for _, label in pairs]), count, 0, 9)
    return Stored(count, lambda chosen: np.stack([_read_png(files[index]) for index in chosen]), labels)


def _read_png(path: Path) -> Pixels:
    with naming(path), Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
        _check(pixels[None], (SIDE, SIDE, 3))
        return pixels


def read_libsvm(part: str, paths: list[Path]) -> Stored:
    """USPS in the format of libsvm: labels 1 to 10, then 256 values from -1 to 1."""
    from sklearn.datasets import load_svmlight_file

    with naming(paths[0]):
        values, labels = load_svmlight_file(str(paths[0]))
        check_size(8 * math.prod(values.shape))
        return _usps(values.toarray(), -1, checked_labels(labels, values.shape[0], 1, 10) - 1)


def read_h5(part: str, paths: list[Path]) -> Stored:
    """USPS in HDF5: groups train and test, each with data (N, 256) from 0 to 1 and target 0 to 9."""
    import h5py

    with naming(paths[0]), h5py.File(paths[0]) as file:
        if f"{part}/data" not in file or f"{part}/target" not in file:
            raise ValueError(f"it has no {part}/data or no {part}/target")
        check_size(sum(file[f"{part}/{name}"].nbytes for name in ("data", "target")))
        values, labels = file[f"{part}/data"][:], file[f"{part}/target"][:]
        return _usps(values, 0, checked_labels(labels, len(values), 0, 9))


def _usps(values: NDArray[Any], darkest: int, labels: Labels) -> Stored:
    """Values (N, 256) from the darkest to 1 as grey digits of 16 x 16."""
    if values.ndim != 2 or values.shape[1] != _USPS_SIDE**2 or not len(values):
        raise ValueError(f"images must be (N, {_USPS_SIDE**2}), not {values.shape}")
    brightness = (values - darkest) / (1 - darkest)
    if not ((brightness > -1e-3) & (brightness < 1 + 1e-3)).all():
        raise ValueError(f"images must have values from {darkest} to 1")
    # USPS has three decimals, so halves occur: they go up, whichever way the floats of a format lean.
    grey = np.floor(brightness * 255 + 0.501).astype(np.uint8).reshape(-1, _USPS_SIDE, _USPS_SIDE)
    return Stored(len(grey), lambda chosen: grey[chosen], labels)


def read_mat(part: str, paths: list[Path]) -> Stored:
    """SVHN's format, of MATLAB: X (32, 32, 3, N) and y (N, 1), where 10 may stand for the digit 0."""
    with naming(paths[0]):
        content = load_mat(paths[0], "X", "y")
        if "X" not in content or "y" not in content:
            raise ValueError("it has no X or no y")
        images = np.moveaxis(content["X"], -1, 0)
        _check(images, (SIDE, SIDE, 3))
        labels = checked_labels(content["y"].ravel(), len(images), 0, 10) % 10
        return Stored(len(images), lambda chosen: np.ascontiguousarray(images[chosen]), labels)


def load_mat(path: Path, *names: str) -> dict[str, Any]:
    """These variables of a file of MATLAB's, as far as it has them."""
    from scipy.io import loadmat, whosmat

    check_size(sum(math.prod(shape) for name, shape, _ in whosmat(path) if name in names))
    content: dict[str, Any] = loadmat(path, variable_names=names)
    return content


def _check(images: NDArray[Any], shape: tuple[int, ...]) -> None:
    if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"images must be uint8 (N, {wanted}), not {images.dtype} {images.shape}")


def checked_labels(labels: NDArray[Any], count: int, first: int, last: int) -> Labels:
    """Labels as they stand in a file, checked: one for each image, whole numbers in a range."""
    if labels.shape != (count,):
        raise ValueError(f"{count} images need labels of shape ({count},), not {labels.shape}")
    known = np.isin(labels, np.arange(first, last + 1)) if labels.dtype.kind in "iuf" else np.zeros(count, bool)
    if not known.all():
        raise ValueError(f"labels must be {first} to {last}, not {labels[~known][0]}")
    return labels.astype(np.int64)
