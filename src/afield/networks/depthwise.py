"""Depthwise convolutions, in which every channel has a window of its own: Triton kernels, or what the layer does.

Such a layer multiplies little and reads much. cuDNN is slow where the stride is 2, above all on the way back, and a
layer with TensorFlow's padding first copies its map to one with a border; here the border is a condition on an address.
Of a layer of stride 1 only the gradient of the map is ours: cuDNN is faster at the rest.
"""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from afield.kernels import layers_use_kernels
from afield.networks.fused import DTYPES, channel_block

try:
    from afield.kernels import depthwise as kernels
except ImportError:  # without Triton
    kernels = None  # type: ignore[assignment]

WARPS = 4
MAP_VALUES, MAP_CHANNELS = 16, 32
"""Of a thread and, at most, of a program in a pass over outputs: two pixels share what is loaded of the weights."""
SPREAD_CHANNELS = 64
"""Of a program that finds the gradient of a map in squares."""
SHARE_VALUES, SHARE_CHANNELS = 8, 32
"""The same in the gradient of the weights, where each value has five sums under way."""
PROGRAMS = 2048
"""The most programs in that gradient."""
SIDES, STRIDES = (3, 5), (1, 2)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, top: int, left: int, out: tuple[int, int]) -> Tensor:
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.top, ctx.left = stride, top, left
        if stride == 1:
            return torch.conv2d(x, weight, None, 1, (top, left), 1, x.shape[1])
        shape = (x.shape[0], x.shape[1], *out)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        _correlate(x, _taps(weight), y, stride, top, left, flip=False)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, top, left = ctx.stride, ctx.top, ctx.left
        g = g.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        last = weight.shape[2] - 1
        if dx is not None and stride == 1:
            _correlate(g, _taps(weight), dx, 1, last - top, last - left, flip=True)
        elif dx is not None:
            _spread(g, _taps(weight), dx, top, left)
        grad = _weight_gradient(g, x, weight, stride, top, left) if ctx.needs_input_grad[1] else None
        return dx, grad, None, None, None, None


def _taps(weight: Tensor) -> Tensor:
    """One row of channels for each tap."""
    return weight.flatten(1).t().contiguous()


def _correlate(x: Tensor, taps: Tensor, y: Tensor, stride: int, top: int, left: int, flip: bool) -> None:
    sizes, rows = _sizes(x, y, MAP_VALUES, MAP_CHANNELS), y.shape[0] * y.shape[2] * y.shape[3]
    kernels.correlate[_grid(rows, sizes)](
        x, taps, y, rows, K=_side(taps), STRIDE=stride, TOP=top, LEFT=left, FLIP=flip, **sizes
    )


def _spread(g: Tensor, taps: Tensor, dx: Tensor, top: int, left: int) -> None:
    sizes = _sizes(dx, g, MAP_VALUES, SPREAD_CHANNELS)
    rows = dx.shape[0] * ((dx.shape[2] + 1) // 2) * ((dx.shape[3] + 1) // 2)
    kernels.spread_strided[_grid(rows, sizes)](g, taps, dx, rows, K=_side(taps), TOP=top, LEFT=left, **sizes)


def _weight_gradient(g: Tensor, x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    channels, side = weight.shape[0], weight.shape[2]
    if stride == 1:
        wanted = (False, True, False)  # of the gradients by the map, by the weight and by a bias
        found = torch.ops.aten.convolution_backward(
            g, x, weight, None, (1, 1), (top, left), (1, 1), False, (0, 0), channels, wanted
        )
        grad: Tensor = found[1]
        return grad.float()
    sizes, rows = _sizes(x, g, SHARE_VALUES, SHARE_CHANNELS), g.shape[0] * g.shape[2] * g.shape[3]
    tiles, blocks = _grid(rows, sizes)
    steps = -(-tiles * side * blocks // PROGRAMS)
    programs = -(-tiles // steps)
    shares = torch.empty((programs, side * side, channels), dtype=torch.float32, device=x.device)
    kernels.weight_shares[(programs * side, blocks)](
        g, x, shares, rows, steps, K=side, STRIDE=stride, TOP=top, LEFT=left, **sizes
    )
    return shares.sum(dim=0).t().reshape(weight.shape)


def _side(taps: Tensor) -> int:
    return {side * side: side for side in SIDES}[len(taps)]


def _sizes(x: Tensor, y: Tensor, values: int, most_channels: int) -> dict[str, int]:
    """What the kernels know of a layer with maps x and y, and how a program's values are laid out."""
    C, channels = x.shape[1], min(channel_block(x.shape[1]), most_channels)
    tile = max(1, 32 * WARPS * values // channels)
    shape = {"H": x.shape[2], "W": x.shape[3], "OUT_H": y.shape[2], "OUT_W": y.shape[3]}
    return {"C": C, "CHANNELS": channels, "TILE": tile, "num_warps": WARPS, "enable_fp_fusion": True, **shape}


def _grid(rows: int, sizes: dict[str, int]) -> tuple[int, int]:
    return -(-rows // sizes["TILE"]), -(-sizes["C"] // sizes["CHANNELS"])


def depthwise(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int], out: tuple[int, int]) -> Tensor:
    """The convolution of every channel of x with its own window, by the kernels.

    `padding` are the rows above and the columns left of the map, `out` the height and width of the result: what they
    ask for beyond the map is zero.
    """
    y: Tensor = _Depthwise.apply(x, weight, stride, *padding, out)
    return y


class DepthwisePass:
    """The forward pass of a depthwise convolution that has kernels of ours; its own where they cannot be used."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer
        self.plain: Callable[[Tensor], Tensor] = layer.forward

    def __call__(self, x: Tensor) -> Tensor:
        """The layer's output."""
        layer = self.layer
        if not self._usable(x):
            return self.plain(x)
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        if x.dtype not in DTYPES:
            return self.plain(x)
        side, stride = layer.kernel_size[0], layer.stride[0]
        (top, height), (left, width) = (_border(layer, size, side, stride) for size in x.shape[2:])
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            return depthwise(x, layer.weight, stride, (top, left), (height, width))

    def _usable(self, x: Tensor) -> bool:
        return (
            self.layer.training
            and x.is_cuda
            and not torch.compiler.is_compiling()
            and self.layer.weight.dtype == torch.float32
            and x.numel() < 2**31  # 32-bit places
            and layers_use_kernels(x.device)
        )


def _border(layer: nn.Conv2d, size: int, side: int, stride: int) -> tuple[int, int]:
    """How many zeros come before a side of a map, and how long that side of the output is."""
    if isinstance(layer, Conv2dSame):
        out = -(-size // stride)
        return max((out - 1) * stride + side - size, 0) // 2, out
    padding = side // 2
    return padding, (size + 2 * padding - side) // stride + 1


def fuse_depthwise(network: nn.Module) -> None:
    """Let depthwise convolutions inside a network be done by the kernels, where these know them."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and _is_known(layer):
            setattr(layer, "forward", DepthwisePass(layer))  # noqa: B010


def _is_known(layer: nn.Conv2d) -> bool:
    side = layer.kernel_size[0]
    return (
        type(layer) in (nn.Conv2d, Conv2dSame)
        and layer.groups == layer.in_channels == layer.out_channels
        and layer.bias is None
        and layer.dilation == (1, 1)
        and layer.kernel_size == (side, side)
        and side in SIDES
        and layer.stride[0] in STRIDES
        and layer.stride == (layer.stride[0],) * 2
        and layer.padding_mode == "zeros"
        and (isinstance(layer, Conv2dSame) or layer.padding == (side // 2, side // 2))
    )
