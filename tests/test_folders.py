"""A folder of images as a data set: layouts, splits, classes, names."""

import os
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from afield.config.data import DataOptions
from afield.config.layers import resolve
from afield.data.classes import look_like_one
from afield.data.folder import read_layout
from afield.data.open import open_data, suggested_settings
from afield.data.task import make_task
from afield.errors import AfieldError
from support.folders import CAMERAS, fails, names_of, opened, splits_of
from support.images import write_folder, write_image

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_folder_of_domains_and_classes_is_a_data_set(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    data = opened(folder)
    assert data.name == str(folder)
    assert data.classes == ("bus", "car")
    assert list(data.domains) == ["camera1", "camera2", "camera4"]
    first = data["camera1"]
    assert (len(first.train), len(first.test)) == (10, 2)
    assert sorted(first.test.labels) == [0, 1]
    assert not set(names_of(first.train)) & set(names_of(first.test))
    assert all(
        ("/bus/" in n) == (label == 0) for n, label in zip(names_of(first.train), first.train.labels, strict=True)
    )
    assert (first.train.images.sizes() == [48, 40]).all()
    assert not data["camera4"].labelled
    assert (
        names_of(data["camera4"].train) == names_of(data["camera4"].test) == [f"camera4/{i:03d}.png" for i in range(10)]
    )
    assert data.notes == ("domain camera4 has no labels (10 images)",)
    task, views = make_task(data.sized(16), "uda", "camera4")
    assert [view.name for view in task.sources] == ["camera1", "camera2"]
    assert task.target.images.read(np.arange(10)).shape == (10, 16, 16, 3)
    assert not hasattr(views.target, "labels")


def test_pixels_come_from_the_right_files(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    images = opened(folder)["camera2"].train.images
    read = images.sized(24, "crop").read(np.array([3, 0]))
    for place, index in enumerate((3, 0)):
        expected = images.original(index)
        assert expected.size == (48, 40)
        one = np.asarray(expected.resize((24, 24)), float)
        assert abs(one.mean() - read[place].mean()) < 12


LAYOUTS = {
    "between": "{domain}/{split}/{label}/{n}.png",
    "above": "{split}/{domain}/{label}/{n}.png",
    "below": "{domain}/{label}/{split}/{n}.png",
    "nested": "{domain}/{split}/{label}/deep/er/{n}.png",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "words", [("train", "val", "test"), ("Train", "VALIDATION", "Test"), ("train", "valid", "test")]
)
def test_folders_of_splits_are_understood_wherever_they_stand(tmp_path, layout, words):
    seed = 0
    for domain in ("a", "b"):
        for split, count in zip(words, (3, 2, 1), strict=True):
            for label in ("bus", "car"):
                for n in range(count):
                    seed += 1
                    name = LAYOUTS[layout].format(domain=domain, split=split, label=label, n=n)
                    write_image(tmp_path / "photos" / name, seed)
    data = opened(tmp_path / "photos")
    assert data.classes == ("bus", "car") and data.notes == ()
    for domain in data.domains.values():
        assert {name: len(split) for name, split in domain.splits.items()} == {"train": 6, "validation": 4, "test": 2}
        for name, word in zip(("train", "validation", "test"), words, strict=True):
            assert all(f"/{word}/" in f"/{n}" for n in names_of(domain.splits[name]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train": 5, "val": 2}, {"train": 10, "test": 4}),
        ({"train": 5, "valid": 2}, {"train": 10, "test": 4}),
        ({"train": 5}, {"train": 8, "test": 2}),
        ({"train": 5, "test": 3}, {"train": 10, "test": 6}),
    ],
)
def test_what_the_given_splits_leave_open_is_filled_in(tmp_path, given, expected):
    splits_of(tmp_path / "photos" / "a", given)
    write_folder(tmp_path / "photos", {"b": {"bus": 2, "car": 2}})
    domain = opened(tmp_path / "photos")["a"]
    assert {name: len(split) for name, split in domain.splits.items()} == expected


def test_a_domain_without_labels_may_have_splits(tmp_path):
    write_folder(tmp_path / "photos", {"b": {"bus": 2, "car": 2}})
    splits_of(tmp_path / "photos" / "a", {"train": 4, "test": 2}, labelled=False)
    splits_of(tmp_path / "photos" / "c", {"train": 4}, labelled=False)
    data = opened(tmp_path / "photos")
    assert (len(data["a"].train), len(data["a"].test), data["a"].labelled) == (4, 2, False)
    assert names_of(data["c"].train) == names_of(data["c"].test)


def test_test_images_alone_are_an_error(tmp_path):
    splits_of(tmp_path / "photos" / "a", {"test": 4})
    write_folder(tmp_path / "photos", {"b": {"bus": 2, "car": 2}})
    fails(tmp_path / "photos", "domain a has only test images")


def test_a_class_may_be_called_train(tmp_path):
    data = opened(
        write_folder(tmp_path / "photos", {"a": {"bus": 3, "train": 3}, "b": {"car": 2, "train": 4, "bus": 2}})
    )
    assert data.classes == ("bus", "car", "train")
    assert len(data["b"].train) + len(data["b"].test) == 8


def test_splits_beside_classes_are_an_error(tmp_path):
    write_folder(tmp_path / "photos", {"a": {"bus": 3, "train": 3, "test": 3}, "b": {"bus": 2, "car": 2}})
    fails(tmp_path / "photos", "photos/a holds folders of splits (test, train) beside others (bus)")


def test_images_in_no_split_beside_images_in_one_are_an_error(tmp_path):
    write_folder(tmp_path / "photos", {"a": {"bus/train": 3, "bus/test": 2, "car": 3}, "b": {"bus": 2, "car": 2}})
    fails(tmp_path / "photos", "domain a: 3 of 8 images are in no split, such as a/car/000.png")


def test_what_is_no_image_is_ignored(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    before = opened(folder)
    for name in ("camera1/Thumbs.db", "camera1/bus/notes.txt", ".DS_Store", "camera1/bus/._000.png", "README"):
        (folder / name).write_bytes(b"no image")
    (folder / ".git" / "bus").mkdir(parents=True)
    shutil.copy(folder / "camera1" / "bus" / "000.png", folder / ".git" / "bus" / "x.png")
    (folder / "docs").mkdir()
    (folder / "camera1" / "tram").mkdir()
    write_image(folder / "plan.png")
    os.mkfifo(folder / "camera1" / "bus" / "pipe.jpg")
    after = opened(folder)
    assert after.checksum() == before.checksum()
    assert after.notes[:2] == (
        "folders without images: camera1/tram, docs",
        "left out, because they lie in no folder of a domain: plan.png",
    )


def test_photographs_in_formats_that_are_not_read_are_counted(tmp_path):
    folder = write_folder(tmp_path / "photos", CAMERAS)
    for name in ("camera1/bus/1.HEIC", "camera1/bus/2.heic", "camera4/3.dng", "camera4/._4.heic"):
        (folder / name).write_bytes(b"of a telephone")
    unread = "photographs in formats that are not read: 1 .dng, 2 .heic; convert them, for example to .jpg"
    assert opened(folder).notes[0] == f"left out: {unread}"
    for file in folder.rglob("*.png"):
        file.unlink()
    fails(folder, f"no images in {folder}: it has {unread}")


def test_links_to_files_and_folders_are_followed_and_do_not_go_round(tmp_path):
    real = write_folder(tmp_path / "real", {"camera1": {"bus": 4, "car": 4}, "camera2": {"bus": 4, "car": 4}})
    expected = opened(real).checksum()
    folder = tmp_path / "photos"
    (folder / "camera1" / "bus").mkdir(parents=True)
    for file in (real / "camera1" / "bus").iterdir():
        (folder / "camera1" / "bus" / file.name).symlink_to(file)
    (folder / "camera1" / "car").symlink_to(real / "camera1" / "car")
    (folder / "camera2").symlink_to(real / "camera2")
    (folder / "camera1" / "car" / "round").symlink_to(folder / "camera1")
    (folder / "camera1" / "car" / "self").symlink_to("self")
    assert opened(folder).checksum() == expected


def test_the_order_of_the_files_on_disk_does_not_matter(tmp_path):
    one = write_folder(tmp_path / "one", CAMERAS)
    files = sorted(path for path in one.rglob("*.png"))
    for file in reversed(files):
        copy = tmp_path / "two" / file.relative_to(one)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    assert opened(tmp_path / "two").checksum() == opened(one).checksum()


def test_the_split_depends_on_contents_alone(tmp_path):
    one = write_folder(tmp_path / "one", CAMERAS)
    two = tmp_path / "two"
    for file in sorted(one.rglob("*.png")):
        copy = two / file.relative_to(one).with_name(f"{999 - int(file.stem)}.PNG")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)

    def contents(data):
        test = data["camera1"].test.images
        return sorted(test.probes[index].digest for index in test.which)

    assert contents(opened(one)) == contents(opened(two))


def test_equal_images_are_on_one_side(tmp_path):
    folder = write_folder(tmp_path / "photos", {"a": {"bus": 10, "car": 3}, "b": {"bus": 3, "car": 3}})
    for file in list((folder / "a" / "bus").iterdir()):
        for copy in range(2):
            shutil.copy(file, file.with_name(f"{file.stem}-{copy}.png"))
    shutil.copy(folder / "a" / "bus" / "000.png", folder / "a" / "car" / "x.png")
    data = opened(folder)
    train, test = ({s.images.probes[i].digest for i in s.images.which} for s in (data["a"].train, data["a"].test))
    assert not train & test
    assert len(data["a"].test) == 2 * 3 + 1
    assert data.notes == ("1 image has more than one label, e.g. a/bus/000-0.png (bus) = a/car/x.png (car)",)


def test_one_image_of_a_class_is_not_enough_to_split(tmp_path):
    folder = write_folder(tmp_path / "photos", {"a": {"bus": 4, "tram": 1}, "b": {"bus": 3, "tram": 3}})
    fails(folder, "class tram of domain a has one image, and two are needed: one to learn from, one to test on")
    shutil.copy(folder / "a" / "tram" / "000.png", folder / "a" / "tram" / "copy.png")
    fails(folder, "class tram of domain a has one image, in 2 copies, and two are needed")


def test_a_domain_may_have_some_labels(tmp_path):
    folder = write_folder(tmp_path / "photos", {"a": {"bus": 5, "car": 5}, "b": {"bus": 3, "car": 3}})
    write_folder(tmp_path / "photos", {"a": 7}, seed=1)
    data = opened(folder)
    assert {name: len(split) for name, split in data["a"].splits.items()} == {"train": 8, "test": 2, "unlabelled": 7}
    assert data.notes == ("domain a: 7 of 17 images have no label",)
    assert len(make_task(data.sized(16), "uda", "a")[0].target.images) == 15


def test_a_domain_may_lack_classes(tmp_path):
    data = opened(write_folder(tmp_path / "photos", {"a": {"bus": 2, "car": 2, "tram": 2}, "b": {"car": 2}}))
    assert data.classes == ("bus", "car", "tram")
    assert data.notes == ("domain b has no images of: bus, tram",)
    assert set(data["b"].train.labels) == {1}


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"a": {"bus": 2, "car": 2}}, "has one domain, 'a'; two are needed"),
        ({"a": 2, "b": 2}, "none of the domains a, b has labels"),
        ({"a": {"bus": 2}, "b": {"bus": 2}}, "has one class, 'bus'"),
        ({}, "no images in"),
        ({".": 3}, "lie in no folder of a domain"),
        ({"train": {"bus": 2, "car": 2}, "test": {"bus": 2, "car": 2}}, "none of the domains bus, car has labels"),
    ],
)
def test_what_no_task_can_be_made_of_is_an_error(tmp_path, layout, words):
    (tmp_path / "photos").mkdir()
    assert "DOMAIN/CLASS/*.jpg" in fails(write_folder(tmp_path / "photos", layout), words)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Car", "car"), ("street car", "street_car"), ("Street-Car", "streetcar"), ("bicycle", "bicylce"),
        ("truck", "trucks"), ("motorbike", "motobike"), ("helicopter", "helikopter"), ("T-shirt", "tshirt"),
    ],
)  # fmt: skip
def test_two_spellings_of_a_class_are_noticed(one, other):
    assert look_like_one(one, other) and look_like_one(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("class1", "class2"), ("class1", "class12"), ("cat", "cats"), ("bus", "bun"), ("house", "mouse"),
        ("typical", "atypical"), ("symptomatic", "asymptomatic"), ("normal", "abnormal"), ("benign", "malignant"),
        ("0", "1"), ("a", "b"), ("model s", "model x"), ("boeing 737", "boeing 787"), ("-", "_"),
        ("stage2b", "stage3b"),
    ],
)  # fmt: skip
def test_two_classes_are_not_taken_for_one(one, other):
    assert not look_like_one(one, other) and not look_like_one(other, one)


