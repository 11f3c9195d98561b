"""Small files of Digit-Five in every format it is published in."""

import bz2
import gzip

import h5py
import numpy as np
from PIL import Image
from scipy.io import savemat

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


def fill(folder):
    """All domains but `syn`, as npz."""
    folder.mkdir(parents=True)
    for seed, name in enumerate(ORDER[:4]):
        write_npz(folder / NPZ[name], parts(seed))
    return folder
