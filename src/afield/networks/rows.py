"""The rows of a batch that are this process's, where several share it; how they are taken, and those of all gathered.

Every process has the same losses of the whole batch. The gradient by gathered rows is therefore the same everywhere,
and each process walks back with that of its own rows, multiplied by the number of processes. The mean over processes,
which a step takes of all gradients, then adds up what the rows ask of a backbone, and leaves all other gradients, which
are equal, as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Part:
    """The rows of one pass that are this process's: of every `block` of rows, which is a domain's, an equal share."""

    def __init__(self, number: int, count: int, block: int) -> None:
        self.number, self.count, self.block, self.share = number, count, block, block // count

    def own(self, values: Tensor) -> Tensor:
        """Of values of the whole batch those of this process."""
        first = self.number * self.share
        starts = range(first, len(values), self.block)
        return torch.cat([values[start : start + self.share] for start in starts])  # which keeps channels last

    def gather(self, values: Tensor) -> Tensor:
        """Values of all processes, in the order of the whole batch. No gradients pass."""
        channels_last = values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last)
        found = from_all(values.permute(0, 2, 3, 1) if channels_last else values, self.count)
        whole = found.view(self.count, -1, self.share, *found.shape[2:]).transpose(0, 1).flatten(0, 2)
        return whole.permute(0, 3, 1, 2) if channels_last else whole


def from_all(values: Tensor, processes: int) -> Tensor:
    """Values (rows, ...) of every process, all of one shape: (processes, rows, ...). No gradients pass."""
    values = values.contiguous()
    found = values.new_empty((processes * len(values), *values.shape[1:]))
    torch.distributed.all_gather_into_tensor(found, values)
    return found.view(processes, *values.shape)


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, part: Part) -> Tensor:
        ctx.part = part
        return part.own(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.part.gather(gradients[0]) / ctx.part.count, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, part: Part) -> Tensor:
        ctx.part = part
        return part.gather(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.part.count * ctx.part.own(gradients[0]), None


_under_way: Part | None = None
"""Set while a backbone sees only its process's rows."""


@contextmanager
def passing(part: Part) -> Iterator[None]:
    """Inside, a backbone sees the rows of a part."""
    global _under_way  # layers deep inside a backbone have no other way to know
    before, _under_way = _under_way, part
    try:
        yield
    finally:
        _under_way = before


def part_under_way() -> Part | None:
    """Inside a backbone that sees only its process's rows, which these are."""
    return _under_way


def whole_count(values: Tensor) -> int:
    """How many rows values inside a backbone have in the whole batch."""
    return len(values) * (_under_way.count if _under_way else 1)


def own_rows(values: Tensor) -> Tensor:
    """Of values of the whole batch, inside a backbone, the rows that are this process's; in one process all.

    A layer that draws a random number per image draws for the whole batch, and takes these.
    """
    rows: Tensor = _Taken.apply(values, _under_way) if _under_way else values
    return rows


def all_rows(values: Tensor) -> Tensor:
    """Values inside a backbone, of all rows of the whole batch; in one process the values themselves.

    For a layer that compares images with each other.
    """
    whole: Tensor = _Gathered.apply(values, _under_way) if _under_way else values
    return whole
