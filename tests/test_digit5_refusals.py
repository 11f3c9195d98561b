"""What is said of Digit-Five's files that are missing, wrong or damaged, and of what can be downloaded."""

import shutil
import sys
from urllib.error import URLError

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from afield.app import cli
from afield.data import digit5
from afield.data import registry as data_registry
from afield.data.digit5 import m3sda
from support.digit5_files import (
    ORDER,
    SMALL,
    fill,
    parts,
    usps_values,
    write_h5,
    write_idx,
    write_libsvm,
    write_mats,
    write_npz,
    write_pngs,
)


@pytest.fixture
def refusal(digit5_folder, tmp_path, capsys, monkeypatch):
    """What the command line says when it refuses to show the data: one line."""

    def refuse():
        monkeypatch.setattr(sys, "argv", ["afield", "data", "show", "digit5", "--out", str(tmp_path / "x.png")])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr().err
        assert stopped.value.code == 2, said
        assert said.count("\n") == 1, said
        return said

    return refuse


# What is wrong with a file


def test_a_missing_folder(digit5_folder, refusal, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", "nowhere")
    said = refusal()
    assert "nowhere/digit5" in said
    assert "AFIELD_DATA" in said
    assert "afield data download digit5" in said


def test_all_missing_domains_are_named_at_once(digit5_folder, refusal):
    (digit5_folder / "mnist_m.npz").unlink()
    (digit5_folder / "svhn.npz").unlink()
    said = refusal()
    for words in (str(digit5_folder), "MNIST-M (mnist_m.npz or mnist_m/mnist_m_train_labels.txt", "DANN", "Ganin"):
        assert words in said
    assert "SVHN (svhn.npz or train_32x32.mat; run `afield data download digit5`" in said
    assert "USPS" not in said
    assert "SYN" not in said


@pytest.mark.parametrize("inside", ["Digit-Five", "."])
def test_where_the_files_of_m3sda_lie_the_data_set_that_reads_them_is_named(digit5_folder, refusal, inside):
    empty(digit5_folder)
    for domain in m3sda.DOMAINS.values():
        for name in domain.files.values():
            touch(digit5_folder / inside / name)
    said = refusal()
    assert f"the files of M3SDA's authors in {digit5_folder / inside} are read by `--data digit5-m3sda`" in said
    assert said.index("digit5-m3sda") < said.index("MNIST-M (mnist_m.npz")


def test_of_dassls_folders_it_is_said_that_other_files_are_needed(digit5_folder, refusal):
    empty(digit5_folder)
    for domain in ("mnist", "mnist_m", "usps", "svhn", "syn"):
        for split in ("train_images", "test_images"):
            touch(digit5_folder / domain / split / "00000000_5.png")
    said = refusal()
    assert "does not read Dassl's folders of images, such as mnist/train_images, but needs the files named" in said
    for needed in ("mnist_m.npz", "mnist.npz or train-images-idx3-ubyte", "usps.npz or usps.bz2", "svhn.npz"):
        assert needed in said
    assert "`--data digit5-m3sda` reads the files of M3SDA's authors" in said


def test_of_no_other_files_nothing_is_said(digit5_folder, refusal):
    empty(digit5_folder)
    assert refusal().startswith(f"afield: missing in {digit5_folder}: MNIST-M")


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


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


def test_a_wrong_file_is_one_line_with_its_name_and_where_to_get_it(digit5_folder, refusal):
    for wrong, (write, file, reason, title) in WRONG.items():
        shutil.rmtree(digit5_folder)
        write(fill(digit5_folder))
        said = refusal()
        assert file in said.split(";")[0], wrong
        assert str(digit5_folder) in said, wrong
        assert reason in said, wrong
        where = "Ganin" if title in ("MNIST-M", "SYN") else "afield data download digit5"
        assert f" {title}" in said.split(reason, 1)[1], wrong
        assert where in said, wrong


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


def test_showing_says_which_domain_is_rendered(digit5_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digit5.digit5, "__defaults__", (SMALL,))
    assert afield_command(monkeypatch, "data", "show", "digit5", "--out", str(tmp_path / "sheet.png")) == 0
    rows = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if "│" in line}
    assert [name for name in rows if name] == [*ORDER, *"0123456789"]
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
