"""Backbones by name: image in, feature map F (B, C, H, W) out."""

import torch
from torch import Tensor, nn

from afield.config.network import DIGIT_NETWORK, NetworkOptions
from afield.errors import AfieldError
from afield.networks.bare import Bare, DigitNetwork, refused
from afield.networks.heads import Pool, hidden_layers
from afield.networks.shapes import on_meta
from afield.networks.weights import load_weights

HALF = (0.5, 0.5, 0.5)


class NeckedBackbone(nn.Module):
    """A backbone and the fully connected layers that end its feature extractor; F is their output, a map of 1 x 1."""

    def __init__(self, backbone: nn.Module, pool: Pool, options: NetworkOptions) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        # After the last no dropout unless asked for, as in M3SDA's network: losses that compare features should see all
        # of them. MCD's has one.
        last = nn.Dropout(options.neck_dropout)
        self.neck = nn.Sequential(*hidden_layers(pool.width, options.neck, options)[:-1], last)

    def forward(self, images: Tensor) -> Tensor:
        """(B, the last layer's width, 1, 1)."""
        vectors: Tensor = self.neck(self.pool(self.backbone(images)))
        return vectors[:, :, None, None]


def check_backbone(name: str) -> None:
    """Raise, with the nearest spelling, unless the backbone exists."""
    if name != DIGIT_NETWORK:
        from afield.networks.timm_backbone import check_name

        check_name(name)


def build_backbone(options: NetworkOptions, image_size: int) -> nn.Module:
    """The feature extractor that the options describe: the backbone they name and, if they ask for it, a neck."""
    backbone = _bare(options, image_size)
    if options.weights:
        map_shape(backbone, image_size, options.backbone)  # raises where images of this size are not taken
        load_weights(backbone, options.weights, options.backbone, image_size)
    if not options.neck:
        return backbone
    pool = Pool(options.pool, map_shape(backbone, image_size, options.backbone))
    return NeckedBackbone(backbone, pool, options)


def _bare(options: NetworkOptions, image_size: int) -> Bare:
    if options.backbone == DIGIT_NETWORK:
        return DigitNetwork(options.width, batch_norm=options.batch_norm != "none")
    from afield.networks.timm_backbone import TimmBackbone

    return TimmBackbone(options.backbone, options.pretrained, image_size)


def map_shape(backbone: nn.Module, image_size: int, name: str) -> tuple[int, int, int]:
    """(C, H, W) of the map an image of this size gives, found by one forward pass without values."""
    try:
        with torch.no_grad():
            features = on_meta(backbone).eval()(torch.zeros(1, 3, image_size, image_size, device="meta"))
    except (AssertionError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if "meta" in str(error):  # a checkpoint of it could not be checked before it is given memory
            raise AfieldError(f"backbone '{name}' looks at pixels to know the shape of its map") from error
        raise refused(name, image_size, error, _made_for(name)) from error
    expected = getattr(getattr(backbone, "model", None), "num_features", features.shape[1])
    if features.ndim != 4 or features.shape[1] != expected:
        raise AfieldError(f"backbone '{name}' gives no (channels, height, width) map")
    return int(features.shape[1]), int(features.shape[2]), int(features.shape[3])


def _made_for(name: str) -> str:
    if name == DIGIT_NETWORK:
        return ""
    from afield.networks.timm_backbone import made_for

    return made_for(name)


def normalisation(options: NetworkOptions) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of the images the backbone expects."""
    if options.backbone == DIGIT_NETWORK:
        return HALF, HALF
    from afield.networks import timm_backbone

    return timm_backbone.normalisation(options.backbone)
