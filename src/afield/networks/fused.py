"""Batch norm, 3 x 3 max-pool of stride 2 and ReLU in few passes over memory: Triton kernels, or plain PyTorch.

These operations cost a GPU next to nothing; reading and writing their maps does. The kernels of a training step read a
convolution's map twice on the way forward and, where it is pooled, once on the way back:

    forward    the moments of x;  y = max(0, max over the window of scale (x - mean) + bias)
    backward   the sums of g and g x^ over the outputs;  dx = scale (dy - sum(g) / M - x^ sum(g x^) / M)

with scale = weight / std, x^ = (x - mean) / std, M the values per channel, and dy the summed g of the windows whose
maximum is this x. Maps lie in memory as one row of C channels per pixel (`channels_last`); arithmetic is float32. No
sum depends on the order in which programs finish, so that a step repeats to the bit.
"""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version
from torch.nn import functional as F

try:
    from afield.networks import kernels
except ImportError:  # macOS, Windows and PyTorch's wheels for CPUs come without Triton
    kernels = None  # type: ignore[assignment]

THREAD_VALUES = 8  # of a tile: one load of 16 bytes in bfloat16
MAP_WARPS = 8  # more rows to a tile share more of their windows
SUM_WARPS = 4
UNROLL = 4  # tiles that a program has in flight, in sums
PROGRAMS = 512  # at most, in sums: four to each processor of a large GPU, all at once
GROUP = 8  # channels for which one program adds up what the others found: 32 bytes of a row
CLOSED = 9  # code of a window whose ReLU is closed; 0 to 8 name the pixel of the window that is its maximum
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
        momentum: float, eps: float, pool: bool,
    ) -> Tensor:  # fmt: skip
        x = x.contiguous(memory_format=torch.channels_last)
        images, C, H, W = x.shape
        maps, sums, rows = _sizes(C, MAP_WARPS), _sizes(C, SUM_WARPS), images * H * W
        programs, steps = _shares(rows, sums["TILE"])
        means, squares = weight.new_empty((2, programs, C))
        table = weight.new_empty((4, C))
        kernels.moments[(programs,)](x, means, squares, rows, UNROLL=UNROLL, STEPS=steps, **sums)
        kernels.finish_moments[(_ceil(C, GROUP),)](
            means, squares, weight, bias, running_mean, running_var, table,
            rows, steps * UNROLL * sums["TILE"], programs, momentum, eps, **_groups(C, programs),
        )  # fmt: skip
        increment_version((running_mean, running_var))
        shape = (images, C, (H + 1) // 2, (W + 1) // 2) if pool else x.shape
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        peaks, codes, outputs = x, None, y.numel() // C
        grid = (_ceil(outputs, maps["TILE"]),)
        if pool:
            peaks, codes = torch.empty_like(y), torch.empty_like(y, dtype=torch.uint8)
            kernels.pool_forward[grid](x, table, y, peaks, codes, outputs, H=H, W=W, CLOSED=CLOSED, **maps)
        else:
            kernels.flat_forward[grid](x, table, y, outputs, **maps)
        ctx.save_for_backward(x, peaks, codes, table)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, peaks, codes, table = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        _, C, H, W = x.shape
        maps, sums, outputs = _sizes(C, MAP_WARPS), _sizes(C, SUM_WARPS), g.numel() // C
        programs, steps = _shares(outputs, sums["TILE"])
        totals, products = table.new_empty((2, programs, C))
        grad_weight, grad_bias, slopes = (table.new_empty(shape) for shape in (C, C, (2, C)))
        kernels.sums[(programs,)](g, peaks, table, totals, products, outputs, UNROLL=UNROLL, STEPS=steps, **sums)
        kernels.finish_sums[(_ceil(C, GROUP),)](
            totals, products, table, grad_weight, grad_bias, slopes, programs, x.numel() // C, **_groups(C, programs)
        )
        dx = torch.empty_like(x)
        grid = (_ceil(outputs, maps["TILE"]),)
        if codes is None:
            kernels.flat_backward[grid](g, x, table, slopes, dx, outputs, **maps)
        else:
            kernels.pool_backward[grid](g, x, codes, table, slopes, dx, outputs, H=H, W=W, CLOSED=CLOSED, **maps)
        return dx, grad_weight, grad_bias, None, None, None, None, None


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _power(number: int) -> int:
    """The next power of two, which a block's sides must be."""
    return 1 << (number - 1).bit_length()


def _sizes(C: int, warps: int) -> dict[str, int]:
    channels = _power(C)
    tile = max(1, 32 * warps * THREAD_VALUES // channels)
    return {"C": C, "CHANNELS": channels, "TILE": tile, "num_warps": warps, "enable_fp_fusion": True}


def _groups(C: int, programs: int) -> dict[str, int]:
    return {"C": C, "PROGRAMS": _power(programs), "GROUP": GROUP, "num_warps": 8, "enable_fp_fusion": True}


def _shares(rows: int, tile: int) -> tuple[int, int]:
    """How many programs add up these rows, and in how many steps each."""
    steps = _ceil(_ceil(rows, UNROLL * tile), PROGRAMS)
    return _ceil(rows, steps * UNROLL * tile), steps


@functools.cache
def _kernels_run(device: torch.device) -> bool:
    """Whether Triton can build for this device: it also needs a C compiler and Python's headers."""
    if kernels is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        with torch.cuda.device(device):
            ones = torch.ones(4, 1, device=device)
            kernels.flat_forward[(1,)](ones, ones, torch.empty_like(ones), 1, **_sizes(1, MAP_WARPS))
    except Exception as error:
        warnings.warn(f"fused kernels are off, as Triton cannot build them here: {error}", stacklevel=2)
        return False
    return True


def fused_norm(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float, pool: bool,
) -> Tensor:  # fmt: skip
    """Batch norm as in training, pooling if asked, and ReLU, by the kernels; moves the running statistics."""
    y: Tensor = _Fused.apply(x, weight, bias, running_mean, running_var, momentum, eps, pool)
    return y


class PooledBatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, with its state, then 3 x 3 max-pool of stride 2 if `pool`, then ReLU; fused where it can be."""

    def __init__(self, num_features: int, pool: bool, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, momentum)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same, or with `pool` to half the height and width, rounded up."""
        mean, var, steps, momentum = self.running_mean, self.running_var, self.num_batches_tracked, self.momentum
        if self._fusible(x) and mean is not None and var is not None and steps is not None and momentum is not None:
            steps.add_(1)
            with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
                return fused_norm(x, self.weight, self.bias, mean, var, momentum, self.eps, self.pool)
        x = super().forward(x)
        return F.relu(F.max_pool2d(x, 3, stride=2, padding=1) if self.pool else x)  # a quarter of the values to clip

    def _fusible(self, x: Tensor) -> bool:
        return (
            self.training
            and x.is_cuda
            and not torch.compiler.is_compiling()  # which fuses on its own what it can see
            and x.dtype in DTYPES
            and self.weight.dtype == torch.float32
            and x.shape[1] < x.numel() < 2**31  # more than one value per channel; 32-bit places
            and _kernels_run(x.device)
        )

    def extra_repr(self) -> str:
        """As `nn.BatchNorm2d`, and whether it pools."""
        return f"{super().extra_repr()}, pool={self.pool}"  # type: ignore[no-untyped-call]
