"""Batch norm that takes its statistics of the rows of all processes which share a batch, as one process would.

torch's `SyncBatchNorm` needs a GPU, and takes the place of a layer; here a layer of any kind (with pooling or an
activation of its own, divided by domains) stays what it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from afield.networks.batch_norm import Pass
from afield.networks.rows import Part, from_all, part_under_way
from afield.precision import at_least_float32


class _FromAll(torch.autograd.Function):
    """Values of every process, (processes, ...): each depends on them, so that their gradients are added up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, part: Part) -> Tensor:
        ctx.part = part
        return from_all(values, part.count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total[ctx.part.number], None


class SynchronisedNorm:
    """The forward pass of a layer of batch norm inside a backbone that sees only its process's rows."""

    def __init__(self, norm: _BatchNorm, whole: Pass) -> None:
        self.norm, self.whole = norm, whole

    def __call__(self, x: Tensor) -> Tensor:
        """The layer's output for the rows x of this process."""
        part, norm = part_under_way(), self.norm
        if part is None or not norm.training:
            return self.whole(x)
        values = at_least_float32(x)
        mean, variance = moments_of_all(values, part)
        self._move(mean.detach(), variance.detach(), part.count * x.numel() // x.shape[1])
        shape = (1, -1, *[1] * (x.ndim - 2))
        normal = (values - mean.view(shape)) * (variance + norm.eps).rsqrt().view(shape)
        with _normalising_nothing(norm, mean.detach()):
            return self.whole(normal.to(x.dtype))

    @torch.no_grad()
    def _move(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """The running statistics, towards those of the batch; that of the variance is unbiased, as torch's is."""
        norm = self.norm
        if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
            return
        norm.num_batches_tracked.add_(1)
        share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
        norm.running_var.lerp_((variance * (count / max(count - 1, 1))).to(norm.running_var.dtype), share)


def moments_of_all(values: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel over the rows of all processes, each of which has as many."""
    dims = [0, *range(2, values.ndim)]
    variance, mean = torch.var_mean(values, dim=dims, correction=0)
    means, variances = _FromAll.apply(torch.stack((mean, variance)), part).unbind(dim=1)
    mean = means.mean(dim=0)
    return mean, (variances + (means - mean).square()).mean(dim=0)


@contextmanager
def _normalising_nothing(norm: _BatchNorm, mean: Tensor) -> Iterator[None]:
    """Inside, the layer takes values for normalised, and does the rest of what it does: weight, bias, pooling."""
    kept = {name: norm._buffers[name] for name in ("running_mean", "running_var")}
    norm._buffers.update(running_mean=torch.zeros_like(mean), running_var=torch.ones_like(mean) - norm.eps)
    norm.training = False
    try:
        yield
    finally:
        norm._buffers.update(kept)
        norm.training = True
