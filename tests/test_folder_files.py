"""The files of a folder of images: bad ones, leaks, and what is remembered of them."""

import json
import os
import shutil
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from PIL import Image

from afield.data import probing
from afield.errors import AfieldError
from support.folders import CAMERAS, fails, opened, splits_of
from support.images import write_folder, write_image

pytestmark = pytest.mark.usefixtures("own_cache")


def spoil(folder: Path) -> None:
    (folder / "camera1" / "bus" / "bad.png").write_text("no image")
    (folder / "camera1" / "car" / "gone.jpg").symlink_to(folder / "nowhere.jpg")
    whole = (folder / "camera2" / "bus" / "000.png").read_bytes()
    (folder / "camera2" / "bus" / "half.png").write_bytes(whole[: len(whole) // 2])
    (folder / "camera4" / "empty.png").touch()


def test_unreadable_files_are_named_before_anything_else_happens(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    spoil(folder)
    message = fails(folder, "4 images of 38 cannot be read: camera1/bus/bad.png (no image)", "skip_bad (--skip-bad)")
    assert "camera1/car/gone.jpg (No such file or directory), camera2/bus/half.png" in message
    assert "empty.png" not in message


def test_unreadable_files_are_left_out_on_request(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    before = opened(folder).checksum()
    spoil(folder)
    data = opened(folder, skip_bad=True)
    assert data.checksum() == before
    assert data.notes[0].startswith("left out: 4 images of 38 cannot be read: camera1/bus/bad.png (no image), ")


def test_floats_that_are_no_fractions_are_found_with_the_unreadable_files(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    before = opened(folder).checksum()
    Image.fromarray(np.full((20, 20), 200, np.float32)).save(folder / "camera1" / "bus" / "floats.tif")
    fails(folder, "1 image of 35 cannot be read: camera1/bus/floats.tif (float images hold", "--skip-bad")
    assert opened(folder, skip_bad=True).checksum() == before


def test_a_class_whose_only_images_were_left_out_is_no_class(tmp_path):
    folder = write_folder(tmp_path / "photos", {"a": {"bus": 2, "car": 2}, "b": {"bus": 2, "car": 2}})
    (folder / "b" / "tram").mkdir()
    (folder / "b" / "tram" / "x.jpg").write_text("no image")
    assert opened(folder, skip_bad=True).classes == ("bus", "car")


def test_a_file_that_goes_bad_later_is_named(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    images = opened(folder)["camera4"].train.images.sized(16, "squash")
    (folder / "camera4" / "003.png").write_text("no image")
    with pytest.raises(AfieldError, match=r"camera4/003\.png"):
        images.read(np.arange(10))


def test_leaks_are_noted(tmp_path):
    folder = write_folder(tmp_path / "photos", {"a": {"bus": 4, "car": 4}, "b": {"bus": 3, "car": 3}})
    for n in range(2):
        shutil.copy(folder / "a" / "bus" / f"00{n}.png", folder / "b" / "bus" / f"x{n}.png")
    splits_of(folder / "c", {"train": 3, "test": 2})
    shutil.copy(folder / "c" / "train" / "car" / "1.png", folder / "c" / "test" / "car" / "9.png")
    assert opened(folder).notes == (
        "leak: 2 images are in both a and b, e.g. a/bus/000.png = b/bus/x0.png",
        "leak: 1 image is in both train and test of c, e.g. c/train/car/1.png = c/test/car/9.png",
    )


def test_files_are_looked_at_once(tmp_path, monkeypatch, own_cache):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    before = opened(folder)
    assert opened(folder) is before
    assert opened(folder, skip_bad=True) is not before
    asked = []
    probe = probing.decoders(2).probe
    monkeypatch.setattr(probing.decoders(2), "probe", lambda sources: asked.extend(sources) or probe(sources))
    write_image(folder / "camera4" / "new.png")
    after = opened(folder)
    assert [Path(path).name for path in asked] == ["new.png"]
    assert len(after["camera4"].train) == 11 and after.checksum() != before.checksum()
    os.utime(folder / "camera4" / "new.png", ns=(1, 1))
    opened(folder)
    assert len(asked) == 2
    (folder / "camera4" / "new.png").unlink()
    assert opened(folder).checksum() == before.checksum()


def test_a_bar_is_shown_to_a_person_with_many_images(tmp_path, monkeypatch, capsys):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    opened(folder)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(probing, "WORTH_A_BAR", 20)
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich believe in a terminal
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "another cache"))
    opened(folder, skip_bad=True)
    assert "looking at images" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"format": 0}', f'{{"format": {probing.FORMAT}, "images": {{"x": ["zz", 1]}}}}', "\xff"],
)
def test_a_damaged_memory_costs_only_time(tmp_path, own_cache, damage):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    before = opened(folder).checksum()
    (file,) = (own_cache / "probes").iterdir()
    assert len(json.loads(file.read_text())["images"]) == 34
    file.write_text(damage)
    assert opened(folder, skip_bad=True).checksum() == before
    assert len(json.loads(file.read_text())["images"]) == 34


def test_a_memory_that_cannot_be_written_costs_only_time(tmp_path, own_cache):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    own_cache.write_text("not a folder")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(opened(folder).domains) == 3
    assert any("looked at again" in str(warning.message) for warning in caught)


@contextmanager
def without_privileges():
    """As a user who may not read everything, if this one may."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_folder_that_may_not_be_read_is_an_error():
    with TemporaryDirectory() as place:  # not pytest's own, which only its owner may enter
        Path(place).chmod(0o755)
        folder = write_folder(Path(place) / "photos", CAMERAS)
        assert len(opened(folder).domains) == 3  # imports what must be imported while this may be read
        (folder / "camera1").chmod(0)
        try:
            with without_privileges():
                fails(folder, f"cannot read folder {folder}/camera1: Permission denied")
        finally:
            (folder / "camera1").chmod(0o755)


def test_a_name_that_is_no_text_is_an_error(tmp_path):
    if sys.getfilesystemencoding() != "utf-8":
        pytest.skip("names of files are not in UTF-8 here")
    folder = write_folder(tmp_path / "photos", CAMERAS)
    try:
        (folder / "camera1" / "car").rename(folder / "camera1" / os.fsdecode(b"c\xff"))
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    fails(folder, "characters that are no text")
