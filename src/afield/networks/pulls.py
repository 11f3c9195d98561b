"""How hard losses pull at a feature, and a limit to it: one loss is not to outweigh others, on any network.

The pull of losses is the length of their gradient by the feature. Only a backward pass knows it, so that the limit in
one step is a running average of the steps before.
"""

from typing import Any

import torch
from torch import Tensor

BATCHES_AVERAGED = 10


def average_into(running: Tensor, now: Tensor) -> None:
    """Move a running average, which is 0 before its first value, towards a new value."""
    now = now.to(running.dtype)
    running.copy_(torch.where(running > 0, torch.lerp(running, now, 1 / BATCHES_AVERAGED), now))


class _Measured(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, pull: Tensor, factor: float) -> Tensor:
        ctx.pull, ctx.factor = pull, factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        average_into(ctx.pull, ctx.factor * torch.linalg.vector_norm(gradients[0]))
        return gradients[0], None, None


class _Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, limit: Tensor) -> Tensor:
        ctx.save_for_backward(limit)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (limit,) = ctx.saved_tensors
        length = torch.linalg.vector_norm(gradients[0]).clamp_min(torch.finfo(limit.dtype).tiny)
        return gradients[0] * (limit / length).clamp_max(1).to(gradients[0].dtype), None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it knows nothing of what a backward pass leaves behind
def measure_pull(values: Tensor, pull: Tensor, factor: float = 1.0) -> Tensor:
    """The values themselves; the length of the gradient that comes back, times a factor, is averaged into `pull`.

    `pull` is a buffer without dimensions, 0 before the first backward pass.

    >>> x, pull = torch.ones(4, requires_grad=True), torch.zeros(())
    >>> measure_pull(x, pull).sum().backward()
    >>> pull
    tensor(2.)
    """
    measured: Tensor = _Measured.apply(values, pull, factor)
    return measured


@torch.compiler.disable  # type: ignore[untyped-decorator]
def limit_pull(values: Tensor, limit: Tensor) -> Tensor:
    """The values themselves; the gradient that comes back is shortened to the limit where it is longer.

    >>> x = torch.ones(4, requires_grad=True)
    >>> torch.autograd.grad(limit_pull(x, torch.tensor(0.5)).sum(), x)
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]),)
    """
    limited: Tensor = _Limited.apply(values, limit)
    return limited
