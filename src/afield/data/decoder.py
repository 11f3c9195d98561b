"""A process that decodes image files for another: `python -m afield.data.decoder FD`, where FD is a socket.

It imports neither torch nor the program that started it, so that it starts at once and takes little memory. It ends
when the other end of its socket is closed, however that came about.
"""

import hashlib
import io
import logging
import pickle
import signal
import socket
import struct
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from afield.data.pixels import brightest, open_image, orientation, read_square
from afield.errors import AfieldError
from afield.files import check_regular

LENGTH = struct.Struct("!I")
TURNED = frozenset({5, 6, 7, 8})  # EXIF orientations that exchange width and height


def main() -> None:
    """Answer requests until there are no more."""
    # Ctrl-C reaches all of a terminal, and a scheduler's SIGTERM all of a job; the parent decides what ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What Pillow says of an odd file names no file; what is wrong with one is in the answer.
    warnings.simplefilter("ignore")
    logging.disable()
    # A parent that is killed with an answer unread resets the socket, and one in the middle of an answer breaks it.
    # That ends this process like any other end, and nobody is left to whom a traceback would say anything.
    with socket.socket(fileno=int(sys.argv[1])) as connection, suppress(ConnectionError):
        while (request := receive(connection)) is not None:
            kind, *arguments = request
            (decode if kind == "decode" else probe)(connection, *arguments)


def decode(connection: socket.socket, sources: list[str | bytes], side: int, oblong: Any) -> None:
    """What is wrong with which images, then the pixels of all in one piece: few messages keep the other end free."""
    pixels = np.zeros((len(sources), side, side, 3), np.uint8)
    errors = {}
    for number, source in enumerate(sources):
        try:
            pixels[number] = read_square(source, side, oblong)
        except AfieldError as error:
            errors[number] = str(error)
    send(connection, errors)
    connection.sendall(pixels.reshape(-1).data)


def probe(connection: socket.socket, sources: list[str | bytes]) -> None:
    """For each image: digest of its bytes, width, height and why it cannot be read (or "")."""
    send(connection, [examine(source) for source in sources])


def examine(source: str | bytes) -> tuple[str, int, int, str]:
    """Read a file once: its digest, its size, and whether it can be decoded to its end."""
    digest, width, height = "", 0, 0
    try:
        content = source if isinstance(source, bytes) else _content(Path(source))
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        # A JPEG at an eighth of its size: all of it is read, in half the time.
        with open_image(content, least_side=8) as decoded:
            brightest(decoded)  # refuses what training would refuse
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if image.format != "TIFF" and orientation(image) in TURNED:  # of a TIFF, Pillow gives the upright size
                width, height = height, width
    except AfieldError as error:
        return digest, 0, 0, str(error)
    except OSError as error:
        return digest, 0, 0, str(error.strerror or error)
    return digest, width, height, ""


def _content(path: Path) -> bytes:
    check_regular(path)
    return path.read_bytes()


def send(connection: socket.socket, message: object) -> None:
    """One message: its length and its content."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(LENGTH.pack(len(content)) + content)


def receive(connection: socket.socket) -> Any:
    """One message from the process at the other end, which is our own; None where there are no more."""
    head = bytearray(LENGTH.size)
    if not receive_into(connection, memoryview(head)):
        return None
    content = bytearray(LENGTH.unpack(head)[0])
    return pickle.loads(content) if receive_into(connection, memoryview(content)) else None


def receive_into(connection: socket.socket, view: memoryview) -> bool:
    """Fill a view; False if the connection ends before."""
    while view:
        count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            return False
        view = view[count:]
    return True


if __name__ == "__main__":
    main()
