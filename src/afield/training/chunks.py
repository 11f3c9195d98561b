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
