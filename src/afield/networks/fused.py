"""Batch norm, 3 x 3 max-pool of stride 2 and clipping in few passes over memory: Triton kernels, or plain PyTorch.

These operations cost a GPU next to nothing; reading and writing their maps does. The kernels of a training step read a
convolution's map twice on the way forward and, where it is pooled, once on the way back:

    forward    the moments of x;  y = clip(max over the window of scale (x - mean) + bias, low, high)
    backward   the sums of g and g x^ over the outputs;  dx = scale (dy - sum(g) / M - x^ sum(g x^) / M)

with scale = weight / std, x^ = (x - mean) / std, M the values per channel, and dy the summed g of the windows whose
maximum is this x and was not clipped. ReLU clips at 0, ReLU6 also at 6. Maps lie in memory as one row of C channels per
pixel (`channels_last`); arithmetic is float32. No sum depends on the order in which programs finish, so that a step
repeats to the bit.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version
from torch.nn import functional as F

from afield.kernels import layers_use_kernels

try:
    from afield.kernels import norms as kernels
except ImportError:  # without Triton
    kernels = None  # type: ignore[assignment]

Clip = tuple[float, float]
"""The least and the greatest that an output can be."""

THREAD_VALUES = 8  # of a tile: one load of 16 bytes in bfloat16
MAP_WARPS = 8  # more rows to a tile share more of their windows
SUM_WARPS = 4
UNROLL = 4  # tiles that a program has in flight, in sums
PROGRAMS = 512  # at most, in sums: four to each processor of a large GPU, all at once
GROUP = 8  # channels for which one program adds up what the others found: 32 bytes of a row
CLOSED = 9  # code of a window whose maximum is clipped; 0 to 8 name the pixel of the window that is its maximum
MOST_LANES = 4 / 3  # per channel, of a program's lanes
RELU, NOTHING = (0.0, math.inf), (-math.inf, math.inf)
CLIPS: dict[type, Clip] = {nn.Identity: NOTHING, nn.ReLU: RELU, nn.ReLU6: (0.0, 6.0)}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
        momentum: float, eps: float, pool: bool, sizes: Sequence[int], clip: Clip,
    ) -> Tensor:  # fmt: skip
        x = x.contiguous(memory_format=torch.channels_last)
        images, C, H, W = x.shape
        shape = (images, C, (H + 1) // 2, (W + 1) // 2) if pool else x.shape
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        peaks, codes = (torch.empty_like(y), torch.empty_like(y, dtype=torch.uint8)) if pool else (x, None)
        tables = weight.new_empty((len(sizes), 4, C))
        state = (weight, bias, running_mean, running_var)
        for table, part in zip(tables, _parts(sizes), strict=True):
            _find_moments(x[part], table, *state, momentum, eps)
            _normalise(x[part], table, y[part], clip, *((peaks[part], codes[part]) if codes is not None else ()))
        increment_version((running_mean, running_var))
        ctx.sizes, ctx.clip = sizes, clip
        ctx.save_for_backward(x, peaks, codes, tables)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, peaks, codes, tables = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        gradients = tables.new_empty((len(tables), 2, x.shape[1]))  # of weight and bias
        for table, gradient, part in zip(tables, gradients, _parts(ctx.sizes), strict=True):
            slopes = _find_slopes(g[part], peaks[part], table, gradient, dx[part].numel(), ctx.clip)
            code = codes[part] if codes is not None else None
            _backpropagate(g[part], x[part], code, table, slopes, dx[part], ctx.clip)
        grad_weight, grad_bias = gradients[0] if len(gradients) == 1 else gradients.sum(dim=0)
        return dx, grad_weight, grad_bias, None, None, None, None, None, None, None


def _parts(sizes: Sequence[int]) -> list[slice]:
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _find_moments(
    x: Tensor, table: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> None:  # fmt: skip
    """The constants of each channel, into `table`; moves the running statistics."""
    C, sums, rows = x.shape[1], _sizes(x.shape[1], SUM_WARPS), x.numel() // x.shape[1]
    programs, steps = _shares(rows, sums["TILE"])
    means, squares = weight.new_empty((2, programs, C))
    kernels.moments[(programs, _blocks(sums))](x, means, squares, rows, steps, UNROLL=UNROLL, **sums)
    kernels.finish_moments[(_ceil(C, GROUP),)](
        means, squares, weight, bias, running_mean, running_var, table,
        rows, steps * UNROLL * sums["TILE"], programs, momentum, eps, **_groups(C, programs),
    )  # fmt: skip


def _normalise(x: Tensor, table: Tensor, y: Tensor, clip: Clip, *pooled: Tensor) -> None:
    """The outputs, into `y`; where it is pooled, also the peaks and their codes."""
    _, C, H, W = x.shape
    maps, outputs = _sizes(C, MAP_WARPS), y.numel() // C
    grid = (_ceil(outputs, maps["TILE"]), _blocks(maps))
    if pooled:
        kernels.pool_forward[grid](x, table, y, *pooled, outputs, *clip, H=H, W=W, CLOSED=CLOSED, **maps)
    else:
        kernels.flat_forward[grid](x, table, y, outputs, *clip, **maps)


def _find_slopes(g: Tensor, peaks: Tensor, table: Tensor, gradient: Tensor, values: int, clip: Clip) -> Tensor:
    """The gradients of weight and bias, into `gradient`, and what they take from each of so many dx."""
    C, sums = g.shape[1], _sizes(g.shape[1], SUM_WARPS)
    outputs = g.numel() // C
    programs, steps = _shares(outputs, sums["TILE"])
    totals, products = table.new_empty((2, programs, C))
    slopes = table.new_empty((2, C))
    grid = (programs, _blocks(sums))
    kernels.sums[grid](g, peaks, table, totals, products, outputs, steps, *clip, UNROLL=UNROLL, **sums)
    kernels.finish_sums[(_ceil(C, GROUP),)](
        totals, products, table, *gradient, slopes, programs, values // C, **_groups(C, programs)
    )
    return slopes


def _backpropagate(
    g: Tensor, x: Tensor, codes: Tensor | None, table: Tensor, slopes: Tensor, dx: Tensor, clip: Clip
) -> None:
    """The gradient by x, into `dx`."""
    _, C, H, W = x.shape
    maps, outputs = _sizes(C, MAP_WARPS), g.numel() // C
    grid = (_ceil(outputs, maps["TILE"]), _blocks(maps))
    if codes is None:
        kernels.flat_backward[grid](g, x, table, slopes, dx, outputs, *clip, **maps)
    else:
        kernels.pool_backward[grid](g, x, codes, table, slopes, dx, outputs, H=H, W=W, CLOSED=CLOSED, **maps)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _power(number: int) -> int:
    """The next power of two, which a block's sides must be."""
    return 1 << (number - 1).bit_length()


