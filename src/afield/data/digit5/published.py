"""The five domains: what each is, where to get it, and the files it may come in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from afield.data.digit5.fitting import MNIST_SIDE, Fitting
from afield.data.digit5.formats import Stored, read_h5, read_idx, read_libsvm, read_mat, read_npz, read_pngs
from afield.data.digits.patches import SIDE

_GANIN = "yaroslav.ganin.net (published with DANN by Y. Ganin)"


@dataclass(frozen=True)
class Format:
    """The files one domain may come in, relative to the folder: for each part, those the reader needs."""

    files: dict[str, tuple[str, ...]]
    read: Callable[[str, list[Path]], Stored]
    """From the part, `train` or `test`, and the paths of its files."""

    @property
    def names(self) -> list[str]:
        """All files, each once, in their order."""
        return list(dict.fromkeys(name for names in self.files.values() for name in names))


@dataclass(frozen=True)
class PublishedDomain:
    """One domain as others published it."""

    title: str
    kind: str
    """'real' or 'rendered', and of what."""
    page: str
    """Where its files are to be had."""
    formats: tuple[Format, ...]
    """In the order they are looked for."""
    fetched: bool = False
    """Whether `download.py` can fetch it."""
    side: int = SIDE
    """Height and width of its images as published."""

    @property
    def where(self) -> str:
        """How to get it."""
        return f"run `afield data download digit5` or see {self.page}" if self.fetched else f"see {self.page}"

    @property
    def wanted(self) -> str:
        """The ways it may come, by one file of each; that it lies elsewhere or is zipped makes no other way."""
        ways = {format.read: format.names[0] for format in reversed(self.formats)}
        return " or ".join(reversed(ways.values()))

    def origin(self, how: Fitting, *, sized: bool, framed: bool) -> str:
        """Where the images come from, and what was done to their size."""
        if self.side == SIDE:
            return self.kind
        if sized and not framed:
            done = "stored at"
        elif how == "padded":
            done = "padded to" if self.side == MNIST_SIDE else f"enlarged from {self.side} x {self.side} and padded to"
        elif sized:
            done = f"cut out of a black frame and resized from {MNIST_SIDE} x {MNIST_SIDE} to"
        else:
            done = f"resized from {self.side} x {self.side} to"
        return f"{self.kind}, {done} {SIDE} x {SIDE} pixels"


def _in_parts(read: Callable[[str, list[Path]], Stored], train: list[str], test: list[str]) -> Format:
    return Format({"train": tuple(train), "test": tuple(test)}, read)


def _npz(name: str) -> Format:
    return _in_parts(read_npz, [name], [name])


def _idx(folder: str, suffix: str) -> Format:
    def files(part: str) -> list[str]:
        return [f"{folder}{part}-{kind}-ubyte{suffix}" for kind in ("images-idx3", "labels-idx1")]

    return _in_parts(read_idx, files("train"), files("t10k"))


def _mat(prefix: str) -> Format:
    return _in_parts(read_mat, [f"{prefix}train_32x32.mat"], [f"{prefix}test_32x32.mat"])


PUBLISHED = {
    "mm": PublishedDomain(
        "MNIST-M", "real: MNIST digits blended with photographs (MNIST-M)", _GANIN,
        (
            _npz("mnist_m.npz"),
            _in_parts(read_pngs, ["mnist_m/mnist_m_train_labels.txt"], ["mnist_m/mnist_m_test_labels.txt"]),
        ),
    ),
    "mt": PublishedDomain(
        "MNIST", "real: MNIST", "yann.lecun.com/exdb/mnist",
        # torchvision keeps its files in MNIST/raw.
        (_npz("mnist.npz"), *(_idx(folder, suffix) for folder in ("", "MNIST/raw/") for suffix in ("", ".gz"))),
        fetched=True, side=28,
    ),
    "up": PublishedDomain(
        "USPS", "real: USPS",
        "www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets (usps.bz2, usps.t.bz2)",
        (
            _npz("usps.npz"),
            _in_parts(read_libsvm, ["usps.bz2"], ["usps.t.bz2"]),
            _in_parts(read_h5, ["usps.h5"], ["usps.h5"]),
        ),
        fetched=True, side=16,
    ),
    "sv": PublishedDomain(
        "SVHN", "real: SVHN, cropped house numbers", "ufldl.stanford.edu/housenumbers",
        (_npz("svhn.npz"), _mat("")),
        fetched=True,
    ),
    "syn": PublishedDomain("SYN", "rendered: SYN as published with DANN", _GANIN, (_npz("syn.npz"), _mat("synth_"))),
}  # fmt: skip
"""By name, in the order of the data set."""
