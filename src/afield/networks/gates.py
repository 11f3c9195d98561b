"""Spatial and channel attention gates (the paper's supplementary, section 1), and what they select."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from afield.precision import exact_mean, in_float32

GateKind = Literal["both", "channel", "spatial"]
Size = tuple[int, int]
MOST_POSITIONS = 64
FLOOR = 1e-3


class ChannelGate(nn.Module):
    """a = sigmoid(W2 relu(W1 pool(F))): one value per channel, (B, C)."""

    def __init__(self, channels: int, reduction: int = 8) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.layers = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.Sigmoid())

    def forward(self, mean: Tensor) -> Tensor:
        """The mean of the map over positions, (B, C), to gate values in 0..1."""
        return in_float32(self.layers, mean)


class SpatialGate(nn.Module):
    """S = sigmoid(W2 * relu(W1 * channel_pool(F))): one value per position, (B, H, W).

    The paper gives neither widths nor kernels. Pooling channels to (mean, max), a hidden width of C / r and 5 x 5
    kernels give the parameter count it states.
    """

    def __init__(self, channels: int, reduction: int = 8, kernel: int = 5, size: Size | None = None) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.layers = nn.Sequential(
            SmallConvolution(2, hidden, kernel, size),
            nn.ReLU(),
            SmallConvolution(hidden, 1, kernel, size),
            nn.Sigmoid(),
        )

    def forward(self, mean: Tensor, largest: Tensor) -> Tensor:
        """Mean and maximum of the map over channels, each (B, H, W), to gate values in 0..1."""
        return in_float32(self.layers, torch.stack((mean, largest.to(mean.dtype)), dim=1)).squeeze(1)


class SmallConvolution(nn.Conv2d):
    """A convolution that keeps the map's size; on maps of the `size` it is told, if small, one matrix product.

    With a few channels on a few positions, convolution kernels leave a GPU idle. The matrix from all inputs to all
    outputs holds each weight wherever the kernel puts it.
    """

    places: Tensor | None
    uses: Tensor | None

    def __init__(self, inputs: int, outputs: int, kernel: int, size: Size | None = None) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        small = size is not None and size[0] * size[1] <= MOST_POSITIONS
        places, uses = weight_places(self.weight.shape, size) if size is not None and small else (None, None)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("uses", uses, persistent=False)
        self.size = size

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        if self.places is None or self.bias is None or maps.shape[2:] != self.size:
            return super().forward(maps)
        matrix = _Placed.apply(self.weight.flatten(), self.places, self.uses)
        moved: Tensor = (maps.flatten(1) @ matrix).view(-1, self.out_channels, *maps.shape[2:])
        return moved + self.bias[:, None, None]


def as_convolutions(network: nn.Module) -> None:
    """Make all small convolutions of a network plain ones, without tables: for a file, which should be small."""
    for module in network.modules():
        if isinstance(module, SmallConvolution):
            module.places = module.uses = None


class _Placed(torch.autograd.Function):
    """Values at the places that ask for them, and zeros where none is asked for.

    The gradient of a value is the sum over its uses, which are known: torch's own would add them up one by one.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, uses: Tensor) -> Tensor:
        ctx.save_for_backward(uses)
        return pad(values, (0, 1))[places]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (uses,) = ctx.saved_tensors
        return pad(gradients[0].flatten(), (0, 1))[uses].sum(dim=1), None, None


