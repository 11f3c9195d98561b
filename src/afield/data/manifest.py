"""A manifest: a table, CSV or Parquet, of image paths with their domains, labels and splits."""

import csv
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from afield.data.entries import Files, ImageEntry, Listing, some_of, split_named
from afield.errors import AfieldError
from afield.files import check_regular

MANIFEST_SUFFIXES = (".csv", ".parquet")
LAYOUT = "a manifest has the columns path, domain, label and, where splits are given, split"


def list_manifest(path: Path, *, skip_bad: bool = False, domain: str = "", label: str = "") -> Listing:
    """The images a manifest names. `domain` and `label` are the names of those columns where they have others."""
    columns = {"path": "path", "domain": domain or "domain", "label": label or "label", "split": "split"}
    entries: list[ImageEntry] = []
    rows: dict[str, int] = {}
    for row, cells in enumerate(_read(path, columns), start=2 if path.suffix.lower() == ".csv" else 1):
        file, domain_name, label_name, split = map(_text, cells)
        where = f"{path}, row {row}"
        if not file or not domain_name:
            raise AfieldError(f"{where}: no {columns['domain'] if file else 'path'}")
        file = os.path.normpath(file)
        if file in rows:
            raise AfieldError(f"{where}: {file} stands in row {rows[file]} already")
        rows[file] = row
        entries.append(ImageEntry(file, domain_name, label_name, split_named(split, where) if split else None))
    if not entries:
        raise AfieldError(f"no images in {path}: it has no rows")
    folder = os.path.abspath(path.parent)  # noqa: PTH100
    files = Files(folder, [entry.source for entry in entries])
    stamps = files.stamps()
    missing = [entry.source for entry, found in zip(entries, stamps, strict=True) if not found]
    if missing and not skip_bad:
        count = f"{len(missing):,} of {len(entries):,} files" if len(missing) > 1 else "a file"
        hint = f"paths are relative to {folder}; skip_bad (--skip-bad) leaves them out"
        raise AfieldError(f"{path} names {count} that cannot be found, first {missing[0]}; {hint}")
    place = os.path.join(folder, path.name)  # noqa: PTH118
    return Listing(entries, files, stamps, place, f"image files named in {path}", LAYOUT)


def _read(path: Path, columns: dict[str, str]) -> Iterator[Sequence[Any]]:
    """Path, domain, label and split of each row, as they stand there."""
    check_regular(path)
    try:
        yield from (_read_csv if path.suffix.lower() == ".csv" else _read_parquet)(path, columns)
    except OSError as error:
        raise AfieldError(f"cannot read {path}: {error.strerror or _first_line(error)}") from error


def _read_csv(path: Path, columns: dict[str, str]) -> Iterator[Sequence[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            heads = [head.strip() for head in next(rows, [])]
            places = [heads.index(head) if head else len(heads) for head in _chosen(path, heads, columns)]
            for row in rows:
                if any(cell.strip() for cell in row):
                    yield [row[place] if place < len(row) and place < len(heads) else None for place in places]
    except (UnicodeDecodeError, csv.Error) as error:
        raise AfieldError(f"cannot read {path}: {error}; a manifest is CSV in UTF-8") from error


def _read_parquet(path: Path, columns: dict[str, str]) -> Iterator[Sequence[Any]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise AfieldError("a Parquet manifest needs pyarrow: pip install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            chosen = _chosen(path, file.schema_arrow.names, columns)
            for batch in file.iter_batches(columns=[head for head in chosen if head]):
                cells = [batch.column(head).to_pylist() if head else [None] * len(batch) for head in chosen]
                yield from zip(*cells, strict=True)
    except arrow.ArrowException as error:
        raise AfieldError(f"cannot read {path}: {_first_line(error)}") from error


def _chosen(path: Path, heads: Sequence[str], columns: dict[str, str]) -> list[str]:
    """The heads of the columns as they are written there, in any letter case; "" for a split that is not given."""
    written = {head.lower(): head for head in reversed(heads)}
    missing = [head for role, head in columns.items() if head.lower() not in written and role != "split"]
    if missing:
        raise AfieldError(
            f"{path} has no column '{missing[0]}' (its columns: {some_of(heads, 10)}); {LAYOUT}; "
            "other names for two of them: data.domain_column, data.label_column"
        )
    return [written.get(head.lower(), "") for head in columns.values()]


def _text(cell: object) -> str | None:
    """A cell as text; None where there is nothing in it. A whole number in a column of floats is written as one."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell).strip() or None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
