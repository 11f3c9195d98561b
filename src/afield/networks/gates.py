"""Spatial and channel attention gates (the paper's supplementary, section 1), and what they select."""

from typing import Literal

import torch
from torch import Tensor, nn

GateKind = Literal["both", "channel", "spatial"]


class ChannelGate(nn.Module):
    """a = sigmoid(W2 relu(W1 pool(F))): one value a channel, (B, C, 1, 1)."""

    def __init__(self, channels: int, reduction: int = 8) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.layers = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        """Gate values in 0..1."""
        values: Tensor = self.layers(features.mean(dim=(2, 3)))
        return values[:, :, None, None]


class SpatialGate(nn.Module):
    """S = sigmoid(W2 * relu(W1 * channel_pool(F))): one value a position, (B, 1, H, W).

    The paper gives neither widths nor kernels. Pooling channels to (mean, max), a hidden width of C / r and 5 x 5
    kernels give the parameter count it states.
    """

    def __init__(self, channels: int, reduction: int = 8, kernel: int = 5) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.layers = nn.Sequential(
            nn.Conv2d(2, hidden, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.Conv2d(hidden, 1, kernel, padding=kernel // 2),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Gate values in 0..1."""
        pooled = torch.stack((features.mean(dim=1), features.amax(dim=1)), dim=1)
        values: Tensor = self.layers(pooled)
        return values


class Gate(nn.Module):
    """Both branches read the same input, in parallel; the gate is their product, broadcast to the map.

    `normalised` divides the channel gate by its mean over channels and the spatial gate by its mean over positions.
    The product's mean over the map is then 1: the gate can redistribute, but it can neither close nor open altogether.
    """

    def __init__(self, channels: int, kind: GateKind = "both", reduction: int = 8, normalised: bool = False) -> None:
        super().__init__()
        self.channel = ChannelGate(channels, reduction) if kind != "spatial" else None
        self.spatial = SpatialGate(channels, reduction) if kind != "channel" else None
        self.normalised = normalised

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to a gate that broadcasts to it: 0..1, or mean 1 when normalised."""
        gate: Tensor | None = None
        for branch, over in ((self.channel, (1,)), (self.spatial, (2, 3))):
            if branch is None:
                continue
            values = branch(features)
            if self.normalised:
                values = values / values.mean(dim=over, keepdim=True)
            gate = values if gate is None else gate * values
        assert gate is not None
        return gate


class GatedSelection(nn.Module):
    """FA: A = gate(F) * F."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, features: Tensor) -> Tensor:
        """The selected part of the map."""
        selected: Tensor = self.gate(features) * features
        return selected


class ConvolutionSelection(nn.Sequential):
    """The ablation FAR_conv: A = relu(1 x 1 convolution of F)."""

    def __init__(self, channels: int) -> None:
        super().__init__(nn.Conv2d(channels, channels, 1), nn.ReLU())
