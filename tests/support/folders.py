"""Folders of images as data sets, for several test files."""

from pathlib import Path

import pytest

from afield.config.data import DataOptions
from afield.data.domain import DomainSet
from afield.data.open import open_data
from afield.errors import AfieldError
from support.images import write_image

CAMERAS = {"camera1": {"bus": 6, "car": 6}, "camera2": {"bus": 5, "car": 7}, "camera4": 10}


def opened(folder: Path, **options) -> DomainSet:
    return open_data(DataOptions(name=str(folder), workers=2, **options))


def names_of(split) -> list[str]:
    return [split.images.sources.names[index] for index in split.images.which]


def fails(folder: Path, *words: str, **options) -> str:
    with pytest.raises(AfieldError) as caught:
        opened(folder, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def splits_of(root: Path, counts: dict[str, int], labelled: bool = True) -> None:
    for number, (split, count) in enumerate(counts.items()):
        for n in range(count):
            for label in ("bus", "car") if labelled else (".",):
                write_image(root / split / label / f"{n}.png", 1000 * number + 2 * n + (label == "car"))
