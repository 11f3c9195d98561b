"""What a run did, as append-only JSON lines: nothing downstream reads anything else.

A file holds one `run` line (resolved config, protocol, versions, seed, device), an `evaluation` line for each
evaluation, and one `end` line. Wall-clock time stands in the `end` line alone, so that all the others are equal for
equal runs.
"""

import gc
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from afield.config.upgrade import upgraded_record
from afield.errors import AfieldError
from afield.files import read_text, write_whole
from afield.results.shape import fault_of

Record = dict[str, Any]


def append_record(path: Path, *records: Record) -> None:
    """Add a line, or several, and see them safely to disk."""
    content, whole = _lines(records).encode(), path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab", buffering=0) as file:
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, whole)  # a full disk may have taken a part
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_records(path: Path) -> list[Record]:
    """All records of a file. A last line cut short by a kill is left out; damage anywhere else is an error."""
    lines = read_text(path, "records").split("\n")
    records = []
    with collector_paused():
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = from_json(line, allow_inf_nan=False)  # twice as fast as the standard library's
            except ValueError as error:
                raise AfieldError(f"line {number} of {path} is not a record: {error}") from error
            if fault := fault_of(record):
                raise AfieldError(f"line {number} of {path} is not a record: {fault}")
            records.append(upgraded_record(record))
    return records


@contextmanager
def collector_paused() -> Iterator[None]:
    """Reading makes millions of objects and no garbage; Python would look through all of them again and again."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def rewrite_records(path: Path, records: Iterable[Record]) -> None:
    """Replace the file by these records, at once or not at all."""
    write_whole(path, _lines(records))


def read_runs(path: Path) -> list[list[Record]]:
    """The records of each run in a file that has ended; what a kill has cut short is left out.

    What a newer version may have noted after the `end` belongs to the run, and stays.
    """
    runs: list[list[Record]] = []
    for record in read_records(path):
        if record["event"] == "run":
            runs.append([])
        elif not runs:
            raise AfieldError(f"{path} does not begin with a run")
        runs[-1].append(record)
    return [run for run in runs if end_of(run)]


def record_files(folder: Path) -> list[Path]:
    """The files of records in a folder: its own, and those of the shards of a benchmark. There may be none."""
    found = [folder / "records.jsonl", *sorted(folder.glob("shard-*-of-*/records.jsonl"))]
    return [file for file in found if file.exists()]


def end_of(records: Iterable[Record]) -> Record | None:
    """The `end` line of a run's records; None of a run that has not ended."""
    return next((record for record in records if record["event"] == "end"), None)


def evaluations(records: Iterable[Record]) -> list[Record]:
    """The evaluation lines, in order."""
    return [record for record in records if record["event"] == "evaluation"]


def _lines(records: Iterable[Record]) -> str:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
