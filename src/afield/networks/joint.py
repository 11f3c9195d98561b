"""What a discriminator of features and predictions together reads (Long et al.: NeurIPS 2018, section 3.1)."""

import math

import torch
from torch import Tensor, nn


class MultilinearMap(nn.Module):
    """f (x) g: every feature times every probability."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.width = features * classes

    def forward(self, f: Tensor, g: Tensor) -> Tensor:
        """(B, features) and (B, classes) to (B, features * classes)."""
        return (f[:, :, None] * g[:, None]).flatten(1)


class RandomisedMap(nn.Module):
    """(R_f f) (.) (R_g g) / sqrt(d): its products of two h are those of f (x) g, in expectation over R_f and R_g."""

    R_f: Tensor
    R_g: Tensor

    def __init__(self, features: int, classes: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("R_f", torch.randn(features, width))
        self.register_buffer("R_g", torch.randn(classes, width))

    def forward(self, f: Tensor, g: Tensor) -> Tensor:
        """(B, features) and (B, classes) to (B, d)."""
        return (f @ self.R_f) * (g @ self.R_g) / math.sqrt(self.width)


def joint_map(features: int, classes: int, widest: int = 4096, width: int = 1024) -> MultilinearMap | RandomisedMap:
    """The multilinear map, or where it is wider than `widest` a randomised one of a width."""
    if features * classes <= widest:
        return MultilinearMap(features, classes)
    return RandomisedMap(features, classes, width)
