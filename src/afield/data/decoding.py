"""Image files, decoded by processes of our own: the contract `Images` for anything that is still encoded."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afield.config.data import Oblong
from afield.data.decoder import receive, receive_into, send
from afield.data.images import Digest, Images, Indices, Pixels
from afield.data.pixels import UnreadableImageError, open_image, to_rgb, upright
from afield.errors import AfieldError

PER_REQUEST = 8
"""Images per request. With fewer, this process is busy with messages; with more, a batch waits for a few processes."""


class Sources(Protocol):
    """Where encoded images are: by index a path, or the content of a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str | bytes: ...


class Probe(NamedTuple):
    """What one look at a file tells."""

    digest: str
    width: int
    height: int
    error: str


class EncodedImages(Images):
    """Images in files or in an encoded column, some of `sources`; each is decoded whenever it is read."""

    def __init__(
        self,
        sources: Sources,
        which: Indices,
        probes: Sequence[Probe],
        square: tuple[int, Oblong] | None = None,
        workers: int = 0,
    ) -> None:
        self.sources, self.which, self.probes, self.workers = sources, which, probes, workers
        self.square = square
        self.side = square[0] if square else None

    def __len__(self) -> int:
        return len(self.which)

    def read(self, indices: Indices, out: Pixels | None = None) -> Pixels:
        """Decode, in all processes at once."""
        if self.square is None:
            raise ValueError("these images have sizes of their own: choose one with `sized`")
        side, oblong = self.square
        if out is None:
            out = np.empty((len(indices), side, side, 3), np.uint8)
        decoders(self.workers).decode([self.sources[int(i)] for i in self.which[indices]], side, oblong, out)
        return out

    def sized(self, side: int, oblong: Oblong) -> "EncodedImages":
        """The same files, decoded to another size."""
        return EncodedImages(self.sources, self.which, self.probes, (side, oblong), self.workers)

    def add_to(self, digest: Digest, name: str) -> None:
        """The digests of the files' bytes, in order. Not where they lie: a copied data set is the same one."""
        digest.update(f"{name}/{len(self)} files".encode())
        for index in self.which:
            digest.update(bytes.fromhex(self.probes[index].digest))

    def original(self, index: int) -> Image.Image:
        """Decoded here, at its own size."""
        return to_rgb(upright(open_image(self.sources[int(self.which[index])])))

    def sizes(self) -> NDArray[np.int64]:
        """As they lie in the files, upright."""
        return np.array([self.probes[index][1:3] for index in self.which], np.int64).reshape(-1, 2)


class DecoderPool:
    """Processes that decode, each with a thread here that talks to it. They live until this process ends."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._idle: SimpleQueue[socket.socket] = SimpleQueue()
        self._processes = [self._start() for _ in range(count)]
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="afield-decode")

    def _start(self) -> "subprocess.Popen[bytes]":
        ours, theirs = socket.socketpair()
        # -P: a file in the current folder that is named like a module must not take its place.
        command = [sys.executable, "-P", "-m", "afield.data.decoder", str(theirs.fileno())]
        # The package as this process found it, wherever that was.
        paths = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        self._idle.put(ours)
        return process

    def decode(self, sources: Sequence[str | bytes], side: int, oblong: Oblong, out: Pixels) -> None:
        """Images into `out`, in order. The first that cannot be read is an error that names it."""
        futures = [
            self._threads.submit(
                self._decode, sources[start : start + PER_REQUEST], side, oblong, out[start : start + PER_REQUEST]
            )
            for start in range(0, len(sources), PER_REQUEST)
        ]
        wait(futures)
        for future in futures:
            future.result()

    def _decode(self, sources: Sequence[str | bytes], side: int, oblong: Oblong, out: Pixels) -> None:
        connection = self._idle.get()
        try:
            send(connection, ("decode", list(sources), side, oblong))
            errors = receive(connection)
            pixels = out if out.flags.c_contiguous else np.empty_like(out)
            self._need(errors is not None and receive_into(connection, pixels.reshape(-1).data))
        except OSError as error:
            raise self._died() from error
        finally:
            self._idle.put(connection)
        if pixels is not out:
            out[:] = pixels
        if errors:
            raise UnreadableImageError(next(iter(errors.values())))

    def probe(self, sources: Sequence[str | bytes]) -> list[Probe]:
        """What each file is, found by reading it to its end. May be called from several threads."""
        connection = self._idle.get()
        try:
            send(connection, ("probe", list(sources)))
            answer = receive(connection)
        except OSError as error:
            raise self._died() from error
        finally:
            self._idle.put(connection)
        self._need(answer is not None)
        return [Probe(*each) for each in answer]

    def _need(self, received: bool) -> None:
        if not received:
            raise self._died()

    def _died(self) -> AfieldError:
        codes = [code for process in self._processes if (code := process.poll()) is not None]
        return AfieldError(f"a process that decodes images has died (exit codes {codes}); is there enough memory?")


_one_at_a_time = threading.Lock()


@lru_cache(maxsize=1)
def _pool(count: int) -> DecoderPool:
    return DecoderPool(count)


def decoders(workers: int = 0) -> DecoderPool:
    """The processes that decode: so many, or one for each processor."""
    with _one_at_a_time:  # or threads that ask at once, before there are any, start as many pools
        return _pool(workers or os.cpu_count() or 1)