def test_two_spellings_are_an_error_where_no_domain_has_both(tmp_path):
    folder = write_folder(tmp_path / "photos", {"camera1": {"Car": 2, "bus": 2}, "camera2": {"car": 2, "bus": 2}})
    fails(folder, "'Car' in camera1 and 'car' in camera2 look like one class; rename one")
    write_folder(folder, {"camera2": {"Car": 2}}, seed=1)
    assert opened(folder).classes == ("Car", "bus", "car")


def test_one_name_in_two_encodings_is_not_two_classes(tmp_path):
    one, other = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    write_folder(tmp_path, {"a": {one: 2, "car": 2}, "b": {other: 2, "car": 2}})
    fails(
        tmp_path, f"'{one}' in a", f"'{other}' in b", "look like one class: only their accents are encoded in two ways"
    )
    assert not look_like_one("café", "cafe")


def test_a_name_that_is_nothing_gets_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, words in {
        "digts": "did you mean 'digits'?",
        "photos/": "no such file or folder: photos/",
        "photos.csv": "no such file or folder: photos.csv",
        "x" * 5000: "unknown data set",
    }.items():
        with pytest.raises(AfieldError) as caught:
            open_data(DataOptions(name=name))
        assert words in str(caught.value)
    Path("photos.zip").touch()
    fails(Path("photos.zip"), "neither a folder of images nor a manifest (.csv, .parquet)")


