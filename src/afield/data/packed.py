"""A packed cache: decoded images on disk, one after the other, so that a file is decoded once and not every epoch.

It fills while images are read. What has been filled is written down only after its pixels are safely on disk; a kill
costs at most what was decoded since. All packs together keep to a limit: the least recently used go first.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from afield.config.data import Oblong
from afield.data.cache import SECONDS_OF_A_DAY, cache_folder
from afield.data.decoding import EncodedImages
from afield.data.images import Digest, Images, Indices, JoinedImages, Pixels
from afield.data.pixels import PIXELS_VERSION
from afield.files import remove_leftovers, replacing

GIGABYTE = 10**9
SAVE_EVERY = 4096  # images
SHARE_OF_FREE_DISK = 0.8
MOST_MAPPED = 32 * 2**20
"""Bytes after which mapped pages are released: until then they count as this process's memory."""


class PackedImages(Images):
    """Encoded images in front of a file that keeps what has been decoded."""

    def __init__(self, source: Images, path: Path, square: tuple[int, Oblong]) -> None:
        self.source, self.path, self.square = source, path, square
        self.side: int = square[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by mode "w+b", which would empty what another process has made in the meantime.
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        self._writes = _lock(self._file)  # of several processes one fills the pack, the others read it
        if os.fstat(self._file.fileno()).st_size != self.nbytes:
            if not self._writes:
                raise OSError(f"{path} is only just being made")
            _done_file(path).unlink(missing_ok=True)  # it tells of a pack that is gone
            os.ftruncate(self._file.fileno(), self.nbytes)
        self._map = mmap.mmap(self._file.fileno(), self.nbytes, prot=mmap.PROT_READ)
        self._pixels: Pixels = np.frombuffer(self._map, np.uint8).reshape(len(source), self.side, self.side, 3)
        self._done = _read_done(path, len(source))
        if not os.path.samestat(path.stat(), os.fstat(self._file.fileno())):
            raise OSError(f"{path} has just been removed")
        self._full = False
        self._unsaved, self._mapped = 0, 0
        self._guard = threading.Lock()
        self._finish = weakref.finalize(self, _save, self._file, path, self._done) if self._writes else None

    def __len__(self) -> int:
        return len(self.source)

    def read(self, indices: Indices, out: Pixels | None = None) -> Pixels:
        """From the pack; what is not there yet from the files, and then into the pack."""
        if out is None:
            out = np.empty((len(indices), self.side, self.side, 3), np.uint8)
        done = self._done[indices]
        if done.all():
            np.take(self._pixels, indices, axis=0, out=out, mode="clip")
        else:
            out[done] = self._pixels[indices[done]]
            missing = np.flatnonzero(~done)
            decoded = self.source.read(indices[missing])
            out[missing] = decoded
            self._keep(indices[missing], decoded)
        self._let_go(out.nbytes)
        return out

    def _keep(self, indices: Indices, pixels: Pixels) -> None:
        if not self._writes or self._full:
            return
        try:
            for index, image in zip(indices, pixels, strict=True):
                written = os.pwrite(self._file.fileno(), memoryview(image).cast("B"), int(index) * image.nbytes)
                if written < image.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:  # the disk is full: what is not there yet is decoded each time
            self._full = True
            return
        with self._guard:
            self._done[indices] = True
            self._unsaved += len(indices)
            if self._unsaved < SAVE_EVERY and not self._done.all():
                return
            self._unsaved = 0
        _save(self._file, self.path, self._done)

    def _let_go(self, count: int) -> None:
        with self._guard:
            self._mapped += count
            if self._mapped < MOST_MAPPED:
                return
            self._mapped = 0
        self._map.madvise(mmap.MADV_DONTNEED)

    def save(self) -> None:
        """See what has been decoded safely to disk."""
        if self._writes:
            _save(self._file, self.path, self._done)

    def sized(self, side: int, oblong: Oblong) -> Images:
        """Another size is another pack; this one where it is the same."""
        return self if (side, oblong) == self.square else self.source.sized(side, oblong)

    def add_to(self, digest: Digest, name: str) -> None:
        """As the files do."""
        self.source.add_to(digest, name)

    def original(self, index: int) -> Image.Image:
        """From its file."""
        return self.source.original(index)

    def sizes(self) -> NDArray[np.int64]:
        """Those of the files."""
        return self.source.sizes()


_open: "weakref.WeakValueDictionary[Path, PackedImages]" = weakref.WeakValueDictionary()


def packed(images: Images, limit_gb: float) -> Images:
    """Images in front of a pack, where they are encoded and there is room for one; else as they are."""
    if isinstance(images, JoinedImages):
        return JoinedImages([packed(part, limit_gb) for part in images.parts])
    if not isinstance(images, EncodedImages) or images.square is None or not len(images):
        return images
    # Pixels depend on what decoded and resized them, too.
    digest = hashlib.sha256(repr((images.square, PIXELS_VERSION, PIL.__version__)).encode())
    images.add_to(digest, "")
    path = cache_folder() / "packed" / f"{digest.hexdigest()[:32]}.pack"
    try:
        if images.nbytes > limit_gb * GIGABYTE:
            return images
        if path not in _open:
            if not make_room(path, images.nbytes, limit_gb * GIGABYTE):
                return images
            made = _open[path] = PackedImages(images, path, images.square)
            return made
        return _open[path]
    except OSError:  # a disk that is full or read-only; training does without
        return images


def make_room(path: Path, needed: int, limit: float) -> bool:
    """Whether a pack of that size may stand beside the others; removes those longest unused to make it so."""
    if needed > limit:
        return False
    if path.exists() and path.stat().st_size == needed:
        os.utime(path)
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    others = [each for each in path.parent.glob("*.pack") if each != path]
    others.sort(key=lambda each: each.stat().st_mtime)
    while others and sum(each.stat().st_size for each in others) + needed > limit:
        if not _remove(others.pop(0)):
            return False
    return needed < SHARE_OF_FREE_DISK * shutil.disk_usage(path.parent).free


def _remove(path: Path) -> bool:
    """Remove a pack unless another process is filling it."""
    with path.open("r+b") as file:
        if not _lock(file):
            return False
        _done_file(path).unlink(missing_ok=True)  # first: without its pack it would tell of nothing
        path.unlink()
    return True


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _done_file(path: Path) -> Path:
    return path.with_suffix(".done")


def _read_done(path: Path, count: int) -> NDArray[np.bool_]:
    with suppress(OSError):
        bits = np.frombuffer(_done_file(path).read_bytes(), np.uint8)
        if len(bits) == -(-count // 8):
            return np.unpackbits(bits, count=count).astype(bool)
    return np.zeros(count, bool)


def _save(file: BinaryIO, path: Path, done: NDArray[np.bool_]) -> None:
    """First the pixels, then the word that they are there."""
    bits = np.packbits(done).tobytes()
    with suppress(OSError):
        remove_leftovers(_done_file(path), older_than=SECONDS_OF_A_DAY)
        os.fdatasync(file.fileno())
        with replacing(_done_file(path)) as unfinished:
            unfinished.write_bytes(bits)
