"""Processes that share a batch: for every method the losses, gradients and weights of one process, to rounding."""

from functools import partial

import pytest

import afield
from afield.config.catalogue import find_entry
from afield.config.layers import resolve
from afield.training.devices import make_fabric
from support.networks import FAMILIES
from support.sharing import as_layer, differences

METHODS = [name for name in afield.list_methods() if not name.endswith("-paper") or name == "far-paper"]
# Presets of other papers are settings of the same codes, mostly of large layers, which are narrow here.
PAPERS = [name for name in afield.list_methods() if name.endswith("-paper") and name != "far-paper"]
WITH_NECK = {"neck": [12], "hidden": [8], "dropout": 0.5, "neck_dropout": 0.3}


def on(family, method):
    name, size, _ = FAMILIES[family]
    network, data = {"backbone": name}, {"image_size": size, "augmentation": "photos", "placement": "streamed"}
    return as_layer(method, network=network, data=data)


def with_narrow_layers(preset):
    """A preset with its layers, of a few units each.

    Those with Adam in float64, as where a backbone is named: batch norm of 4 vectors makes much of the last bit, and
    Adam more. Not CrossGrad, which takes gradients by pixels: in flat parts of an image, where a maximum has several
    places, the last bit of any precision says which of them gets it; Adam is as slow here as in the preset. Nor DAEL,
    whose strong views are in float32: it has more images, of which batch norm makes less.
    """
    fixed = find_entry(preset).fixed
    network = fixed.get("network", {})
    narrow = {name: [12, 8][: len(network[name])] for name in ("neck", "hidden") if name in network}
    training = {"crossgrad-paper": {"lr": fixed["training"].get("lr")}, "dael-paper": {"batch_size": 16}}
    precise = fixed["training"].get("optimiser") == "adam" and preset not in training
    return as_layer(
        preset, network=narrow | ({"backbone": "digit"} if precise else {}), training=training.get(preset, {})
    )


CASES = {method: as_layer(method) for method in METHODS} | {
    **{f"{preset}, with narrow layers": with_narrow_layers(preset) for preset in PAPERS},
    "dropout, in the backbone and after it": as_layer("far", network=WITH_NECK),
    "without a target": as_layer("dann", "dg"),
    "strong views without a target": as_layer("far+", "dg"),
    "statistics of each domain": as_layer("mixstyle", network=WITH_NECK | {"batch_norm": "each"}),
    "statistics of sources and target": as_layer("adda", network={"batch_norm": "apart"}),
    "more images of the target": as_layer("mcd", network={"batch_norm": "apart"}, training={"target_batches": 3}),
    "more images of the target, streamed": as_layer(
        "dann", data={"placement": "streamed"}, training={"target_batches": 0}
    ),
    "several batches per step": as_layer("coral", training={"accumulate": 2, "clip_norm": 0.1}),
    "streamed photographs on a ResNet": on("resnet", "mixstyle"),
    "norms with activations of their own": on("efficientnet", "far"),
}
APART = "statistics of a process's own images"


@pytest.fixture(scope="module")
def found():
    layers = [*CASES.values(), as_layer("baseline", training={"sync_batch_norm": False})]
    options = resolve(layers[0]).training.model_copy(update={"devices": 2})
    return dict(zip([*CASES, APART], make_fabric(options).launch(partial(differences, layers)), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_losses_gradients_and_weights_of_one(found, case):
    off, where = found[case]
    assert off < 1e-5, where


def test_without_synchronised_batch_norm_processes_are_equal_to_each_other_but_not_to_one(found):
    assert 1e-5 < found[APART][0] < 1