def weight_places(shape: torch.Size, size: Size) -> tuple[Tensor, Tensor]:
    """Where a convolution's weights stand in its matrix from (inputs, positions) to (outputs, positions).

    The first tensor names for each element of the matrix the weight that it is, or one past the last for none. The
    second names for each weight the elements that it is, one per position of the output, or one past the last.
    """
    outputs, inputs, kernel, _ = shape
    (height, width), positions = size, size[0] * size[1]
    position, reach = torch.arange(positions), kernel // 2
    row, column = position // width, position % width
    output, into = torch.arange(outputs), torch.arange(inputs)

    # (from, to): the offset by which the output at `to` sees the input at `from`.
    down, across = (of[:, None] - of + reach for of in (row, column))
    seen = (down >= 0) & (down < kernel) & (across >= 0) & (across < kernel)
    weight = (output[:, None] * inputs + into[:, None, None, None]) * kernel**2 + (down * kernel + across)[:, None]
    places = torch.where(seen[:, None], weight, shape.numel()).reshape(inputs * positions, outputs * positions)

    # (offset, to): the input that the output at `to` sees by an offset.
    offset = torch.arange(kernel**2)[:, None]
    up, left = row + offset // kernel - reach, column + offset % kernel - reach
    inside = (up >= 0) & (up < height) & (left >= 0) & (left < width)
    source = into[:, None, None] * positions + up * width + left
    element = (source * outputs + output[:, None, None, None]) * positions + position
    uses = torch.where(inside, element, places.numel()).reshape(shape.numel(), positions)
    return places, uses


class Gate(nn.Module):
    """Both branches read the same input, in parallel; the gate is their product, broadcast to the map.

    `size` is the height and width of the maps it will mostly see, for speed alone. `relative` says that a factor common
    to all its values will not count: on a single position, as after a neck, the spatial branch is such a factor.
    """

    def __init__(
        self,
        channels: int,
        kind: GateKind = "both",
        reduction: int = 8,
        size: Size | None = None,
        relative: bool = False,
    ) -> None:
        super().__init__()
        self.channel = ChannelGate(channels, reduction) if kind != "spatial" else None
        self.spatial = SpatialGate(channels, reduction, size=size) if kind != "channel" else None
        self.relative = relative

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to a gate between 0 and 1 that broadcasts to it, in the map's precision."""
        branches: list[Tensor] = []
        if self.channel is not None:
            branches.append(self.channel(exact_mean(features, 2, 3))[:, None, None])
        if self.spatial is not None and not (self.relative and features.shape[2:].numel() == 1):
            # Not amax, which would share its gradient among equals, in many more kernels.
            branches.append(self.spatial(exact_mean(features, 1), features.max(dim=1).values)[..., None])
        # With the channels last, as the map lies in memory.
        gates = [branch.to(features.dtype) for branch in branches] or [features.new_ones(1, 1, 1, 1)]
        return (gates[0] * gates[1] if len(gates) == 2 else gates[0]).permute(0, 3, 1, 2)


class GatedSelection(nn.Module):
    """FA: A = gate(F) * F.

    `projected` scales A, image by image, so that its projection on F is F itself:

        A = s (gate(F) + floor) F   with   <A, F> = |F|^2,   so that   A = F + something orthogonal   and   |A| >= |F|

    The gate then moves weight between the features that an image has. It cannot close, and weight on a feature that is
    0 keeps nothing open. The floor, a thousandth of an open gate, is for a gate that is 0 in floating point wherever
    the image has a feature.
    """

    def __init__(self, gate: Gate, projected: bool = False) -> None:
        super().__init__()
        self.gate, self.projected = gate, projected

    def forward(self, features: Tensor) -> Tensor:
        """The selected part of the map."""
        gate: Tensor = self.gate(features)
        if not self.projected:
            return gate * features
        A = (gate + FLOOR) * features
        # Means, where sums would do as well: they are added up in float32.
        whole, along = exact_mean(features * features, 1, 2, 3), exact_mean(A * features, 1, 2, 3)
        return A * (whole / along.clamp_min(torch.finfo(along.dtype).tiny)).to(A.dtype)[:, None, None, None]


class ConvolutionSelection(nn.Sequential):
    """The ablation FAR_conv: A = relu(1 x 1 convolution of F)."""

    def __init__(self, channels: int) -> None:
        super().__init__(nn.Conv2d(channels, channels, 1), nn.ReLU())
