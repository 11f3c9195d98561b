"""Building a method by name."""

from typing import Any

from afield.config.catalogue import check_preset, check_sources, find_entry
from afield.config.layers import Config
from afield.config.network import DIGIT_NETWORK, NetworkOptions
from afield.config.options import MethodOptions, validated
from afield.errors import AfieldError
from afield.methods.method import Method, Shape
from afield.methods.registry import AnyMethod, find_method, name_of
from afield.networks import arrange_batch_norm, bare_backbones


def create_method(
    name: AnyMethod,
    *,
    backbone: str = DIGIT_NETWORK,
    num_classes: int,
    num_sources: int,
    image_size: int | None = None,
    network: dict[str, Any] | None = None,
    **options: Any,
) -> Method:
    """Build a method, with random (or timm's ImageNet) weights.

    It is given by its name, by its class, or by where it is: `./mine.py` or `package.module:Name`.
    `network` takes the other keys of a config's [network] table, `options` those of its [method] table. Images are
    32 x 32 for the digit network and 224 x 224 for timm's unless `image_size` says otherwise.

    >>> method = create_method("far", num_classes=10, num_sources=4)
    """
    entry = find_entry(name_of(name))
    check_sources(entry, num_sources)
    if num_classes < 2 or (image_size is not None and image_size < 1):
        raise AfieldError(f"a method needs two classes or more, and images with pixels: {num_classes}, {image_size}")
    check_preset(entry, options)
    chosen = {"backbone": backbone, **entry.fixed.get("network", {}), **(network or {})}
    network_options = validated(NetworkOptions, "network", chosen)
    usual_size = 32 if network_options.backbone == DIGIT_NETWORK else 224
    shape = Shape(network_options, usual_size if image_size is None else image_size, num_classes, num_sources)
    chosen_options = validated(entry.card.options, "method", {**entry.fixed.get("method", {}), **options})
    return _build(entry.card.name, shape, chosen_options)


def method_of(
    config: Config, image_size: int, num_classes: int, num_sources: int, *, fill_later: bool = False
) -> Method:
    """The method a resolved config asks for, as it starts training.

    With `fill_later` a checkpoint's tensors will fill it, so that no pretrained weights are looked for.
    """
    network = config.network.model_copy(update={"pretrained": False, "weights": ""} if fill_later else {})
    shape = Shape(network, image_size, num_classes, num_sources)
    return _build(find_entry(config.method_name).card.name, shape, config.method)


def _build(name: str, shape: Shape, options: MethodOptions) -> Method:
    """The method, all its batch norm taking statistics as the network's options say."""
    method = find_method(name)(shape, options)
    arrange_batch_norm(method, method.layout, *bare_backbones(method))
    return method
