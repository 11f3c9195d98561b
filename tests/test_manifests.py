"""A manifest, CSV or Parquet, as a data set."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from afield.config.data import DataOptions
from afield.data.domain import DomainSet
from afield.data.open import open_data
from afield.errors import AfieldError
from support.images import write_folder, write_image

HEADS = ("path", "domain", "label", "split")
Row = tuple[object, ...]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def rows(tmp_path) -> list[Row]:
    """Path, domain and label of images in `pictures`, in two domains with labels and one without."""
    write_folder(tmp_path / "pictures", {"a": {"bus": 5, "car": 5}, "b": {"bus": 5, "car": 5}, "c": 4})
    files = sorted((tmp_path / "pictures").rglob("*.png"))
    names = [file.relative_to(tmp_path).parts for file in files]
    return [("/".join(parts), parts[1], parts[2] if len(parts) == 4 else None) for parts in names]


def write(path: Path, rows: list[Row], heads: tuple[str, ...] = HEADS[:3]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([heads, *(["" if cell is None else cell for cell in row] for row in rows)])
    else:
        parquet.write_table(arrow.table({head: [row[n] for row in rows] for n, head in enumerate(heads)}), path)
    return path


def opened(path: Path, **options) -> DomainSet:
    return open_data(DataOptions(name=str(path), workers=2, **options))


def fails(path: Path, *words: str, **options) -> None:
    with pytest.raises(AfieldError) as caught:
        opened(path, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture(params=[".csv", ".parquet"])
def manifest(request, tmp_path) -> Path:
    return tmp_path / f"manifest{request.param}"


def test_a_manifest_is_what_its_folder_would_be(tmp_path, manifest, rows):
    data, folder = opened(write(manifest, rows)), opened(tmp_path / "pictures")
    assert data.name == str(manifest)
    assert data.checksum() == folder.checksum()
    assert data.notes == folder.notes and data.classes == ("bus", "car")
    assert data.sized(16)["c"].train.images.read(np.arange(4)).shape == (4, 16, 16, 3)


def test_paths_are_relative_to_the_manifest_or_absolute(tmp_path, manifest, rows, monkeypatch):
    monkeypatch.chdir("/")
    absolute = [(tmp_path / name if n % 2 else f"./{name}", *rest) for n, (name, *rest) in enumerate(rows)]
    assert opened(write(manifest, [(str(n), *rest) for n, *rest in absolute])).checksum() == (
        opened(tmp_path / "pictures").checksum()
    )


def test_splits_are_used_and_other_columns_are_not(manifest, rows):
    words = ("train", "Test", "train", "VAL", "train")
    given = [(*row, words[n % 5], n) for n, row in enumerate(rows)]
    data = opened(write(manifest, given, (*HEADS, "weather")))
    assert {name: len(split) for name, split in data["a"].splits.items()} == {"train": 6, "validation": 2, "test": 2}


def test_a_row_without_a_label_is_an_unlabelled_image(manifest, rows):
    data = opened(write(manifest, [(name, domain, None if "004" in name else label) for name, domain, label in rows]))
    assert len(data["a"].unlabelled) == 2
    assert "domain a: 2 of 10 images have no label" in data.notes


def test_a_label_of_minus_one_is_none(manifest, rows):
    numbers = {"bus": 0, "car": 1, None: None}
    written = [(name, domain, -1 if "004" in name else numbers[label]) for name, domain, label in rows]
    data = opened(write(manifest, written))
    assert (len(data["a"].unlabelled), data.classes) == (2, ("0", "1"))


def test_labels_may_be_numbers(tmp_path, rows):
    numbers = {"bus": 2, "car": 10, None: None}
    written = [(name, domain, numbers[label]) for name, domain, label in rows]
    for suffix in (".csv", ".parquet"):
        assert opened(write(tmp_path / f"m{suffix}", written)).classes == ("2", "10")
    floats = arrow.table({
        "path": [row[0] for row in rows],
        "domain": arrow.array([row[1] for row in rows]).dictionary_encode(),
        "label": arrow.array([float("nan") if row[2] is None else float(row[2]) for row in written], arrow.float64()),
    })  # fmt: skip
    parquet.write_table(floats, tmp_path / "pandas.parquet")
    assert opened(tmp_path / "pandas.parquet").classes == ("2", "10")


def test_a_parquet_manifest_may_have_texts_of_any_kind_but_no_column_twice(tmp_path, rows):
    paths, domains, labels = (arrow.array([row[n] for row in rows]) for n in range(3))
    columns = [paths.cast(arrow.string_view()), domains.cast(arrow.large_string()), labels, labels]
    for heads in (["path", "domain", "label", "label.x"], ["path", "domain", "label", "label"]):
        parquet.write_table(arrow.Table.from_arrays(columns, heads), tmp_path / f"{heads[-1]}.parquet")
    assert opened(tmp_path / "label.x.parquet").checksum() == opened(tmp_path / "pictures").checksum()
    fails(tmp_path / "label.parquet", "it has two columns 'label'")


def test_columns_may_have_other_names(manifest, rows):
    write(manifest, rows, ("Path", "site", "diagnosis"))
    fails(manifest, "has no column 'domain' (its columns: Path, site, diagnosis)", "data.domain_column")
    assert len(opened(manifest, domain_column="site", label_column="diagnosis").domains) == 3
    expected = opened(write(manifest, rows)).checksum()
    write(manifest, rows, ("File", "domain", "label"))
    fails(manifest, "has no column 'path' (its columns: File, domain, label)", "data.image_column")
    assert opened(manifest, image_column="file").checksum() == expected


def test_a_manifest_from_a_spreadsheet_is_read(tmp_path, rows):
    path = write(tmp_path / "m.csv", [(name, f" {domain}", label) for name, domain, label in rows])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n,,\r\n\r\n")
    assert list(opened(path).domains) == ["a", "b", "c"]


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_spreadsheets_other_separators_are_named(tmp_path, rows, sign):
    path = write(tmp_path / "m.csv", rows)
    path.write_text(path.read_text().replace(",", sign))
    fails(path, "has no column 'path'", "its columns must be separated by commas")


def test_what_is_wrong_with_a_manifest_is_one_line(tmp_path, manifest, rows):
    first = 2 if manifest.suffix == ".csv" else 1
    fails(write(manifest, [(*row, "train") for row in rows[:-1]] + [(*rows[-1], "dev")], HEADS), "unknown split 'dev'")
    fails(write(manifest, [*rows, rows[0]]), f"{rows[0][0]} stands in row {first} already")
    fails(write(manifest, [("", *rows[0][1:]), *rows[1:]]), f"row {first}: no path")
    fails(write(manifest, [*rows[:3], (rows[3][0], None, "bus")]), f"row {first + 3}: no domain")
    fails(write(manifest, [row[:2] for row in rows], HEADS[:2]), "has no column 'label'")
    fails(write(manifest, [("x", "a", "bus")][:0]), "it has no rows")
    fails(write(manifest, [row for row in rows if row[1] == "a"]), "has one domain, 'a'")
    fails(write(manifest, [(name, domain, None) for name, domain, _ in rows]), "has labels, and one must")
    manifest.write_bytes(b"\xff\xfe\x00\x01" * 9)
    fails(manifest, f"cannot read {manifest}")
    manifest.write_bytes(b"")
    fails(manifest, str(manifest))


def test_missing_files_are_counted_and_may_be_left_out(tmp_path, manifest, rows):
    write(manifest, [*rows, ("pictures/gone.png", "a", "bus"), ("pictures/too.png", "b", "car")])
    fails(manifest, "names 2 of 26 files that cannot be found, first pictures/gone.png", str(tmp_path), "--skip-bad")
    data = opened(manifest, skip_bad=True)
    assert data.checksum() == opened(tmp_path / "pictures").checksum()
    assert data.notes[0].startswith("left out: 2 images of 26 cannot be read: pictures/gone.png (No such file")


def test_a_changed_manifest_is_opened_anew(tmp_path, manifest, rows):
    before = opened(write(manifest, rows))
    assert opened(manifest) is before
    write_image(tmp_path / "new.png")
    assert len(opened(write(manifest, [*rows, ("new.png", "c", None)]))["c"].train) == 5


def test_reading_csv_needs_neither_torch_nor_arrow(tmp_path, rows):
    path = write(tmp_path / "m.csv", rows)
    code = (
        "import sys; from afield.data.open import open_data; from afield.config.data import DataOptions\n"
        f"open_data(DataOptions(name={str(path)!r}, workers=1))\n"
        "print([m for m in ('torch', 'pyarrow', 'datasets', 'lightning_fabric') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
