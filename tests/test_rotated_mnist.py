"""Rotated MNIST in both versions, from small files of MNIST's formats."""

import numpy as np
import pytest

from afield.data.registry import list_data, load_data
from afield.data.rotated_mnist import ANGLES, read_mnist, rotated, rotated_mnist, rotated_mnist_1000
from afield.errors import AfieldError
from support.digit5_files import write_idx, write_npz

NAMES = [f"m{angle}" for angle in ANGLES]
COUNTS = {"train": 70, "test": 50}


def digits(seed=0):
    """Images as in MNIST's idx files, all different, and labels: ten classes, twelve of each."""
    rng = np.random.default_rng(seed)
    labels = np.arange(sum(COUNTS.values())) % 10
    images = rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    return {
        "train": (images[: COUNTS["train"]], labels[: COUNTS["train"]]),
        "test": (images[COUNTS["train"] :], labels[COUNTS["train"] :]),
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    write_idx(tmp_path / "digit5", digits())
    return tmp_path / "digit5"


def pixels(split):
    return split.images.read(np.arange(len(split)))


def all_of(domain):
    return np.concatenate([pixels(domain.train), pixels(domain.test)])


def test_a_quarter_turn_is_counter_clockwise_and_turns_add_up():
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 4, 14] = 200  # above the middle
    assert np.array_equal(rotated(image, 90)[0, :, :, 0], np.rot90(image[0])), "and now to the left of it"
    assert np.array_equal(rotated(image, 0)[0, :, :, 1], image[0])
    few = digits()["train"][0][:3]
    assert np.array_equal(rotated(rotated(few, 90)[..., 0], 90), rotated(few, 180))


@pytest.mark.usefixtures("folder")
def test_domainbeds_version_has_every_digit_in_one_domain():
    data = rotated_mnist()
    assert list(data.domains) == NAMES == ["m0", "m15", "m30", "m45", "m60", "m75"]
    assert (data.image_size, data.preset, data.classes) == (28, "rotated-mnist", tuple("0123456789"))
    assert [(len(domain.train), len(domain.test)) for domain in data.domains.values()] == [(16, 4)] * 6
    images, labels = read_mnist()
    found = []
    for name, angle in zip(NAMES, ANGLES, strict=True):
        turned, domain = rotated(images, angle), data[name]
        for image, label in zip(all_of(domain), [*domain.train.labels, *domain.test.labels], strict=True):
            (place,) = np.flatnonzero((turned == image).all(axis=(1, 2, 3)))
            assert labels[place] == label
            found.append(place)
    assert sorted(found) == list(range(120)), "training and test images of MNIST alike"


@pytest.mark.usefixtures("folder")
def test_the_older_version_has_the_same_digits_in_every_domain_and_tests_on_all_of_them():
    data = rotated_mnist_1000(per_class=4)
    assert (list(data.domains), data.image_size) == (NAMES, 28)
    assert any("training images" in note for note in data.notes)
    upright = pixels(data["m0"].train)
    for name, angle in zip(NAMES, ANGLES, strict=True):
        assert np.bincount(data[name].train.labels).tolist() == [4] * 10
        assert data[name].train == data[name].test
        assert np.array_equal(pixels(data[name].train), rotated(upright[..., 0], angle))
        assert np.array_equal(data[name].train.labels, data["m0"].train.labels)
    with pytest.raises(AfieldError, match=r"needs 100 images of every digit, and MNIST in .*digit5 has 12 of 0"):
        rotated_mnist_1000()


def test_it_is_the_same_every_time_and_from_every_format(folder):
    first, small = rotated_mnist().checksum(), rotated_mnist_1000(4).checksum()
    assert (rotated_mnist().checksum(), rotated_mnist_1000(4).checksum()) == (first, small)
    for file in folder.iterdir():
        file.unlink()
    padded = {
        part: (np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None].repeat(3, axis=3), labels)
        for part, (images, labels) in digits().items()
    }
    write_npz(folder / "mnist.npz", padded)
    assert rotated_mnist().checksum() == first, "cut out of the black frame"
    padded["train"][0][0, 0, 0] = 9
    write_npz(folder / "mnist.npz", padded)
    assert rotated_mnist().image_size == 28, "no frame: shrunk"
    assert rotated_mnist().checksum() != first


def test_without_mnist_it_says_what_is_missing(tmp_path, monkeypatch):
    assert {"rotated-mnist", "rotated-mnist-1000"} <= set(list_data())
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(AfieldError, match=r"missing in .*digit5: MNIST \(mnist.npz or .*afield data download digit5"):
        load_data("rotated-mnist")
