"""Backbones without a neck: what they have in common, and the digit network. timm's are in `timm_backbone.py`."""

from typing import ClassVar

from torch import nn

from afield.errors import AfieldError
from afield.networks.fused import FusedBatchNorm


class Bare(nn.Module):
    """A feature extractor without a neck: image in, feature map F (B, C, H, W) out."""

    drops: ClassVar[tuple[type[nn.Module], ...]] = ()
    """Layers in it that drop something at random, beside torch's own."""


class DigitNetwork(nn.Sequential, Bare):
    """M3SDA's three convolutions for 32 x 32 digits; with width 64 the map is 128 x 8 x 8.

    Before batch norm convolutions have no bias: it would subtract it again. Without batch norm they are DANN's.
    """

    def __init__(self, width: int = 64, batch_norm: bool = True) -> None:
        layers: list[nn.Module] = []
        for before, after, pool in ((3, width, True), (width, width, True), (width, 2 * width, False)):
            layers.append(nn.Conv2d(before, after, 5, padding=2, bias=not batch_norm))
            layers.append(FusedBatchNorm(after, pool=pool) if batch_norm else pooled_relu(pool))
        super().__init__(*layers)

    @property
    def stages(self) -> list[nn.Module]:
        """What follows each convolution: its output is the map that the next one reads."""
        return list(self)[1::2]


def pooled_relu(pool: bool) -> nn.Module:
    """What `FusedBatchNorm` does besides batch norm: 3 x 3 max-pool of stride 2 if `pool`, then ReLU."""
    return nn.Sequential(nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU()) if pool else nn.ReLU()


def bare_backbones(network: nn.Module) -> list[Bare]:
    """All backbones inside a network, copies of them too, each without its neck."""
    return [module for module in network.modules() if isinstance(module, Bare)]


def refused(name: str, image_size: int, reason: Exception | str, made_for: str = "") -> AfieldError:
    """The error for a backbone that does not take images of this size."""
    reason = reason if isinstance(reason, str) else first_line(reason)
    return AfieldError(f"backbone '{name}' does not take images of {image_size} x {image_size}: {reason}{made_for}")


def first_line(error: Exception) -> str:
    """The first sentence of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")
