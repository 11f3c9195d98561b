"""Files that are written whole or not at all, and folders that one process has to itself."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from afield.errors import AfieldError

# A file system that has no such locks, as some network ones: better to run without than not to run.
NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_held: set[int] = set()


class BusyFolderError(AfieldError):
    """Another process is at work in a folder."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, to write to: it takes the place of `path`, or on failure it goes.

    A kill leaves the old file or the new one, never half of one. The new one has the mode that the umask says, whatever
    the writer inside makes of it.
    """
    # Each writer has a folder of its own: two at once would write into one file, and a writer that has a temporary file
    # of its own beside the one it was given, as safetensors has, would leave that behind when killed.
    folder = path.with_name(f"{path.name}.{uuid4().hex[:12]}.tmp")
    temporary = folder / path.name
    try:
        folder.mkdir()
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.close(descriptor)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if stat.S_IMODE(temporary.stat().st_mode) != mode:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(folder), str(temporary)):
            error.filename = str(path)  # which the user knows; a full disk names no file at all
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def making_folder(path: Path) -> Iterator[None]:
    """The folder of a file that is to be written: made where there is none, and gone again on failure."""
    made = [place for place in path.parents if not place.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty
            for place in made:
                place.rmdir()
        raise


def write_whole(path: Path, text: str) -> None:
    """Write text so that a kill leaves the old file or the new one, never half of one."""
    with replacing(path) as temporary:
        # A file name that is no text, which a table of predictions may hold, is written escaped.
        temporary.write_text(text, "utf-8", errors="backslashreplace")


def link(source: Path, path: Path) -> None:
    """Let a path be the same file as another, or where the file system has no links a copy of it."""
    with replacing(path) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def check_regular(path: Path) -> None:
    """Raise if a path is a device or a pipe, which may have no end, or wait for a writer for ever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise AfieldError(f"cannot read {path}: it is no regular file, but a device, a pipe or a socket")


def read_text(path: Path, what: str, most_bytes: int | None = None) -> str:
    """The text of a file that the user names, or one line that says why there is none; `what` it should be."""
    check_regular(path)
    try:
        if most_bytes is not None and (size := path.stat().st_size) > most_bytes:
            raise AfieldError(f"cannot read {what} {path}: it has {size:,} bytes, and at most {most_bytes:,} are read")
        return path.read_text("utf-8-sig")  # some editors begin a file with a byte order mark, which is no text
    except UnicodeDecodeError as error:
        raise AfieldError(f"cannot read {what} {path}: it is not a text file in UTF-8") from error
    except OSError as error:
        raise AfieldError(f"cannot read {what} {path}: {error.strerror or error}") from error


def is_safetensors(start: bytes) -> bool:
    """Whether a file of tensors that begins with these nine bytes is safetensors: its header comes after its length."""
    return start[8:9] == b"{"


def is_pickle(start: bytes) -> bool:
    """Whether it is a pickle, or PyTorch's archive of one; a length may begin like a pickle."""
    return start.startswith((b"PK", b"\x80")) and not is_safetensors(start)


def sha256_of(path: Path) -> str:
    """The checksum of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(path: Path, older_than: float = 0.0) -> None:
    """Remove what writers of a file, killed in the middle, have left beside it.

    Where others may be writing now, as into a cache, only what has lain there for so many seconds.
    """
    for left in path.parent.glob(f"{path.name}.*tmp"):
        with suppress(OSError):  # it has just gone
            if not older_than or time.time() - left.stat().st_mtime > older_than:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def locked(folder: Path, who: str, *, shared: bool = False) -> Iterator[None]:
    """The folder is this process's alone while the context lasts; `who` is the command that another would be.

    With `shared` others may share it too, and nobody has it alone. It is made where there is none; if it is then still
    empty in the end, it goes again. The system unlocks it however this process ends.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(folder, who, shared)
        if folder.is_dir() and folder.stat().st_ino == os.fstat(descriptor).st_ino:
            break
        _release(descriptor)  # whoever had made it has removed it in the meantime
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for place in made:
                place.rmdir()
        _release(descriptor)


def check_unlocked(folder: Path, who: str) -> None:
    """Raise if another process has the folder alone now."""
    if folder.is_dir():
        with suppress(FileNotFoundError):  # whoever had made it has just removed it
            _release(_lock(folder, who, shared=True))  # or two that look at once would take each other for its owner


def _lock(folder: Path, who: str, shared: bool = False) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise BusyFolderError(f"another `{who}` is at work in {folder}") from error
            raise
    _held.add(descriptor)
    return descriptor


def _release(descriptor: int) -> None:
    _held.discard(descriptor)
    with suppress(OSError):  # a forked process has let go of it already
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _let_go() -> None:
    """A forked process would keep its parent's locks beyond the parent's end."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
