"""Where float32 is kept though the network runs in bf16: in the losses, and in layers so small that casts cost more."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """bf16 and fp16 to float32; float32 and float64 as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class _ExactMean(torch.autograd.Function):
    """Torch's own gradient of a mean is written out in float32 at the values' full size, and then cast."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, dims: tuple[int, ...]) -> Tensor:
        ctx.shape, ctx.dtype, ctx.dims = values.shape, values.dtype, dims
        return values.mean(dim=dims, dtype=torch.promote_types(values.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        share = (gradients[0] / prod(ctx.shape[dim] for dim in ctx.dims)).to(ctx.dtype)
        for dim in ctx.dims:
            share = share.unsqueeze(dim)
        return share.expand(ctx.shape), None


def exact_mean(values: Tensor, *dims: int) -> Tensor:
    """The mean over ascending dimensions, added up and kept in float32 or better.

    >>> exact_mean(torch.arange(6, dtype=torch.bfloat16).view(2, 3), 1)
    tensor([1., 4.])
    """
    if all(values.shape[dim] == 1 for dim in dims):  # as after fully connected layers: nothing to add up
        return at_least_float32(values.squeeze(dims))
    if torch.compiler.is_compiling():  # which writes out nothing that it need not
        return values.mean(dim=dims, dtype=torch.promote_types(values.dtype, torch.float32))
    mean: Tensor = _ExactMean.apply(values, dims)
    return mean


def in_float32(layer: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A layer's output in float32 or better, whatever autocast says: no cast of its weights, forward or backward."""
    with torch.autocast(values.device.type, enabled=False):
        return layer(at_least_float32(values))
