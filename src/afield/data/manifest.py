"""A manifest: a table, CSV or Parquet, of image paths with their domains, labels and splits."""

import csv
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from afield.data.entries import Files, ImageEntry, Listing, some_of, split_named
from afield.errors import AfieldError
from afield.files import check_regular

MANIFEST_SUFFIXES = (".csv", ".parquet")
SMALL_BYTES, MOST_TIMES = 10_000_000, 100
"""A Parquet manifest may unpack to so many bytes, or to so many times its size: names of files pack to a twentieth."""
WORKING_BYTES = 256_000_000
"""What Arrow may take beside that; it reserves memory in large pieces."""
NO_LABEL = "-1"
"""As scikit-learn and many data sets write that a label is not known."""
LAYOUT = "a manifest has the columns path, domain, label and, where splits are given, split"


def list_manifest(path: Path, *, skip_bad: bool = False, image: str = "", domain: str = "", label: str = "") -> Listing:
    """The images a manifest names. `image` (of the files), `domain` and `label` are columns of other names."""
    columns = {"path": image or "path", "domain": domain or "domain", "label": label or "label", "split": "split"}
    entries: list[ImageEntry] = []
    rows: dict[str, int] = {}
    for row, cells in enumerate(_read(path, columns), start=2 if path.suffix.lower() == ".csv" else 1):
        file, domain_name, label_name, split = map(_text, cells)
        where = f"{path}, row {row}"
        if not file or not domain_name:
            raise AfieldError(f"{where}: no {columns['domain' if file else 'path']}")
        file = os.path.normpath(file)
        if file in rows:
            raise AfieldError(f"{where}: {file} stands in row {rows[file]} already")
        rows[file] = row
        label_name = None if label_name == NO_LABEL else label_name
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
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        chosen = _chosen(path, schema.names, columns)
        given = [head for head in chosen if head]
        # Arrow reads `label.x` along with `label`, as if it were a part of it.
        read = [field for field in schema if any(f"{field.name}.".startswith(f"{head}.") for head in given)]
        _check_memory(path, metadata, read)
        # As dictionaries: a long text that stands in the file once, for all rows, is in memory once.
        with parquet.ParquetFile(path, metadata=metadata, read_dictionary=[field.name for field in read]) as file:
            batches = file.iter_batches(columns=given, use_threads=False)  # threads reserve memory of their own
            while (batch := _next_batch(batches, most_bytes(path))) is not None:
                cells = [_cells(batch.column(head)) if head else [None] * len(batch) for head in chosen]
                yield from zip(*cells, strict=True)
    # Not only Arrow's own: bytes that are no UTF-8, a date beyond the calendar, a type that it does not know.
    except (arrow.ArrowException, ValueError, OverflowError, LookupError) as error:
        raise AfieldError(f"cannot read {path}: {_first_line(error)}") from error


def most_bytes(path: Path) -> int:
    """How much memory a Parquet manifest may take."""
    return max(SMALL_BYTES, MOST_TIMES * path.stat().st_size)


def _next_batch(batches: Iterator[Any], memory: int) -> Any:
    """The next rows of a Parquet file, or None; they may take so much memory and a little more."""
    with no_more_memory_than(memory + WORKING_BYTES):
        return next(batches, None)


@contextmanager
def no_more_memory_than(extra: int) -> Iterator[None]:
    """Inside, this process cannot get more memory than it has by more than so many bytes. On Linux alone."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _check_memory(path: Path, metadata: Any, fields: Sequence[Any]) -> None:
    """Raise if a Parquet file would take far more memory than its size lets one expect.

    A few bytes of it can stand for a long list in a row, or for one long value in every row. Of a text there is one
    copy for all rows, and numbers are short; no manifest has lists, or bytes of a fixed length. How much a file unpacks
    to is what it says itself; where it lies, the limit under which it is read holds.
    """
    from pyarrow import types

    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary)
    others = (types.is_primitive, types.is_decimal, types.is_null)
    for number, field in enumerate(fields):
        if not any(fits(field.type) for fits in (*texts, *others)):
            raise AfieldError(f"cannot read {path}: its column '{field.name}' has neither text nor numbers")
        if field.name in (other.name for other in fields[:number]):
            raise AfieldError(f"cannot read {path}: it has two columns '{field.name}'")
    # Of row groups and not of their columns, whose metadata may end this process: Arrow throws where nobody catches.
    unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    size = path.stat().st_size
    if unpacked > most_bytes(path):
        raise AfieldError(f"cannot read {path}: its {size:,} bytes would unpack to {unpacked:,}")


def _cells(column: Any) -> list[Any]:
    """The cells of a column of Arrow, of which equal texts are one object."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    texts = column.dictionary

    @cache  # and not all of them at once: every batch of a large file has the same large dictionary
    def text(number: int | None) -> str | None:
        return None if number is None else _text(texts[number].as_py())

    return [text(number) for number in column.indices.to_pylist()]


def _chosen(path: Path, heads: Sequence[str], columns: dict[str, str]) -> list[str]:
    """The heads of the columns as they are written there, in any letter case; "" for a split that is not given."""
    written = {head.lower(): head for head in reversed(heads)}
    missing = [head for role, head in columns.items() if head.lower() not in written and role != "split"]
    if missing:
        # What a spreadsheet writes where commas are in numbers.
        separated = len(heads) == 1 and any(sign in heads[0] for sign in ";\t|")
        hint = (
            "its columns must be separated by commas"
            if separated
            else "other names for three of them: data.image_column, data.domain_column, data.label_column"
        )
        raise AfieldError(f"{path} has no column '{missing[0]}' (its columns: {some_of(heads, 10)}); {LAYOUT}; {hint}")
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
