"""Backbones by name: image in, feature map F (B, C, H, W) out."""

from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.func import functional_call

from afield.config.network import DIGIT_NETWORK, NetworkOptions
from afield.errors import AfieldError, unknown
from afield.networks.fused import PooledBatchNorm
from afield.networks.heads import Pool, hidden_layers

HALF = (0.5, 0.5, 0.5)


class DigitNetwork(nn.Sequential):
    """M3SDA's three convolutions for 32 x 32 digits; with width 64 the map is 128 x 8 x 8.

    The convolutions have no bias: batch norm would subtract it again.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__(
            nn.Conv2d(3, width, 5, padding=2, bias=False),
            PooledBatchNorm(width, pool=True),
            nn.Conv2d(width, width, 5, padding=2, bias=False),
            PooledBatchNorm(width, pool=True),
            nn.Conv2d(width, 2 * width, 5, padding=2, bias=False),
            PooledBatchNorm(2 * width, pool=False),
        )


class NeckedBackbone(nn.Module):
    """A backbone and the fully connected layers that end its feature extractor; F is their output, a map of 1 x 1."""

    def __init__(self, backbone: nn.Module, pool: Pool, options: NetworkOptions) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        self.neck = nn.Sequential(*hidden_layers(pool.width, options.neck, options.dropout))

    def forward(self, images: Tensor) -> Tensor:
        """(B, the last layer's width, 1, 1)."""
        vectors: Tensor = self.neck(self.pool(self.backbone(images)))
        return vectors[:, :, None, None]


class TimmBackbone(nn.Module):
    """Any timm model whose features are a map with channels first."""

    def __init__(self, name: str, pretrained: bool) -> None:
        super().__init__()
        check_backbone(name)
        try:
            self.model: Any = timm.create_model(name, pretrained=pretrained, num_classes=0)
        except Exception as error:
            if not pretrained:
                raise
            raise AfieldError(
                f"no ImageNet weights for '{name}' could be had ({_first_line(error)}); "
                "network.pretrained=false starts from random weights"
            ) from error

    def forward(self, images: Tensor) -> Tensor:
        """The last feature map, before timm's own pooling."""
        features: Tensor = self.model.forward_features(images)
        return features


def check_backbone(name: str) -> None:
    """Raise, with the nearest spelling, unless the backbone exists."""
    if name != DIGIT_NETWORK and not timm.is_model(name):
        raise unknown("backbone", name, [DIGIT_NETWORK, *timm.list_models()])


def build_backbone(options: NetworkOptions, image_size: int) -> nn.Module:
    """The feature extractor that the options describe: the backbone they name and, if they ask for it, a neck."""
    backbone = (
        DigitNetwork(options.width)
        if options.backbone == DIGIT_NETWORK
        else TimmBackbone(options.backbone, options.pretrained)
    )
    if not options.neck:
        return backbone
    pool = Pool(options.pool, map_shape(backbone, image_size, options.backbone))
    return NeckedBackbone(backbone, pool, options)


def without_neck(backbone: nn.Module) -> nn.Module:
    """The part of a feature extractor that pretrained weights are for."""
    return backbone.backbone if isinstance(backbone, NeckedBackbone) else backbone


def backbone_parameters(network: nn.Module) -> set[nn.Parameter]:
    """What pretrained weights are for in a network: the parameters of its backbones, copies too, but of no neck."""
    backbones = (module for module in network.modules() if isinstance(module, DigitNetwork | TimmBackbone))
    return {parameter for backbone in backbones for parameter in backbone.parameters()}


def map_shape(backbone: nn.Module, image_size: int, name: str) -> tuple[int, int, int]:
    """(C, H, W) of the map an image of this size gives, found by one forward pass."""
    training = backbone.training
    backbone.eval()
    try:
        features = _shape_alone(backbone, image_size)
    except (AssertionError, RuntimeError) as error:
        raise AfieldError(
            f"backbone '{name}' does not take {image_size} x {image_size} images: {_first_line(error)}"
        ) from error
    finally:
        backbone.train(training)
    expected = getattr(getattr(backbone, "model", None), "num_features", features.shape[1])
    if features.ndim != 4 or features.shape[1] != expected:
        raise AfieldError(f"backbone '{name}' gives no (channels, height, width) map; choose a convolutional one")
    return int(features.shape[1]), int(features.shape[2]), int(features.shape[3])


def _shape_alone(backbone: nn.Module, image_size: int) -> Tensor:
    """What the backbone gives, without values: however large the images, it takes no memory."""
    tensors = {name: t.to("meta") for name, t in (*backbone.named_parameters(), *backbone.named_buffers())}
    features: Tensor
    with torch.no_grad():
        try:
            features = functional_call(backbone, tensors, (torch.zeros(1, 3, image_size, image_size, device="meta"),))
        except (RuntimeError, TypeError) as error:
            if "meta" not in str(error):
                raise
            # Something in it looks at values, so values there must be.
            features = backbone(torch.zeros(1, 3, image_size, image_size))
    return features


def normalisation(options: NetworkOptions) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of the images the backbone expects."""
    if options.backbone == DIGIT_NETWORK:
        return HALF, HALF
    expected: Any = timm.get_pretrained_cfg(options.backbone, allow_unregistered=True)
    return tuple(expected.mean), tuple(expected.std)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
