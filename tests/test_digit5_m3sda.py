"""Digit-Five from small files like those of M3SDA's authors."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from afield.config.layers import resolve
from afield.data.digit5.m3sda import DOMAINS, digit5_m3sda
from afield.data.digit5.others import M3SDA_FILES
from afield.data.registry import list_data
from afield.errors import AfieldError

COUNTS = {"train": 12, "test": 7}
SMALL = {name: replace(domain, counts=COUNTS) for name, domain in DOMAINS.items()}
SIZES = {"train": 10, "test": 5}


def made(seed, side, channels=3):
    """For each part random images and labels in which all digits occur."""
    rng = np.random.default_rng(seed)
    shape = (side, side, channels) if channels else (side, side)
    return {p: (rng.integers(0, 256, (n, *shape), np.uint8), np.arange(n) % 10) for p, n in COUNTS.items()}


def test_the_files_by_which_it_is_told_are_those_that_are_read():
    assert set(M3SDA_FILES) == {file for domain in DOMAINS.values() for file in domain.files.values()}


def one_hot(labels):
    return np.eye(10)[labels]


def write(folder):
    """The six files; what was written, by domain."""
    folder.mkdir(parents=True)
    content = {"mm": made(0, 28), "mt": made(1, 32, 0), "up": made(2, 28, 0), "sv": made(3, 32), "syn": made(4, 32)}
    mm, mt, up, sv, syn = content.values()
    hot = {f"label_{part}": one_hot(labels) for part, (_, labels) in mm.items()}
    savemat(folder / "mnistm_with_label.mat", {part: mm[part][0] for part in COUNTS} | hot)
    savemat(folder / "mnist_data.mat", {f"{part}_32": mt[part][0] for part in COUNTS} | hot)
    cells = np.empty((2, 2), object)
    for row, part in enumerate(COUNTS):
        images, labels = up[part]
        cells[row, 0], cells[row, 1] = (images / 255)[:, None].astype(np.float32), labels[:, None]
        images, labels = sv[part]
        y = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
        savemat(folder / f"svhn_{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": y})
    savemat(folder / "usps_28x28.mat", {"dataset": cells})
    values = {f"{part}_data": syn[part][0] for part in COUNTS} | {f"{p}_label": syn[p][1][:, None] for p in COUNTS}
    savemat(folder / "syn_number.mat", values)
    return content


@pytest.fixture(params=["digit5/Digit-Five", "digit5"])
def written(tmp_path, monkeypatch, request):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    return tmp_path / request.param, write(tmp_path / request.param)


def pixels(split):
    return split.images.read(np.arange(len(split)))


def test_every_file_is_read_as_its_authors_read_it(written):
    _, content = written
    data = digit5_m3sda(SIZES, SMALL)
    assert (list(data.domains), data.image_size, data.preset) == (["mm", "mt", "up", "sv", "syn"], 32, "digit5")
    for name, domain in data.domains.items():
        assert (len(domain.train), len(domain.test)) == (10, 5)
        assert domain.test.labels.tolist() == [0, 1, 2, 3, 4], "the first ones, and SVHN's 10 is a 0"
        assert not domain.stand_in
        if name in ("sv", "syn"):
            assert np.array_equal(pixels(domain.test), content[name]["test"][0][:5])
        drawn = pixels(domain.train)
        assert len({image.tobytes() for image in drawn}) == 10, "none twice"
    assert np.array_equal(pixels(data["mt"].test)[..., 1], content["mt"]["test"][0][:5])
    assert np.array_equal(pixels(data["up"].test)[..., 0], pixels(data["up"].test)[..., 2]), "grey"
    # Enlarged by interpolation, an image has the brightness it had.
    for name in ("mm", "up"):
        assert np.allclose(pixels(data[name].test).mean((1, 2, 3)), content[name]["test"][0][:5].mean(), atol=6)
    assert data.checksum() == digit5_m3sda(SIZES, SMALL).checksum()


def test_what_is_missing_or_damaged_is_said_in_one_line(written):
    folder, _ = written
    with pytest.raises(AfieldError, match=r"mnistm_with_label\.mat.*12 images, and 55,000 were published.*M3SDA"):
        digit5_m3sda()
    savemat(folder / "mnist_data.mat", {"train_32": np.zeros((12, 32, 32), np.uint8)})
    with pytest.raises(AfieldError, match=r"mnist_data\.mat cannot be used: it has no label_train; remove it"):
        digit5_m3sda(SIZES, SMALL)
    (folder / "mnist_data.mat").unlink()
    (folder / "usps_28x28.mat").write_bytes(b"no such file")
    with pytest.raises(AfieldError, match=r"missing in .*: mnist_data\.mat; .*see the folder M3SDA/code_MSDA_digit"):
        digit5_m3sda(SIZES, SMALL)


def test_it_has_the_settings_of_digit5():
    assert "digit5-m3sda" in list_data()
    assert resolve({"data": {"name": "digit5-m3sda"}}).data.preset == "digit5"
