"""Images on their way to the device, a chunk at a time, read ahead in a thread."""

from collections.abc import Iterator

import torch
from torch import Tensor

from afield.data.images import Images, Indices
from afield.data.prefetch import Prefetcher

CHUNKS_AHEAD = 3


def streamed(images: Images, indices: Indices, chunk: int, device: torch.device) -> Iterator[Tensor]:
    """The images of these indices, (n, side, side, 3), so many at a time."""

    def fill(number: int, buffer: list[Tensor]) -> None:
        wanted = indices[number * chunk : (number + 1) * chunk]
        buffer[:] = [torch.from_numpy(images.read(wanted))] if len(wanted) else []

    ahead: Prefetcher[list[Tensor]] = Prefetcher(fill, [[] for _ in range(CHUNKS_AHEAD)])
    try:
        for _ in range(0, len(indices), chunk):
            buffer = ahead.take()
            yield buffer[0].to(device)
            ahead.give_back(buffer)
    finally:
        ahead.close()


def filled_up(pixels: Tensor, count: int) -> Tensor:
    """On a GPU, images followed by copies of the last one, so many in all; what a method says of the copies is dropped.

    cuDNN prepares a network's convolutions anew for every number of images, which takes a second or two, and the last
    chunk of each split has a number of its own.
    """
    missing = count - len(pixels)
    if missing <= 0 or not on_gpu(pixels):
        return pixels
    return torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])


def on_gpu(pixels: Tensor) -> bool:
    """Whether images lie on a GPU; elsewhere copies would only cost time."""
    return pixels.is_cuda
