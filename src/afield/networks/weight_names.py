"""What the tensors of a network are called elsewhere: by wrappers, by torchvision, in files that share an order."""

import re

from torch import Tensor

Tensors = dict[str, Tensor]

PREFIXES = ("backbone", "module", "model", "network", "net", "_orig_mod")
"""What wrappers put before every name."""
HEADS = ("fc", "_fc", "classifier", "head", "heads", "head_dist", "last_linear", "AuxLogits", "aux")
"""What the classifiers of networks are called."""
MOST_BLOCKS = 32
"""The most blocks in a stage of a RegNet; the largest has 17."""
PARTS = ("weight", "bias", "running_mean", "running_var")

# torchvision's name of a tensor to timm's. Order alone would not do: their layers are not listed in one order.
VISION_TRANSFORMER = (
    (r"class_token$", "cls_token"),
    (r"conv_proj\.", "patch_embed.proj."),
    (r"encoder\.pos_embedding$", "pos_embed"),
    (r"encoder\.ln\.", "norm."),
    (r"heads\.head\.", "head."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"(blocks\.\d+)\.ln_(\d)\.", r"\1.norm\2."),
    (r"(blocks\.\d+)\.self_attention\.in_proj_", r"\1.attn.qkv."),
    (r"(blocks\.\d+)\.self_attention\.out_proj\.", r"\1.attn.proj."),
    (r"(blocks\.\d+)\.mlp\.(?:0|linear_1)\.", r"\1.mlp.fc1."),
    (r"(blocks\.\d+)\.mlp\.(?:3|linear_2)\.", r"\1.mlp.fc2."),
)
SWIN_TRANSFORMER = (
    (r"features\.0\.0\.", "patch_embed.proj."),
    (r"features\.0\.2\.", "patch_embed.norm."),
    (r"head\.", "head.fc."),
    *((rf"features\.{2 * stage + 1}\.(\d+)\.", rf"layers.{stage}.blocks.\1.") for stage in range(4)),
    *((rf"features\.{2 * stage}\.", rf"layers.{stage}.downsample.") for stage in range(1, 4)),
    (r"(layers\.\d+\.blocks\.\d+)\.mlp\.0\.", r"\1.mlp.fc1."),
    (r"(layers\.\d+\.blocks\.\d+)\.mlp\.3\.", r"\1.mlp.fc2."),
)
REGNET = (
    (r"stem\.0\.", "stem.conv."),
    (r"stem\.1\.", "stem.bn."),
    *((rf"trunk_output\.block(\d)\.block\d-{number}\.", rf"s\1.b{number + 1}.") for number in range(MOST_BLOCKS)),
    (r"(s\d\.b\d+)\.proj\.0\.", r"\1.downsample.conv."),
    (r"(s\d\.b\d+)\.proj\.1\.", r"\1.downsample.bn."),
    (r"(s\d\.b\d+)\.f\.se\.", r"\1.se."),
    *((rf"(s\d\.b\d+)\.f\.{letter}\.0\.", rf"\1.conv{number}.conv.") for number, letter in enumerate("abc", 1)),
    *((rf"(s\d\.b\d+)\.f\.{letter}\.1\.", rf"\1.conv{number}.bn.") for number, letter in enumerate("abc", 1)),
)


def is_head(name: str) -> bool:
    """Whether a tensor belongs to a classifier, which a backbone goes without."""
    return name.split(".")[0] in HEADS


def natural(name: str) -> list[tuple[int, int, str]]:
    """A name as it is sorted: parts that are numbers by their size.

    >>> sorted(["10.weight", "9.weight", "9.bias"], key=natural)
    ['9.bias', '9.weight', '10.weight']
    """
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split(".")]


def without_prefix(tensors: Tensors) -> Tensors:
    """The tensors without what a wrapper put before their names; of a backbone with other parts, the backbone's."""
    for prefix in PREFIXES:
        inside = {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
        outside = [name for name in tensors if not name.startswith(f"{prefix}.")]
        if inside and (prefix == "backbone" or all(map(is_head, outside))):
            return without_prefix(inside)
    return tensors


def named_as_timm(tensors: Tensors) -> Tensors:
    """The tensors of torchvision's transformers and RegNets under timm's names; others as they are."""
    starts = {".".join(name.split(".")[:4]) for name in tensors}
    table: tuple[tuple[str, str], ...] = ()
    if "encoder.pos_embedding" in starts:
        table = VISION_TRANSFORMER
    elif "features.1.0.attn" in starts:
        table = SWIN_TRANSFORMER
    elif "trunk_output.block1.block1-0.proj" in starts:
        table = REGNET
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, ours in table:
            name = re.sub(f"^{pattern}", ours, name)
        renamed[name] = tensor
    return renamed


def named_by_order(tensors: Tensors, network: Tensors) -> Tensors:
    """The tensors under the names of a network that has the same layers in the same order; else none.

    Layers with weights, layers that normalise and single tensors are three lists, as not all files put them in one
    order. All of a list must fit, in shape and in the names of a layer's tensors.
    """
    theirs, ours = _layers({name: t for name, t in tensors.items() if not is_head(name)}), _layers(network)
    renamed: Tensors = {}
    for given, wanted in zip(theirs, ours, strict=True):
        if [_form(layer, tensors) for layer in given] != [_form(layer, network) for layer in wanted]:
            return {}
        for layer, names in zip(given, wanted, strict=True):
            renamed |= {names[part]: tensors[name].reshape(network[names[part]].shape) for part, name in layer.items()}
    return renamed


def _layers(tensors: Tensors) -> tuple[list[dict[str, str]], ...]:
    """The names of each layer's tensors by their last part: of layers with weights, normalising ones, and the rest."""
    found: dict[str, dict[str, str]] = {}
    for name in tensors:
        layer, _, part = name.rpartition(".")
        if part in PARTS:
            found.setdefault(layer, {})[part] = name
        else:
            found[name] = {"": name}
    kinds: tuple[list[dict[str, str]], ...] = [], [], []
    for names in found.values():
        weight = tensors[names["weight"]] if "weight" in names else None
        kinds[2 if weight is None else 1 if weight.ndim == 1 else 0].append(names)
    return kinds


def _form(layer: dict[str, str], tensors: Tensors) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes of a layer's tensors, but for sides of 1: a 1 x 1 convolution may be a linear layer elsewhere."""
    return sorted((part, tuple(side for side in tensors[name].shape if side > 1)) for part, name in layer.items())
