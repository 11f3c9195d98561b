"""Any timm model as a backbone. Importing timm takes seconds, and the digit network does without it."""

import math
from contextlib import nullcontext
from typing import Any

import timm
import torch
from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.models import PretrainedCfg
from torch import Tensor, nn

from afield.config.network import DIGIT_NETWORK
from afield.errors import AfieldError, unknown
from afield.networks.bare import Bare, first_line, refused
from afield.networks.depthwise import fuse_depthwise
from afield.networks.fuse_norms import fuse_norms
from afield.networks.hub import asking_hub

Three = tuple[float, float, float]


class TimmBackbone(Bare):
    """Any timm model whose last features are a map or one token for each patch; F is their map, channels first."""

    drops = (DropPath,)

    def __init__(self, name: str, pretrained: bool, image_size: int) -> None:
        super().__init__()
        check_name(name)
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
                f"no ImageNet weights for '{name}' could be had ({first_line(error)}); --weights FILE "
                "(network.weights) takes them from a file, network.pretrained=false starts from random ones"
            ) from error
        raise refused(name, image_size, error, made_for(name)) from error
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
            reason = f"its patches are {side} x {side}; {fitting} would do"
            raise refused(name, image_size, reason, made_for(name))


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


def check_name(name: str) -> None:
    """Raise, with the nearest spelling, unless timm has the model; after a dot timm names weights for it."""
    if not timm.is_model(name):
        raise unknown("backbone", name, [DIGIT_NETWORK, *timm.list_models()])
    architecture, dot, _ = name.partition(".")
    if dot and not timm.is_model_pretrained(name):
        raise unknown("weights of a backbone", name, timm.list_models(f"{architecture}.*", pretrained=True))


def made_for(name: str) -> str:
    """Which images timm has a model for, as the end of an error."""
    return f"; timm has it for {_timm_config(name).input_size[-1]}"


def normalisation(name: str) -> tuple[Three, Three]:
    """Mean and standard deviation of the images that a model expects."""
    expected = _timm_config(name)
    return tuple(expected.mean), tuple(expected.std)
