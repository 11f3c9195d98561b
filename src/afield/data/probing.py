"""Looking at every image once: its digest, its size, and whether it can be read. What was seen is remembered."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import Progress

from afield.data.cache import SECONDS_OF_A_DAY, cache_folder
from afield.data.decoding import Probe, Sources, decoders
from afield.files import remove_leftovers, write_whole

IN_A_REQUEST = 32
WORTH_A_BAR = 500
FORMAT = 2
"""Raise it with every change of what counts as readable: what an earlier version has seen is then looked at again."""


def probe_all(sources: Sources, stamps: Sequence[str], place: str, workers: int = 0) -> list[Probe]:
    """What each image is. Those whose stamps are known from an earlier time are not read again."""
    path = (
        cache_folder()
        / "probes"
        / f"{hashlib.blake2b(place.encode(errors='replace'), digest_size=10).hexdigest()}.json"
    )
    known = _read(path)
    probes = [known.get(stamp) if stamp else None for stamp in stamps]
    unread = [number for number, probe in enumerate(probes) if probe is None]
    if unread:
        try:
            for number, probe in _probe(sources, unread, workers):
                probes[number] = probe
        finally:  # what was read before Ctrl-C need not be read again
            _write(path, stamps, probes)
    return [probe for probe in probes if probe is not None]


def _probe(sources: Sources, numbers: Sequence[int], workers: int) -> Iterator[tuple[int, Probe]]:
    """Ask the processes that decode."""
    pool = decoders(workers)

    def ask(some: Sequence[int]) -> list[tuple[int, Probe]]:
        return list(zip(some, pool.probe([sources[number] for number in some]), strict=True))

    size = max(1, min(IN_A_REQUEST, len(numbers) // (2 * pool.count)))
    if isinstance(sources[numbers[0]], bytes):
        size = 1  # many large images at a time would fill the memory; of files only the names travel
    starts = iter(range(0, len(numbers), size))
    with ThreadPoolExecutor(pool.count, "afield-probe") as threads, _bar(len(numbers)) as bar:
        waiting: set[Future[list[tuple[int, Probe]]]] = set()
        try:
            while True:
                for start in starts:
                    waiting.add(threads.submit(ask, numbers[start : start + size]))
                    if len(waiting) > 2 * pool.count:
                        break
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
                    bar.advance(len(future.result()))
        finally:
            for future in waiting:
                future.cancel()


class Bar(Protocol):
    """A progress bar."""

    def advance(self, count: int) -> None:
        """Move on by so many images."""


class _NoBar:
    def advance(self, count: int) -> None:
        pass


class _RichBar:
    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.task = progress, progress.add_task("looking at images", total=total)

    def advance(self, count: int) -> None:
        self.progress.advance(self.task, count)


@contextmanager
def _bar(total: int) -> Iterator[Bar]:
    console = Console(stderr=True)
    if total <= WORTH_A_BAR or not console.is_terminal:
        yield _NoBar()
        return
    with Progress(console=console, transient=True) as progress:
        yield _RichBar(progress, total)


def _read(path: Path) -> dict[str, Probe]:
    """What is remembered. A damaged file is as good as none: it only costs time."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            return {}
        known = {}
        for key, (digest, width, height) in content["images"].items():
            bytes.fromhex(digest)
            known[key] = Probe(str(digest), int(width), int(height), "")
        return known
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return {}


def _write(path: Path, stamps: Sequence[str], probes: Sequence[Probe | None]) -> None:
    """Remember the good ones. The others may be mended without any sign of it, and are few."""
    images = {
        stamp: probe[:3] for stamp, probe in zip(stamps, probes, strict=True) if stamp and probe and not probe.error
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path, older_than=SECONDS_OF_A_DAY)
        write_whole(path, json.dumps({"format": FORMAT, "images": images}, separators=(",", ":")))
    except OSError as error:
        warnings.warn(f"cannot write {path} ({error}); all images will be looked at again next time", stacklevel=2)