def channel_block(C: int) -> int:
    """How many channels a program has, a power of two: most of those that leave few of its lanes without a channel.

    >>> [channel_block(C) for C in (3, 64, 144, 240, 672, 1152)]
    [4, 64, 64, 128, 128, 128]
    """
    sides = [2**power for power in range(7, 2, -1) if 2**power < 2 * C]
    return next((side for side in sides if _ceil(C, side) * side <= MOST_LANES * C), _power(min(C, 8)))


def _blocks(sizes: dict[str, int]) -> int:
    return _ceil(sizes["C"], sizes["CHANNELS"])


def _sizes(C: int, warps: int) -> dict[str, int]:
    channels = channel_block(C)
    tile = max(1, 32 * warps * THREAD_VALUES // channels)
    return {"C": C, "CHANNELS": channels, "TILE": tile, "num_warps": warps, "enable_fp_fusion": True}


def _groups(C: int, programs: int) -> dict[str, int]:
    return {"C": C, "PROGRAMS": _power(programs), "GROUP": GROUP, "num_warps": 8, "enable_fp_fusion": True}


def _shares(rows: int, tile: int) -> tuple[int, int]:
    """How many programs add up these rows, and in how many steps each."""
    steps = _ceil(_ceil(rows, UNROLL * tile), PROGRAMS)
    return _ceil(rows, steps * UNROLL * tile), steps


def fused_norm(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float, pool: bool, sizes: Sequence[int] = (), clip: Clip = RELU,
) -> Tensor:  # fmt: skip
    """Batch norm as in training, pooling if asked, and clipping, by the kernels; moves the running statistics.

    `sizes` are the lengths of the stretches of images that each have statistics of their own; none: all images are one.
    Each writes its part of one output, and of one gradient, so that nothing is put together afterwards.
    """
    sizes = tuple(sizes) or (len(x),)
    y: Tensor = _Fused.apply(x, weight, bias, running_mean, running_var, momentum, eps, pool, sizes, clip)
    return y


class FusedBatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, with its state, then 3 x 3 max-pool of stride 2 if `pool`, then a clip; fused if possible."""

    def __init__(
        self, num_features: int, pool: bool = False, clip: Clip = RELU, eps: float = 1e-5, momentum: float | None = 0.1
    ) -> None:
        super().__init__(num_features, eps, momentum)
        self.pool, self.clip = pool, clip

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same, or with `pool` to half the height and width, rounded up."""
        if (fused := self._fused(x, (x.shape[0],))) is not None:  # len() would fix an exported batch
            return fused
        x = super().forward(x)
        x = F.max_pool2d(x, 3, stride=2, padding=1) if self.pool else x  # first: a quarter of the values to clip
        return F.relu(x) if self.clip == RELU else x if self.clip == NOTHING else F.hardtanh(x, *self.clip)

    def forward_parts(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """The same of stretches of images, one after the other, in one output."""
        if (fused := self._fused(x, sizes)) is not None:
            return fused
        return torch.cat([FusedBatchNorm.forward(self, part) for part in torch.split(x, list(sizes))])

    def _fused(self, x: Tensor, sizes: Sequence[int]) -> Tensor | None:
        """By the kernels, or None where they cannot be used."""
        mean, var, steps, momentum = self.running_mean, self.running_var, self.num_batches_tracked, self.momentum
        if not self._fusible(x, min(sizes)) or mean is None or var is None or steps is None or momentum is None:
            return None
        steps.add_(len(sizes))
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            return fused_norm(x, self.weight, self.bias, mean, var, momentum, self.eps, self.pool, sizes, self.clip)

    def _fusible(self, x: Tensor, images: int) -> bool:
        return (
            self.training
            and x.is_cuda
            and not torch.compiler.is_compiling()  # which fuses on its own what it can see
            and x.dtype in DTYPES
            and self.weight.dtype == torch.float32
            and images * x.shape[2] * x.shape[3] > 1  # values per channel
            and x.numel() < 2**31  # 32-bit places
            and layers_use_kernels(x.device)
        )

    def extra_repr(self) -> str:
        """As `nn.BatchNorm2d`, and what comes after it."""
        return f"{super().extra_repr()}, pool={self.pool}, clip={self.clip}"  # type: ignore[no-untyped-call]
