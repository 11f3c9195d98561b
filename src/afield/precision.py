"""Where float32 is kept though the network runs in bf16: in the losses, and in layers so small that casts cost more."""

from collections.abc import Callable

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """bf16 and fp16 to float32; float32 and float64 as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def exact_mean(values: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The mean, added up and kept in float32 or better."""
    return values.mean(dim=dim, dtype=torch.promote_types(values.dtype, torch.float32))


def in_float32(layer: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A layer's output in float32 or better, whatever autocast says: no cast of its weights, forward or backward."""
    with torch.autocast(values.device.type, enabled=False):
        return layer(at_least_float32(values))
