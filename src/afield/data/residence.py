"""Where images lie in training: all of them on the device, as bytes, or read as they are needed."""

import os
from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from afield.config.data import Placement
from afield.data.images import ArrayImages, Images, Pixels

AT_A_TIME, LEAST_TO_SHOW = 256, 1000
# Leaves room for the network, its gradients and its activations.
SHARE_OF_FREE_MEMORY = {"cuda": 0.5, "cpu": 0.1}


class ResidentImages:
    """Images of several splits, all on a device: `parts` are tensors (N, side, side, 3).

    `homes` say which part a split is in, and where in it the split begins. On a GPU all splits are one tensor, so that
    one index finds an image; in host memory each is where it was, because joining them would hold them twice.
    """

    def __init__(self, splits: Sequence[Images], device: torch.device) -> None:
        if device.type == "cpu":
            self.parts = [torch.from_numpy(all_pixels(images)) for images in splits]
            self.homes = {id(images): (number, 0) for number, images in enumerate(splits)}
            return
        side = splits[0].side or 0
        whole = torch.empty(sum(map(len, splits)), side, side, 3, dtype=torch.uint8, device=device)
        self.parts, self.homes, start = [whole], {}, 0
        for images in splits:
            whole[start : start + len(images)].copy_(torch.from_numpy(all_pixels(images)))
            self.homes[id(images)] = (0, start)
            start += len(images)

    def holds(self, splits: Sequence[Images]) -> bool:
        """Whether all these splits are here."""
        return all(id(images) in self.homes for images in splits)


_uploads: list[tuple[ResidentImages, list[Images]]] = []
UPLOADS_KEPT = 2  # what is trained on and what is tested on


def make_resident(splits: Sequence[Images], device: torch.device) -> ResidentImages:
    """The splits on a device. The last ones stay there, so that many runs on one data set upload it once."""
    for known, _ in _uploads:
        if known.parts[0].device == torch.empty(0, device=device).device and known.holds(splits):  # "cuda" is "cuda:0"
            return known
    del _uploads[: len(_uploads) + 1 - UPLOADS_KEPT]
    made = ResidentImages(splits, device)
    _uploads.append((made, list(splits)))  # with the splits, or an id could come to mean another object
    return made


def all_pixels(images: Images) -> Pixels:
    """Every image of a split; where they lie in an array of that size already, that array."""
    if isinstance(images, ArrayImages) and images.as_it_is is not None:
        return images.as_it_is
    side, count = images.side or 0, len(images)
    pixels = np.empty((count, side, side, 3), np.uint8)
    console = Console(stderr=True)
    hidden = not console.is_terminal or count < LEAST_TO_SHOW
    for start in track(range(0, count, AT_A_TIME), "reading images", console=console, transient=True, disable=hidden):
        chunk = pixels[start : start + AT_A_TIME]
        images.read(np.arange(start, start + len(chunk)), chunk)
    return pixels


def stays_resident(splits: Sequence[Images], device: torch.device, placement: Placement) -> bool:
    """Whether these splits are to lie on the device."""
    if placement != "auto":
        return placement == "resident"
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return sum(images.nbytes for images in splits) < SHARE_OF_FREE_MEMORY["cuda"] * free
    new = [images for images in splits if not (isinstance(images, ArrayImages) and images.as_it_is is not None)]
    return sum(images.nbytes for images in new) <= SHARE_OF_FREE_MEMORY["cpu"] * free_memory()


def free_memory() -> int:
    """Bytes of host memory that programs may still take."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
