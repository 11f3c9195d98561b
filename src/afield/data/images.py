"""The images of one split, read by index: from arrays in memory, from files, or from a packed cache."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afield.config.data import Oblong
from afield.data.pixels import make_square

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


class Digest(Protocol):
    """What hashlib's objects have in common."""

    def update(self, data: Any, /) -> None:
        """Take in more bytes."""


class Images(ABC):
    """So many images of one side length. Where they lie, and whether they are decoded yet, is a subclass's concern."""

    side: int | None
    """Height and width of what `read` gives. None: the images have sizes of their own, and `sized` must choose one."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Indices, out: Pixels | None = None) -> Pixels:
        """The images of these indices as (n, side, side, 3), written into `out` where it is given."""

    @abstractmethod
    def sized(self, side: int, oblong: Oblong) -> "Images":
        """The same images, read at another size."""

    @abstractmethod
    def add_to(self, digest: Digest, name: str) -> None:
        """Take part in a checksum: equal for equal images, whatever size they are read at."""

    @abstractmethod
    def original(self, index: int) -> Image.Image:
        """One image as it came, for a person to look at."""

    @abstractmethod
    def sizes(self) -> NDArray[np.int64]:
        """Width and height of each image as it came, (n, 2)."""

    @property
    def nbytes(self) -> int:
        """The memory all images take, decoded."""
        return len(self) * (self.side or 0) ** 2 * 3


class ArrayImages(Images):
    """Images in memory: one array (N, H, W, 3) of uint8, or a sequence of (H, W, 3) arrays of any sizes."""

    def __init__(self, array: Pixels | Sequence[Pixels], square: tuple[int, Oblong] | None = None) -> None:
        self.array = array
        self._square = square
        own = array.shape[1:3] if isinstance(array, np.ndarray) else ()
        self.side = square[0] if square else (own[0] if own and own[0] == own[1] else None)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def as_it_is(self) -> Pixels | None:
        """The whole array, where no image needs resizing."""
        return self.array if self._square is None and isinstance(self.array, np.ndarray) else None

    def read(self, indices: Indices, out: Pixels | None = None) -> Pixels:
        """By copying, or where another size was chosen by resizing each image."""
        if out is None:
            out = np.empty((len(indices), self.side or 0, self.side or 0, 3), np.uint8)
        if self.as_it_is is not None:
            return np.take(self.as_it_is, indices, axis=0, out=out, mode="clip")
        assert self._square is not None
        for place, index in enumerate(indices):
            out[place] = make_square(self.original(int(index)), *self._square)
        return out

    def sized(self, side: int, oblong: Oblong) -> Images:
        """Itself where that is the size it has."""
        if self._square is None and self.side == side:
            return self
        return ArrayImages(self.array, (side, oblong))

    def add_to(self, digest: Digest, name: str) -> None:
        """Shapes and pixels."""
        if isinstance(self.array, np.ndarray):
            digest.update(f"{name}/{self.array.shape}".encode())
            digest.update(np.ascontiguousarray(self.array).data)
            return
        digest.update(f"{name}/{len(self.array)}".encode())
        for image in self.array:
            digest.update(f"{image.shape}".encode())
            digest.update(np.ascontiguousarray(image).data)

    def original(self, index: int) -> Image.Image:
        """One image of the array."""
        return Image.fromarray(self.array[index])

    def sizes(self) -> NDArray[np.int64]:
        """From the arrays' shapes."""
        return np.array([image.shape[1::-1] for image in self.array], np.int64).reshape(-1, 2)


class JoinedImages(Images):
    """Several splits' images one after the other."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = tuple(parts)
        self.side = parts[0].side
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, indices: Indices, out: Pixels | None = None) -> Pixels:
        """Each from its own part."""
        if out is None:
            out = np.empty((len(indices), self.side or 0, self.side or 0, 3), np.uint8)
        which = np.searchsorted(self._ends, indices, side="right")
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(which == number)
            if len(here):
                out[here] = part.read(indices[here] - (self._ends[number] - len(part)))
        return out

    def sized(self, side: int, oblong: Oblong) -> Images:
        """All parts at that size."""
        return JoinedImages([part.sized(side, oblong) for part in self.parts])

    def add_to(self, digest: Digest, name: str) -> None:
        """Part by part."""
        for part in self.parts:
            part.add_to(digest, name)

    def original(self, index: int) -> Image.Image:
        """One image of the part that holds it."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[number].original(index - int(self._ends[number]) + len(self.parts[number]))

    def sizes(self) -> NDArray[np.int64]:
        """Part by part."""
        return np.concatenate([part.sizes() for part in self.parts])


def digest_of(*images: Images) -> str:
    """SHA-256 over images."""
    digest = hashlib.sha256()
    for number, each in enumerate(images):
        each.add_to(digest, str(number))
    return digest.hexdigest()
