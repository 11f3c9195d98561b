"""Digit-Five from small files of every format, and what is said of files that are missing, wrong or damaged."""

import bz2
import gzip
import json
import shutil
import sys
from types import SimpleNamespace
from urllib.error import URLError

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from afield import cli
from afield.config import resolve
from afield.domains import Augmentation, digit5, load_data, register_data
from afield.domains import domain as domain_module
from afield.domains import registry as data_registry
from afield.domains.digit5 import rendered
from afield.domains.digit5.load import SIZES, draw
from afield.domains.digits.glyphs import draw_outlined
from afield.errors import AfieldError
from afield.run import make_header

ORDER = ["mm", "mt", "up", "sv", "syn"]
NPZ = {"mm": "mnist_m.npz", "mt": "mnist.npz", "up": "usps.npz", "sv": "svhn.npz", "syn": "syn.npz"}
COUNTS = {"train": 12, "test": 7}
SMALL = {"train": 20, "test": 10}


def colours(seed, count):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.permutation(np.arange(count) % 10)


def parts(seed=0, counts=COUNTS):
    return {part: colours((seed, number), count) for number, (part, count) in enumerate(counts.items())}


def write_npz(path, content, **changes):
    arrays = {f"{key}_{part}": pair[i] for part, pair in content.items() for i, key in enumerate("xy")}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez(path, **arrays)


def write_idx(folder, content, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in zip(("train", "t10k"), content.values(), strict=True):
        for kind, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True):
            array = array.astype(np.uint8)
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            data = header + array.tobytes()
            (folder / f"{name}-{kind}-ubyte{suffix}").write_bytes(gzip.compress(data) if suffix else data)


def write_pngs(folder, content):
    for part, (images, labels) in content.items():
        (folder / "mnist_m" / f"mnist_m_{part}").mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / "mnist_m" / f"mnist_m_{part}" / f"{number:08}.png")
        lines = [f"{number:08}.png {label}\n" for number, label in enumerate(labels)]
        (folder / "mnist_m" / f"mnist_m_{part}_labels.txt").write_text("".join(lines))