def test_settings_follow_the_size_of_the_images(tmp_path):
    small = opened(write_folder(tmp_path / "small", CAMERAS))
    square = opened(write_folder(tmp_path / "square", CAMERAS, size=(40, 40)))
    large = opened(write_folder(tmp_path / "large", CAMERAS, size=(80, 80)))
    options = DataOptions()
    assert suggested_settings(small, options) == {"data": {"preset": "small"}}
    assert suggested_settings(square, options) == {"data": {"preset": "small", "image_size": 40}}
    assert suggested_settings(large, options) == {"data": {"preset": "photos"}}
    assert suggested_settings(large, DataOptions(preset="small")) == {"data": {"preset": "small", "image_size": 80}}
    assert suggested_settings(square, DataOptions(preset="photos")) == {"data": {"preset": "photos"}}


def test_presets_for_images_of_ones_own_are_whole():
    small, photos = (resolve({"data": {"name": "x/", "preset": preset}}) for preset in ("small", "photos"))
    assert (small.data.image_size, small.network.backbone, small.training.steps) == (32, "digit", 1000)
    assert (photos.data.image_size, photos.data.augmentation) == (224, "photos")
    assert (photos.network.backbone, photos.network.pretrained, photos.training.lr) == ("resnet18", True, 0.05)


def test_a_layout_is_read_without_a_disk():
    places = read_layout([["a"], ["a", "train"], ["a", "test"], ["b", "x", "y", "train"], ["b", "z"]], "root")
    assert [(p.split, p.domain, p.label) for p in places] == [
        (None, "a", None), ("train", "a", None), ("test", "a", None), (None, "b", "x"), (None, "b", "z"),
    ]  # fmt: skip
