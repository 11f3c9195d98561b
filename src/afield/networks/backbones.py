"""Backbones by name: image in, feature map F (B, C, H, W) out."""

import math
from contextlib import nullcontext
from typing import Any

import timm
import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models import PretrainedCfg
from torch import Tensor, nn

from afield.config.network import DIGIT_NETWORK, NetworkOptions
from afield.errors import AfieldError, unknown
from afield.networks.depthwise import fuse_depthwise
from afield.networks.fused import FusedBatchNorm, fuse_norms
from afield.networks.heads import Pool, hidden_layers
from afield.networks.hub import asking_hub
from afield.networks.shapes import on_meta
from afield.networks.weights import load_weights

HALF = (0.5, 0.5, 0.5)


class DigitNetwork(nn.Sequential):
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


class TimmBackbone(nn.Module):
    """Any timm model whose last features are a map or one token for each patch; F is their map, channels first."""

    def __init__(self, name: str, pretrained: bool, image_size: int) -> None:
        super().__init__()
        check_backbone(name)
        self.name = name
        self.model: Any = _created(name, pretrained, image_size)
        _check_patches(self.model, name, image_size)
        fuse_norms(self.model)
        fuse_depthwise(self.model)

    def forward(self, images: Tensor) -> Tensor:
        """The last features, before timm's own pooling, as a map."""
        features = self.model.forward_features(images)
        if isinstance(features, Tensor) and features.ndim == 4:
            last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
            return features.permute(0, 3, 1, 2) if last else features
        grid = _grid(self.model, features.shape[1]) if isinstance(features, Tensor) and features.ndim == 3 else None
        if grid is None:
            given = f"a shape of {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
            raise AfieldError(f"backbone '{self.name}' gives neither a map nor a square of tokens, but {given}")
        # Tokens that stand for no patch, such as a class token, come first.
        patches: Tensor = features[:, features.shape[1] - grid[0] * grid[1] :]
        return patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid)  # len() would fix an exported batch


def _created(name: str, pretrained: bool, image_size: int) -> nn.Module:
    """timm's model without its classifier, for images of this size where it is built for one size."""
    size: dict[str, Any] = {"img_size": image_size} if getattr(_timm_config(name), "fixed_input_size", False) else {}
    try:
        with asking_hub() if pretrained else nullcontext():
            model: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0, **size)
    except Exception as error:  # whatever a model's own code makes of a size, and the hub of a request
        if pretrained:
            with torch.device("meta"):
                _created(name, False, image_size)  # raises where it is the size that it does not take
            raise AfieldError(
                f"no ImageNet weights for '{name}' could be had ({_first_line(error)}); --weights FILE "
                "(network.weights) takes them from a file, network.pretrained=false starts from random ones"
            ) from error
        raise _refused(name, image_size, error) from error
    return model


def _timm_config(name: str) -> Any:
    """What timm notes of a model: its input, its classifier; the defaults for one that it has no notes of."""
    return timm.get_pretrained_cfg(name, allow_unregistered=True) or PretrainedCfg()


def _check_patches(model: Any, name: str, image_size: int) -> None:
    """Raise where the last row and column of patches would stick out of the images, and be left out."""
    patches = getattr(model, "patch_embed", getattr(model, "stem", None))
    if isinstance(patches, PatchEmbed) and not patches.dynamic_img_pad:
        side = max(patches.patch_size)
        if image_size % side:
            below = image_size // side * side
            fitting = f"{below} or {below + side}" if below else str(side)
            raise _refused(name, image_size, f"its patches are {side} x {side}; {fitting} would do")


def _grid(model: Any, count: int) -> tuple[int, int] | None:
    """How many rows and columns of patches so many tokens are, less those before them; None if no square."""
    before = getattr(model, "num_prefix_tokens", None)
    known = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    for patches in (count, count - 1) if before is None else (count - before,):
        if known and known[0] * known[1] == patches:
            return int(known[0]), int(known[1])
        side = math.isqrt(max(patches, 0))
        if side and side * side == patches:
            return side, side
    return None


def check_backbone(name: str) -> None:
    """Raise, with the nearest spelling, unless the backbone exists; after a dot timm names weights for it."""
    if name == DIGIT_NETWORK:
        return
    if not timm.is_model(name):
        raise unknown("backbone", name, [DIGIT_NETWORK, *timm.list_models()])
    architecture, dot, _ = name.partition(".")
    if dot and not timm.is_model_pretrained(name):
        raise unknown("weights of a backbone", name, timm.list_models(f"{architecture}.*", pretrained=True))


def build_backbone(options: NetworkOptions, image_size: int) -> nn.Module:
    """The feature extractor that the options describe: the backbone they name and, if they ask for it, a neck."""
    backbone = (
        DigitNetwork(options.width, batch_norm=options.batch_norm != "none")
        if options.backbone == DIGIT_NETWORK
        else TimmBackbone(options.backbone, options.pretrained, image_size)
    )
    if options.weights:
        map_shape(backbone, image_size, options.backbone)  # raises where images of this size are not taken
        load_weights(backbone, options.weights, options.backbone, image_size)
    if not options.neck:
        return backbone
    pool = Pool(options.pool, map_shape(backbone, image_size, options.backbone))
    return NeckedBackbone(backbone, pool, options)


def bare_backbones(network: nn.Module) -> list[nn.Module]:
    """All backbones inside a network, copies of them too, each without its neck."""
    return [module for module in network.modules() if isinstance(module, DigitNetwork | TimmBackbone)]


def map_shape(backbone: nn.Module, image_size: int, name: str) -> tuple[int, int, int]:
    """(C, H, W) of the map an image of this size gives, found by one forward pass without values."""
    try:
        with torch.no_grad():
            features = on_meta(backbone).eval()(torch.zeros(1, 3, image_size, image_size, device="meta"))
    except (AssertionError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if "meta" in str(error):  # a checkpoint of it could not be checked before it is given memory
            raise AfieldError(f"backbone '{name}' looks at pixels to know the shape of its map") from error
        raise _refused(name, image_size, error) from error
    expected = getattr(getattr(backbone, "model", None), "num_features", features.shape[1])
    if features.ndim != 4 or features.shape[1] != expected:
        raise AfieldError(f"backbone '{name}' gives no (channels, height, width) map")
    return int(features.shape[1]), int(features.shape[2]), int(features.shape[3])


def normalisation(options: NetworkOptions) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of the images the backbone expects."""
    if options.backbone == DIGIT_NETWORK:
        return HALF, HALF
    expected = _timm_config(options.backbone)
    return tuple(expected.mean), tuple(expected.std)


def _refused(name: str, image_size: int, reason: Exception | str) -> AfieldError:
    made_for = "" if name == DIGIT_NETWORK else f"; timm has it for {_timm_config(name).input_size[-1]}"
    reason = reason if isinstance(reason, str) else _first_line(reason)
    return AfieldError(f"backbone '{name}' does not take images of {image_size} x {image_size}: {reason}{made_for}")


def _first_line(error: Exception) -> str:
    """The first sentence of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")