def write_mats(folder, content, prefix="", zero=10):
    for part, (images, labels) in content.items():
        y = np.where(labels == 0, zero, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{prefix}{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": y}, do_compression=True)


def write_libsvm(folder, content):
    for name, (values, labels) in zip(("usps.bz2", "usps.t.bz2"), content.values(), strict=True):
        lines = [
            " ".join([str(label + 1), *(f"{place}:{value:.6f}" for place, value in enumerate(row, 1))]) + " \n"
            for row, label in zip(values, labels, strict=True)
        ]
        (folder / name).write_bytes(bz2.compress("".join(lines).encode()))


def write_h5(path, content):
    with h5py.File(path, "w") as file:
        for part, (values, labels) in content.items():
            file[f"{part}/data"], file[f"{part}/target"] = ((values + 1) / 2).astype(np.float32), labels


def usps_values():
    """Grey values as USPS has them, with three decimals; all that lie halfway between two grey levels occur."""
    rng = np.random.default_rng(3)
    content = {
        part: (rng.integers(-1000, 1001, (count, 256)) / 1000, np.arange(count) % 10) for part, count in COUNTS.items()
    }
    content["train"][0][0, :7] = [-1, -0.8, -0.4, 0, 0.4, 0.8, 1]
    return content


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all domains but `syn`, as npz."""
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "digit5"
    folder.mkdir(parents=True)
    for seed, name in enumerate(ORDER[:4]):
        write_npz(folder / NPZ[name], parts(seed))
    return folder


@pytest.fixture
def refusal(folder, tmp_path, capsys, monkeypatch):
    """What the command line says when it refuses to show the data: one line."""

    def refuse():
        monkeypatch.setattr(sys, "argv", ["afield", "data", "show", "digit5", "--out", str(tmp_path / "x.png")])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert said.count("\n") == 1, said
        return said

    return refuse


def assert_holds(domain, content):
    for part, (images, labels) in content.items():
        split = getattr(domain, part)
        assert np.array_equal(split.images, images), part
        assert np.array_equal(split.labels, labels), part


# What the data set is


def test_domains_in_their_order(folder):
    data = digit5.digit5(SMALL)
    assert list(data.domains) == ORDER
    assert [domain.name for domain in data.domains.values()] == ORDER
    assert data.classes == tuple("0123456789")
    assert (data.image_size, data.augmentation) == (32, Augmentation(shift=2, flip=False))
    assert SIZES == {"train": 25_000, "test": 9_000}
    for seed, name in enumerate(ORDER[:4]):
        assert_holds(data[name], parts(seed))
    assert "data" not in " ".join(domain.origin for domain in data.domains.values())


def test_larger_sets_are_drawn_down_and_smaller_ones_are_whole(folder):
    write_npz(folder / "svhn.npz", parts(7, {"train": 50, "test": 10}))
    data = digit5.digit5(SMALL)
    images, labels = parts(7, {"train": 50, "test": 10})["train"]
    train = data["sv"].train
    places = [int(np.flatnonzero((images == image).all(axis=(1, 2, 3)))[0]) for image in train.images]
    assert len(train) == len(set(places)) == 20
    assert np.array_equal(train.labels, labels[places])
    assert max(places) > 20
    assert_holds(data["sv"], {"test": parts(7, {"train": 50, "test": 10})["test"]})
    again = digit5.digit5(SMALL)
    assert again.checksum() == data.checksum()


def test_a_draw_follows_from_the_names_of_domain_and_part_alone(folder):
    draws = {(name, part): tuple(draw(500, 100, f"{name}/{part}")) for name in ORDER for part in SIZES}
    assert len(set(draws.values())) == 10
    assert draws["sv", "train"] == tuple(draw(500, 100, "sv/train"))
    assert draw(500, 100, "sv/train")[:50].tolist() == draw(500, 50, "sv/train").tolist()
    assert draw(100, 100, "sv/train").tolist() == draw(100, 200, "sv/train").tolist() == list(range(100))

    large = {name: parts(seed, {"train": 30, "test": 10}) for seed, name in enumerate(ORDER[:4])}
    write_npz(folder / "mnist.npz", large["mt"])
    before = digit5.digit5(SMALL)["mt"].train.images
    write_npz(folder / "mnist_m.npz", large["mm"])
    write_npz(folder / "svhn.npz", large["sv"])
    assert np.array_equal(digit5.digit5(SMALL)["mt"].train.images, before)


# The formats


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", ["", "MNIST/raw"])
def test_mnist_as_idx_files(folder, place, suffix):
    content = {part: (images[:, :28, :28, 0], labels) for part, (images, labels) in parts(1).items()}
    padded = {
        part: (np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None].repeat(3, axis=3), labels)
        for part, (images, labels) in content.items()
    }
    write_npz(folder / "mnist.npz", padded)
    as_npz = digit5.digit5(SMALL).checksum()
    (folder / "mnist.npz").unlink()
    write_idx(folder / place, content, suffix)
    data = digit5.digit5(SMALL)
    assert_holds(data["mt"], padded)
    assert data.checksum() == as_npz


def test_mnist_m_as_png_files(folder):
    (folder / "mnist_m.npz").unlink()
    content = parts(0, {"train": 30, "test": 10})
    write_pngs(folder, content)
    as_pngs = digit5.digit5(SMALL)
    write_npz(folder / "mnist_m.npz", content)
    assert as_pngs.checksum() == digit5.digit5(SMALL).checksum()
    assert len(as_pngs["mm"].train) == 20


def test_usps_as_libsvm_and_as_hdf5(folder):
    (folder / "usps.npz").unlink()
    content = usps_values()
    write_libsvm(folder, content)
    up = digit5.digit5(SMALL)["up"]
    for path in folder.glob("*.bz2"):
        path.unlink()
    write_h5(folder / "usps.h5", content)
    assert_holds(
        digit5.digit5(SMALL)["up"], {part: (s.images, s.labels) for part, s in vars(up).items() if part in SMALL}
    )

    values, labels = content["train"]
    grey = np.array([[round(value * 1000 + 1000) * 255 + 1000] for value in values.ravel()]) // 2000
    grey = grey.astype(np.uint8).reshape(-1, 16, 16)
    assert grey[0, 0, :7].tolist() == [0, 26, 77, 128, 179, 230, 255]
    wanted = [np.asarray(Image.fromarray(digit).resize((28, 28), Image.Resampling.BICUBIC)) for digit in grey]
    assert np.array_equal(up.train.images[:, 2:30, 2:30, 1], wanted)
    assert not up.train.images[:, [0, 1, 30, 31]].any()
    assert np.array_equal(up.train.labels, labels)


def test_svhn_as_mat_files_whose_ten_is_a_zero(folder):
    (folder / "svhn.npz").unlink()
    write_mats(folder, parts(3))
    assert_holds(digit5.digit5(SMALL)["sv"], parts(3))
    assert 0 in digit5.digit5(SMALL)["sv"].train.labels


def test_npz_is_looked_for_first_and_a_whole_format_before_a_part_of_one(folder):
    write_mats(folder, parts(8))
    assert_holds(digit5.digit5(SMALL)["sv"], parts(3))
    (folder / "svhn.npz").unlink()
    assert_holds(digit5.digit5(SMALL)["sv"], parts(8))

    (folder / "usps.npz").unlink()
    write_libsvm(folder, usps_values())
    (folder / "usps.t.bz2").unlink()
    write_h5(folder / "usps.h5", usps_values())
    assert len(digit5.digit5(SMALL)["up"].test) == 7


# The stand-in


def test_syn_is_rendered_where_it_is_missing_and_says_so(folder, tmp_path):
    data = digit5.digit5(SMALL)
    syn = data["syn"]
    assert [domain.stand_in for domain in data.domains.values()] == [False] * 4 + [True]
    assert syn.origin.startswith("rendered by afield")
    assert "not found" in syn.origin
    assert (len(syn.train), len(syn.test)) == (20, 10)
    assert (np.bincount(syn.train.labels) == 2).all()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["digit5-syn-v1-20-10.npz"]


@pytest.mark.parametrize("zero", [0, 10])
def test_published_syn_takes_the_stand_ins_place(folder, zero, monkeypatch):
    monkeypatch.setattr(digit5, "rendered_digits", lambda sizes: pytest.fail("rendered"))
    write_mats(folder, parts(4), "synth_", zero)
    syn = digit5.digit5(SMALL)["syn"]
    assert_holds(syn, parts(4))
    assert not syn.stand_in
    write_npz(folder / "syn.npz", parts(5))
    assert_holds(digit5.digit5(SMALL)["syn"], parts(5))


def test_the_renderer_gives_the_same_bits_from_the_cache_and_anew(folder, tmp_path, monkeypatch):
    first = rendered.rendered_digits(SMALL)
    monkeypatch.setattr(rendered, "render", lambda *_: pytest.fail("rendered again"))
    cached = rendered.rendered_digits(SMALL)
    monkeypatch.undo()
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other"))
    anew = rendered.rendered_digits(SMALL)
    for part in SMALL:
        for other in (cached, anew):
            assert np.array_equal(first[part].images, other[part].images)
            assert np.array_equal(first[part].labels, other[part].labels)


def test_no_rendered_image_occurs_twice_and_each_shows_something(monkeypatch):
    monkeypatch.setattr(rendered, "_CHUNK", 40)
    arrays = rendered._render_parts({"train": 120, "test": 60})
    images = np.concatenate([arrays["train/images"], arrays["test/images"]])
    assert len({image.tobytes() for image in images}) == 180
    assert images.shape[1:] == (32, 32, 3)
    assert images.std(axis=(1, 2)).max(axis=1).min() > 10


def test_an_outline_surrounds_the_ink():
    plain, outlined = (np.asarray(draw_outlined("182", "DejaVuSans", stroke)).astype(int) for stroke in (0, 5))
    assert np.array_equal(plain[..., 0], plain[..., 1])
    assert (outlined[..., 0] >= outlined[..., 1]).all()
    assert outlined[..., 0].sum() > 1.3 * outlined[..., 1].sum()
    middle = np.s_[:, 140:160]
    assert outlined[middle][..., 1].sum() == pytest.approx(plain[middle][..., 1].sum(), rel=0.05)


def test_only_records_about_stand_ins_name_them(folder):
    config, device = resolve({"task": {"target": "street"}}), torch.device("cpu")
    header = make_header(config, digit5.digit5(SMALL), device)
    assert header["protocol"]["stand_ins"] == ["syn"]
    assert str(folder.parent) not in json.dumps(header)
    write_npz(folder / "syn.npz", parts(5))
    assert "stand_ins" not in make_header(config, digit5.digit5(SMALL), device)["protocol"]


# What is loaded once


def test_data_is_loaded_once_a_folder(folder, tmp_path, monkeypatch):
    write_npz(folder / "syn.npz", parts(4))
    data = load_data("digit5")
    assert load_data("digit5") is data
    (tmp_path / "here" / "data").mkdir(parents=True)
    folder.rename(tmp_path / "here" / "data" / "digit5")
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(AfieldError, match="nowhere"):
        load_data("digit5")
    monkeypatch.delenv("AFIELD_DATA")
    monkeypatch.chdir(tmp_path / "here")
    again = load_data("digit5")
    assert again is not data
    assert again.checksum() == data.checksum()
    monkeypatch.chdir(tmp_path / "here" / "data")
    with pytest.raises(AfieldError, match="no folder data/digit5"):
        load_data("digit5")


def test_a_name_registered_anew_is_loaded_anew(monkeypatch):
    monkeypatch.setattr(data_registry, "_builders", {})
    first, second = SimpleNamespace(), SimpleNamespace()
    register_data("x")(lambda: first)
    assert load_data("x") is first
    register_data("x")(lambda: second)
    assert load_data("x") is second


def test_a_checksum_is_computed_once_an_object(folder, monkeypatch):
    write_npz(folder / "syn.npz", parts(4))
    data, other = digit5.digit5(), digit5.digit5()
    first = data.checksum()
    monkeypatch.setattr(domain_module, "hashlib", None)
    assert data.checksum() == first
    with pytest.raises(AttributeError):
        other.checksum()


# What is wrong with a file


def test_a_missing_folder(folder, refusal, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", "nowhere")
    said = refusal()
    assert "nowhere/digit5" in said
    assert "AFIELD_DATA" in said
    assert "afield data download digit5" in said


def test_all_missing_domains_are_named_at_once(folder, refusal):
    (folder / "mnist_m.npz").unlink()
    (folder / "svhn.npz").unlink()
    said = refusal()
    for words in (str(folder), "MNIST-M (mnist_m.npz or mnist_m/mnist_m_train_labels.txt", "DANN", "Ganin"):
        assert words in said
    assert "SVHN (svhn.npz or train_32x32.mat; run `afield data download digit5`" in said
    assert "USPS" not in said
    assert "SYN" not in said


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def npz(name, **changes):
    return lambda folder: write_npz(folder / name, parts(), **changes)


def idx(damage, suffix=""):
    def write(folder):
        (folder / "mnist.npz").unlink()
        grey = {part: (images[..., :28, :28, 0], labels) for part, (images, labels) in parts().items()}
        write_idx(folder, grey, suffix)
        damage(folder)

    return write


def pngs(damage):
    def write(folder):
        (folder / "mnist_m.npz").unlink()
        write_pngs(folder, parts())
        damage(folder / "mnist_m")

    return write


def libsvm(damage=lambda folder: None, change=lambda values, labels: (values, labels)):
    def write(folder):
        (folder / "usps.npz").unlink()
        write_libsvm(folder, {part: change(*arrays) for part, arrays in usps_values().items()})
        damage(folder)

    return write


def h5(damage=lambda path: None, change=lambda values, labels: (values, labels)):
    def write(folder):
        (folder / "usps.npz").unlink()
        write_h5(folder / "usps.h5", {part: change(*arrays) for part, arrays in usps_values().items()})
        damage(folder / "usps.h5")

    return write


def mat(damage=lambda folder: None, change=lambda images, labels: (images, labels)):
    def write(folder):
        (folder / "svhn.npz").unlink()
        write_mats(folder, {part: change(*arrays) for part, arrays in parts().items()})
        damage(folder)

    return write


def without(name):
    def remove(path):
        with h5py.File(path, "a") as file:
            del file[name]

    return remove


X, Y = parts()["train"]
WRONG = {
    "npz lacks a key": (npz("mnist.npz", y_test=None), "mnist.npz", "no y_test", "MNIST"),
    "npz of grey images": (npz("svhn.npz", x_train=X[..., 0]), "svhn.npz", "(12, 32, 32)", "SVHN"),
    "npz of small images": (npz("svhn.npz", x_train=X[:, :28, :28]), "svhn.npz", "(12, 28, 28, 3)", "SVHN"),
    "npz of floats": (npz("svhn.npz", x_train=X / 255), "svhn.npz", "float64", "SVHN"),
    "npz of nothing": (npz("svhn.npz", x_test=X[:0], y_test=Y[:0]), "svhn.npz", "(0, 32, 32, 3)", "SVHN"),
    "npz with a label too many": (npz("usps.npz", y_train=np.arange(13) % 10), "usps.npz", "12 images", "USPS"),
    "npz with a label of 10": (npz("mnist_m.npz", y_train=Y + 1), "mnist_m.npz", "0 to 9, not 10", "MNIST-M"),
    "npz with a label of -1": (npz("mnist_m.npz", y_train=Y - 1), "mnist_m.npz", "0 to 9, not -1", "MNIST-M"),
    "npz with half a label": (npz("usps.npz", y_train=np.full(12, 0.5)), "usps.npz", "0 to 9, not 0.5", "USPS"),
    "npz with labels as text": (npz("mnist_m.npz", y_train=Y.astype(str)), "mnist_m.npz", "0 to 9", "MNIST-M"),
    "npz with pickles": (npz("mnist_m.npz", y_train=Y.astype(object)), "mnist_m.npz", "allow_pickle", "MNIST-M"),
    "npz cut short": (lambda folder: cut(folder / "mnist.npz"), "mnist.npz", "zip", "MNIST"),
    "npz that is empty": (lambda folder: (folder / "mnist.npz").write_bytes(b""), "mnist.npz", "No data", "MNIST"),
    "published syn is broken": (npz("syn.npz", x_test=None), "syn.npz", "no x_test", "SYN"),
    "idx: one file missing": (
        idx(lambda f: (f / "t10k-labels-idx1-ubyte").unlink()), "t10k-labels-idx1-ubyte", "missing", "MNIST",
    ),
    "idx of another size": (
        idx(lambda f: write_idx(f, {part: (x[:, :8, :8, 0], y) for part, (x, y) in parts().items()})),
        "train-images-idx3-ubyte", "(12, 8, 8)", "MNIST",
    ),
    "idx cut short": (idx(lambda f: cut(f / "t10k-images-idx3-ubyte")), "t10k-images-idx3-ubyte", "reshape", "MNIST"),
    "idx that is none": (
        idx(lambda f: (f / "train-labels-idx1-ubyte").write_text("5\n0\n4\n1\n" * 99)),
        "train-labels-idx1-ubyte", "no idx file", "MNIST",
    ),
    "idx with a label of 10": (
        idx(lambda f: write_idx(f, {part: (x[:, :28, :28, 0], y + 1) for part, (x, y) in parts().items()})),
        "train-labels-idx1-ubyte", "0 to 9, not 10", "MNIST",
    ),
    "idx with a label too few": (
        idx(lambda f: write_idx(f, {part: (x[:, :28, :28, 0], y[1:]) for part, (x, y) in parts().items()})),
        "train-labels-idx1-ubyte", "12 images", "MNIST",
    ),
    "idx.gz cut short": (
        idx(lambda f: cut(f / "train-images-idx3-ubyte.gz"), ".gz"), "train-images-idx3-ubyte.gz", "ended", "MNIST",
    ),
    "png cut short": (pngs(lambda f: cut(f / "mnist_m_test/00000003.png")), "00000003.png", "truncated", "MNIST-M"),
    "png of another size": (
        pngs(lambda f: Image.new("RGB", (28, 28)).save(f / "mnist_m_test/00000003.png")),
        "00000003.png", "(1, 28, 28, 3)", "MNIST-M",
    ),
    "png missing": (
        pngs(lambda f: (f / "mnist_m_train/00000011.png").unlink()),
        "mnist_m_train", "00000011.png is missing", "MNIST-M",
    ),
    "png without their folder": (
        pngs(lambda f: shutil.rmtree(f / "mnist_m_test")), "mnist_m_test", "00000000.png is missing", "MNIST-M",
    ),
    "png that has no label": (
        pngs(lambda f: Image.new("RGB", (32, 32)).save(f / "mnist_m_train/more.png")),
        "mnist_m_train_labels.txt", "13 images", "MNIST-M",
    ),
    "png by another name": (
        pngs(lambda f: (f / "mnist_m_train/00000011.png").rename(f / "mnist_m_train/11.png")),
        "mnist_m_train", "00000011.png is missing", "MNIST-M",
    ),
    "png labels missing": (
        pngs(lambda f: (f / "mnist_m_test_labels.txt").unlink()), "mnist_m_test_labels.txt", "missing", "MNIST-M",
    ),
    "png labels that are none": (
        pngs(lambda f: (f / "mnist_m_test_labels.txt").write_text("00000000.png 5\n00000001.png\n")),
        "mnist_m_test_labels.txt", "line 2", "MNIST-M",
    ),
    "png labels of 12": (
        pngs(lambda f: (f / "mnist_m_test_labels.txt").write_text("".join(f"{i:08}.png 12\n" for i in range(7)))),
        "mnist_m_test_labels.txt", "0 to 9, not 12", "MNIST-M",
    ),
    "libsvm cut short": (libsvm(lambda f: cut(f / "usps.t.bz2")), "usps.t.bz2", "ended", "USPS"),
    "libsvm: one file missing": (libsvm(lambda f: (f / "usps.t.bz2").unlink()), "usps.t.bz2", "missing", "USPS"),
    "libsvm of 64 values": (libsvm(change=lambda x, y: (x[:, :64], y)), "usps.bz2", "(12, 64)", "USPS"),
    "libsvm labels from 2": (libsvm(change=lambda x, y: (x, y + 1)), "usps.bz2", "1 to 10, not 11", "USPS"),
    "libsvm too dark": (libsvm(change=lambda x, y: (x - 0.1, y)), "usps.bz2", "-1 to 1", "USPS"),
    "h5 cut short": (h5(cut), "usps.h5", "truncated", "USPS"),
    "h5 lacks the test": (h5(without("test")), "usps.h5", "no test/data", "USPS"),
    "h5 of 64 values": (h5(change=lambda x, y: (x[:, :64], y)), "usps.h5", "(12, 64)", "USPS"),
    "h5 too bright": (h5(change=lambda x, y: (x + 0.1, y)), "usps.h5", "0 to 1", "USPS"),
    "h5 with a label too few": (h5(change=lambda x, y: (x, y[1:])), "usps.h5", "12 images", "USPS"),
    "mat cut short": (mat(lambda f: cut(f / "test_32x32.mat")), "test_32x32.mat", "cannot be used", "SVHN"),
    "mat: one file missing": (mat(lambda f: (f / "test_32x32.mat").unlink()), "test_32x32.mat", "missing", "SVHN"),
    "mat that is none": (
        mat(lambda f: (f / "train_32x32.mat").write_text("not an archive" * 50)),
        "train_32x32.mat", "cannot be used", "SVHN",
    ),
    "mat without X": (
        mat(lambda f: savemat(f / "train_32x32.mat", {"y": Y})), "train_32x32.mat", "no X", "SVHN",
    ),
    "mat of another size": (mat(change=lambda x, y: (x[:, :16], y)), "train_32x32.mat", "(12, 16, 32, 3)", "SVHN"),
    "mat labels of 11": (mat(change=lambda x, y: (x, y + 2)), "train_32x32.mat", "0 to 10, not 11", "SVHN"),
    "mat with a label too few": (mat(change=lambda x, y: (x, y[1:])), "train_32x32.mat", "12 images", "SVHN"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_one_line_with_its_name_and_where_to_get_it(folder, refusal, wrong):
    write, file, reason, title = WRONG[wrong]
    write(folder)
    said = refusal()
    assert file in said.split(";")[0]
    assert str(folder) in said
    assert reason in said
    where = "Ganin" if title in ("MNIST-M", "SYN") else "afield data download digit5"
    assert f" {title}" in said.split(reason, 1)[1]
    assert where in said


# The command line


def afield_command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["afield", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_listing_loads_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    monkeypatch.setattr(data_registry, "_load", lambda *_: pytest.fail("loaded"))
    assert afield_command(monkeypatch, "data") == 0
    assert "digit5" in [line.split()[0] for line in capsys.readouterr().out.splitlines()]


def test_showing_says_which_domain_is_rendered(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("afield.domains.load_data", lambda name: digit5.digit5(SMALL))
    assert afield_command(monkeypatch, "data", "show", "digit5", "--out", str(tmp_path / "sheet.png")) == 0
    rows = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if "│" in line}
    assert [name for name in rows if name] == ORDER
    assert "rendered by afield" in rows["syn"]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height == 5 * 70 - 6 + 32


@pytest.fixture
def fetched(monkeypatch):
    """What was asked of a torchvision that writes small files instead of fetching."""
    calls = []

    def mnist(root, train, download):
        calls.append(("MNIST", train, download))
        grey = {part: (images[..., :28, :28, 0], labels) for part, (images, labels) in parts().items()}
        write_idx(root / "MNIST" / "raw", grey)

    def usps(root, train, download):
        calls.append(("USPS", train, download))
        write_libsvm(root, usps_values())

    def svhn(root, split, download):
        calls.append(("SVHN", split == "train", download))
        print("Using downloaded and verified file")
        write_mats(root, parts())

    for name, fetch in (("MNIST", mnist), ("USPS", usps), ("SVHN", svhn)):
        monkeypatch.setattr(f"torchvision.datasets.{name}", fetch)
    return calls


def test_download_fetches_three_and_says_where_to_get_two(tmp_path, monkeypatch, capsys, fetched):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "new" / "data"))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    assert afield_command(monkeypatch, "data", "download", "digit5") == 0
    assert sorted(fetched) == sorted((n, train, True) for n in ("MNIST", "USPS", "SVHN") for train in (True, False))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ORDER
    assert ["there" in line for line in lines] == [False, True, True, True, False]
    assert "MNIST-M: missing" in lines[0]
    assert "published with DANN by Y. Ganin" in lines[0]
    assert "renders digits in its place" in lines[4]

    write_npz(tmp_path / "new" / "data" / "digit5" / "mnist_m.npz", parts())
    assert len(digit5.digit5(SMALL)["up"].train) == 12
    fetched.clear()
    assert afield_command(monkeypatch, "data", "download", "digit5") == 0
    assert not fetched


def test_a_download_that_fails_is_named_in_one_line_and_stops_no_other(tmp_path, monkeypatch, capsys, fetched):
    def fail(*_, **__):
        raise URLError("no\nroute")

    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    monkeypatch.setattr("torchvision.datasets.USPS", fail)
    assert afield_command(monkeypatch, "data", "download", "digit5") == 2
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith("afield: could not download USPS (<urlopen error no route>)")
    assert ["there" in line for line in told.out.splitlines()] == [False, True, False, True, False]
    assert "libsvmtools" in told.out.splitlines()[2]


def test_what_is_embedded_needs_no_download(monkeypatch, capsys):
    assert afield_command(monkeypatch, "data", "download", "digits") == 2
    assert "'digits' needs no download" in capsys.readouterr().err
    assert afield_command(monkeypatch, "data", "download", "digits5") == 2
    assert "unknown data set 'digits5'" in capsys.readouterr().err
