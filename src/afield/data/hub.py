"""A Hugging Face data set, from the hub (`hf:NAME` or `hf:NAME:CONFIG`) or from a folder that `save_to_disk` wrote."""

import bisect
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from afield.data.entries import SPLITS, ImageEntry, Listing, counted, some_of, stamp
from afield.errors import AfieldError

PREFIX = "hf:"
LABEL_COLUMNS = ("label", "labels", "class", "category", "fine_label")
DOMAIN_COLUMNS = ("domain", "style", "environment", "env", "camera", "hospital")
LAYOUT = "a data set needs a column of images, one of labels and one of domains"


class EncodedColumn:
    """A column of images in the tables of several splits, one after the other. Read row by row; nothing is kept."""

    def __init__(self, tables: Sequence[Any], column: str) -> None:
        self.tables, self.column = tables, column
        self.starts = [0]
        for table in tables:
            self.starts.append(self.starts[-1] + len(table))
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: int) -> str | bytes:
        number = bisect.bisect_right(self.starts, index) - 1
        with self._one_at_a_time:  # `datasets` promises nothing to threads
            image = self.tables[number][index - self.starts[number]][self.column] or {}
        return image.get("bytes") or image.get("path") or b""

    def __getstate__(self) -> dict[str, Any]:
        return {"tables": self.tables, "column": self.column}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` has written this folder."""
    return (folder / "dataset_dict.json").is_file() or all(
        (folder / name).is_file() for name in ("dataset_info.json", "state.json")
    )


def list_hub(name: str, *, image: str = "", domain: str = "", label: str = "") -> Listing:
    """The images of a data set. `image`, `domain` and `label` are those columns, where their names do not tell."""
    tables, notes = _by_split(name, _load(name))
    features = next(iter(tables.values())).features
    image = _image_column(name, features, image)
    domain = _domain_column(name, features, domain)
    label = _label_column(name, features, label, domain)
    entries: list[ImageEntry] = []
    stamps: list[str] = []
    for split, table in tables.items():
        if not {image, domain, label} <= set(table.column_names):
            raise AfieldError(f"{name}: the split {split} lacks one of the columns {image}, {domain}, {label}")
        columns = table.select_columns([domain, label]).to_dict()
        domains = _names(columns[domain], table.features[domain])
        labels = _names(columns[label], table.features[label])
        files = [_version(file["filename"]) for file in table.cache_files]
        version = stamp(files) if files else ""  # a table in memory has nothing that tells of a change
        for row, (where, what) in enumerate(zip(domains, labels, strict=True)):
            if where is None:
                raise AfieldError(f"{name}: row {row} of {split or 'the table'} has no {domain}")
            entries.append(ImageEntry(f"{split or 'row'}[{row}]", where, what, SPLITS.get(split.lower())))
            stamps.append(stamp(version, image, row) if version else "")
    encoded = [table.select_columns([image]).cast_column(image, _undecoded()) for table in tables.values()]
    place = f"hf {os.path.abspath(name) if is_saved(Path(name)) else name}"  # noqa: PTH100
    origin = f"Hugging Face data set {name.removeprefix(PREFIX)}"
    return Listing(entries, EncodedColumn(encoded, image), stamps, place, origin, LAYOUT, tuple(notes))


def _load(name: str) -> Any:
    """A table, or tables by split. Whatever goes wrong on the way to it is one line."""
    try:
        import datasets
    except ImportError as error:
        raise AfieldError('a Hugging Face data set needs the package datasets: pip install "afield[hub]"') from error
    bare = name.removeprefix(PREFIX)
    try:
        if is_saved(Path(bare)):
            return datasets.load_from_disk(bare)
        path, _, config = bare.partition(":")
        if not path:
            raise AfieldError(f"{name} names no data set: hf:NAME, or hf:NAME:CONFIG")
        return _load_remote(path, config)
    except AfieldError:
        raise
    except Exception as error:  # the hub, the network, a file format or a stranger's table: there is no end of kinds
        reason = " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__
        raise AfieldError(f"cannot load {name}: {reason}") from error


@lru_cache(maxsize=2)
def _load_remote(path: str, config: str) -> Any:
    # Once per process: the hub is asked each time, which takes seconds.
    import datasets

    return datasets.load_dataset(path, config or None)


def _by_split(name: str, loaded: Any) -> tuple[dict[str, Any], list[str]]:
    """The tables whose splits we know, and a note of others; a lone table is in no split."""
    if not isinstance(loaded, dict):
        return {"": loaded}, []
    known = {split: table for split, table in loaded.items() if split.lower() in SPLITS}
    if not known:
        raise AfieldError(
            f"{name} has the splits {some_of(loaded, 10)}; train is needed; validation and test are optional"
        )
    others = [f"{split} ({counted(len(table))})" for split, table in loaded.items() if split not in known]
    return known, [
        f"left out, because they are neither train, validation nor test: {some_of(others, 10)}"
    ] if others else []


def _image_column(name: str, features: Any, wanted: str) -> str:
    import datasets

    found = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    if wanted:
        if _present(name, features, wanted, "image_column") not in found:
            raise AfieldError(f"{name}: the column '{wanted}' (data.image_column) does not hold images")
        return wanted
    if not found:
        raise AfieldError(f"{name} has no column of images; its columns: {some_of(features, 10)}")
    return "image" if "image" in found else str(found[0])


def _domain_column(name: str, features: Any, wanted: str) -> str:
    if wanted:
        return _present(name, features, wanted, "domain_column")
    found = [column for column in DOMAIN_COLUMNS if column in features]
    if not found:
        raise AfieldError(
            f"{name} has no column domain; its columns: {some_of(features, 10)}; "
            "data.domain_column says which one tells the domains"
        )
    return found[0]


def _label_column(name: str, features: Any, wanted: str, domain: str) -> str:
    import datasets

    if wanted:
        return _present(name, features, wanted, "label_column")
    found = [column for column in LABEL_COLUMNS if column in features and column != domain]
    typed = [c for c, feature in features.items() if isinstance(feature, datasets.ClassLabel) and c != domain]
    if not found and len(typed) == 1:
        found = typed
    if not found:
        raise AfieldError(
            f"{name} has no column label; its columns: {some_of(features, 10)}; "
            "data.label_column says which one holds the classes"
        )
    return found[0]


def _present(name: str, features: Any, column: str, option: str) -> str:
    if column not in features:
        raise AfieldError(f"{name} has no column '{column}' (data.{option}); its columns: {some_of(features, 10)}")
    return column


def _names(values: Sequence[Any], feature: Any) -> list[str | None]:
    """Values of a column as names; None where there is none, which a numbered class writes as -1."""
    import datasets

    if isinstance(feature, datasets.ClassLabel):
        return [None if value is None or value < 0 else str(feature.names[value]) for value in values]
    return [None if value is None or value == -1 else str(value).strip() or None for value in values]


def _undecoded() -> Any:
    import datasets

    return datasets.Image(decode=False)


def _version(file: str) -> tuple[str, int, int]:
    """What changes when a table's file does."""
    status = os.stat(file)  # noqa: PTH116
    return file, status.st_size, status.st_mtime_ns
