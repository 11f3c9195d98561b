"""Images in memory as a data set."""

import numpy as np
import pytest
import torch

from afield.config.data import DataOptions
from afield.data.arrays import from_arrays
from afield.data.open import suggested_settings
from afield.data.task import make_task
from afield.errors import AfieldError

COUNT = 24
DOMAINS = ["a"] * 10 + ["b"] * 10 + ["c"] * 4
LABELS = ["bus", "car"] * 10 + [None] * 4


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def fails(words: str, *given, **options) -> None:
    with pytest.raises(AfieldError) as caught:
        from_arrays(*given, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_are_a_data_set():
    images = pixels(COUNT, 16, 16, 3)
    data = from_arrays(images, LABELS, DOMAINS)
    assert (data.name, data.classes, data.image_size) == ("arrays", ("bus", "car"), 16)
    assert {name: (len(d.train), len(d.test), d.labelled) for name, d in data.domains.items()} == {
        "a": (8, 2, True), "b": (8, 2, True), "c": (4, 4, False),
    }  # fmt: skip
    assert data.notes == ("domain c has no labels (4 images)",)
    known = {image.tobytes(): n for n, image in enumerate(images)}
    for domain in ("a", "b"):
        for split in data[domain].splits.values():
            for image, label in zip(split.images.read(np.arange(len(split))), split.labels, strict=True):
                number = known[image.tobytes()]
                assert DOMAINS[number] == domain and LABELS[number] == data.classes[label]
    assert suggested_settings(data, DataOptions()) == {"data": {"preset": "small", "image_size": 16}}
    assert len(make_task(data, "uda", "c")[0].target.images) == 4


@pytest.mark.parametrize("shape", [(16, 12), (16, 12, 1)])
def test_grey_images_become_rgb(shape):
    images = pixels(COUNT, *shape)
    read = from_arrays(images, LABELS, DOMAINS)["c"].train.images
    assert np.array_equal(np.asarray(read.original(1)), np.repeat(images[21].reshape(16, 12, 1), 3, axis=2))
    assert read.side is None and read.sized(8, "crop").read(np.arange(4)).shape == (4, 8, 8, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_become_bytes(dtype):
    images = pixels(COUNT, 8, 8, 3)
    data = from_arrays((images / 255).astype(dtype), LABELS, DOMAINS)
    assert data.checksum() == from_arrays(images, LABELS, DOMAINS).checksum()


def test_a_list_may_hold_images_of_any_sizes():
    images = [pixels(8 + n, 9, 3, seed=n) for n in range(COUNT - 1)] + [pixels(9, 9)]
    data = from_arrays(images, LABELS, DOMAINS)
    assert data.image_size is None
    assert data["c"].train.images.sizes().tolist() == [[9, 28], [9, 29], [9, 30], [9, 9]]
    assert data.sized(8)["a"].train.images.read(np.arange(8)).shape == (8, 8, 8, 3)
    assert from_arrays(list(pixels(COUNT, 8, 8, 3)), LABELS, DOMAINS).image_size == 8


def test_labels_may_be_a_list_of_numpys_or_pytorchs_numbers():
    numbers = np.array([0, 1, 2, -1] * 6)
    for labels in (list(numbers), list(torch.from_numpy(numbers))):
        data = from_arrays(pixels(24, 8, 8, 3), labels, ["a"] * 12 + ["b"] * 12)
        assert data.classes == ("0", "1", "2")


def test_labels_may_be_numbers_names_or_missing():
    images = pixels(COUNT, 8, 8, 3)
    numbers = np.array([10, 2] * 10 + [-1] * 4)
    data = from_arrays(images, numbers, np.array(DOMAINS))
    assert data.classes == ("2", "10") and not data["c"].labelled
    named = from_arrays(images, np.array([1, 0] * 10 + [-1] * 4), DOMAINS, classes=["zebra", "ape", "gnu"])
    assert named.classes == ("zebra", "ape", "gnu")
    assert named.notes[1:] == ("domain a has no images of: gnu", "domain b has no images of: gnu")
    half = from_arrays(images, [None, "", *LABELS[2:20], float("nan"), None, "", -1], DOMAINS)
    assert len(half["a"].unlabelled) == 2


def test_splits_may_be_given():
    splits = ["train", "train", "val", "val", "test", "test", *["train"] * 4] * 2 + ["train", "train", "test", "test"]
    data = from_arrays(pixels(COUNT, 8, 8, 3), LABELS, DOMAINS, splits=splits, name="mine")
    assert data.name == "mine"
    assert {name: len(split) for name, split in data["a"].splits.items()} == {"train": 6, "validation": 2, "test": 2}
    assert len(data["c"].test) == 2


def test_images_may_come_by_domain():
    images = pixels(COUNT, 8, 8, 3)
    parts = {"a": (images[:10], LABELS[:10]), "b": (images[10:20], LABELS[10:20]), "c": (images[20:], None)}
    assert from_arrays(parts).checksum() == from_arrays(images, LABELS, DOMAINS).checksum()
    fails("labels of b", parts | {"b": (images[:3], ["bus"])})
    fails("must be a pair", parts | {"b": images[:3]})
    fails("come with their labels", parts, LABELS)


def test_the_same_checks_are_made_as_for_files():
    images = pixels(COUNT, 8, 8, 3)
    images[11] = images[0]
    assert "leak: 1 image is in both a and b, e.g. image 0 = image 11" in from_arrays(images, LABELS, DOMAINS).notes
    fails("has one domain, 'a'", images, LABELS, ["a"] * COUNT)
    fails("has one class, 'bus'", images, ["bus"] * COUNT, DOMAINS)
    fails("none of the domains a, b, c has labels", images, None, DOMAINS)
    fails("class tram of domain a has one image", images, ["tram", *LABELS[1:]], DOMAINS)
    fails("look like one class", images, ["Bus" if n < 10 and b == "bus" else b for n, b in enumerate(LABELS)], DOMAINS)


def test_what_is_wrong_with_arrays_is_one_line():
    images = pixels(COUNT, 8, 8, 3)
    fails("24 images but 23 labels", images, LABELS[1:], DOMAINS)
    fails("24 images but 25 domains", images, LABELS, [*DOMAINS, "c"])
    fails("domains are missing", images, LABELS)
    fails("unknown split 'dev'", images, LABELS, DOMAINS, splits=["dev"] * COUNT)
    fails("(channels come last)", images.transpose(0, 3, 1, 2), LABELS, DOMAINS)
    fails("images must be (number, height, width[, channels])", images[0, 0], LABELS, DOMAINS)
    fails("dtype int64; it must be uint8", images.astype(np.int64), LABELS, DOMAINS)
    fails("image 0 has values from 0 to ", images.astype(np.float32), LABELS, DOMAINS)
    broken = images / 255
    broken[3, 0, 0, 0] = np.nan
    fails("image 3 has values that are no numbers", broken, LABELS, DOMAINS)
    fails("image 1 of shape (2, 2, 4)", [images[0], pixels(2, 2, 4)], LABELS[:2], DOMAINS[:2])
    fails("image 0 of shape (0, 4)", [pixels(0, 4)], ["bus"], ["a"])
    fails("must be an array or a list of arrays", "photos/", LABELS, DOMAINS)
    fails("arrays has no images", images[:0], [], [])
    fails("no images in the list", [], [], [])
    fails("image 0 has label 7, but classes has 2 names", images, [7] * COUNT, DOMAINS, classes=["x", "y"])
    fails("did you mean 'bus'?", images, ["bush", *LABELS[1:]], DOMAINS, classes=["bus", "car"])
    fails("must be a name or a whole number, not 0.5", images, [0.5, *LABELS[1:]], DOMAINS)
    fails("domain of image 0 must be a name", images, LABELS, [1, *DOMAINS[1:]])
    fails("labels must be a list", images, "bus", DOMAINS)
