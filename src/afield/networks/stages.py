"""The early stages of a backbone: the parts whose output is a map still many times as large as F."""

from typing import Any

import torch
from torch import Tensor, nn

from afield.config.network import DIGIT_NETWORK
from afield.errors import AfieldError
from afield.networks.bare import DigitNetwork, bare_backbones
from afield.networks.shapes import on_meta

REDUCTIONS = (4, 8, 16)


def early_stages(backbone: nn.Module, count: int, image_size: int) -> list[nn.Module]:
    """The first few parts of a backbone that give maps (B, C, H, W), each smaller than the last.

    Of the digit network these are its convolutions but the last, each with batch norm, pooling and ReLU. Of a timm
    model, the parts that its `feature_info` has at a quarter, an eighth and a sixteenth of an image's side: of a ResNet
    layer1, layer2 and layer3. A backbone that has too few, such as a transformer of patches, is an error.
    """
    (bare,) = bare_backbones(backbone)
    if isinstance(bare, DigitNetwork):
        name, found = DIGIT_NETWORK, bare.stages[:-1]
    else:
        from afield.networks.timm_backbone import TimmBackbone  # loaded already: this is one

        assert isinstance(bare, TimmBackbone)
        name, found = bare.name, [bare.model.get_submodule(place) for place in _places(bare, image_size)]
    if len(found) < count:
        raise AfieldError(f"backbone '{name}' has {len(found)} early stages that give maps of channels, not {count}")
    return found[:count]


def _places(bare: Any, image_size: int) -> list[str]:
    """Names of the parts that timm says give maps of these reductions, and of which a pass without values shows it."""
    there = {name for name, _ in bare.model.named_modules()}
    noted = {info["reduction"]: info for info in getattr(bare.model, "feature_info", []) if info["module"] in there}
    stages = [noted[reduction] for reduction in REDUCTIONS if reduction in noted]
    outputs: dict[str, Any] = {}

    def keeper(place: str) -> Any:
        return lambda part, given, output: outputs.update({place: output})

    copy = on_meta(bare)
    for stage in stages:
        copy.get_submodule(f"model.{stage['module']}").register_forward_hook(keeper(stage["module"]))
    with torch.no_grad():
        copy.eval()(torch.zeros(1, 3, image_size, image_size, device="meta"))
    channels_last = getattr(bare.model, "output_fmt", "NCHW") == "NHWC"
    return [s["module"] for s in stages if _is_map(outputs.get(s["module"]), s["num_chs"]) and not channels_last]


def _is_map(output: Any, channels: int) -> bool:
    """Whether what a part gives is (B, channels, H, W)."""
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[1] == channels
