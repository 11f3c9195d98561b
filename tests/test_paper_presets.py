"""Recipes of papers, as presets: each is a method with its authors' settings, and trains."""

import pytest
import torch
from torch import nn

import afield
from afield.app.method_page import as_list
from afield.config.catalogue import describe_methods, find_entry
from afield.config.layers import resolve
from afield.config.network import NetworkOptions
from afield.methods.create import create_method

COMPARED = [
    "adda", "ccsa", "cdan", "coral", "crossgrad", "dael", "dan", "dann", "dctn", "epi-fcr", "jan", "jigen", "m3sda",
    "m3sda-beta", "mcc", "mcd", "meda", "mixstyle", "mmd-aae", "mme",
]  # fmt: skip
RECIPES = [f"{name}-paper" for name in COMPARED]


def small(name):
    """Settings under which a recipe trains quickly: its layers, narrow."""
    network = find_entry(name).fixed.get("network", {})
    layers = {f"network.{key}": [6] * len(network[key]) for key in ("neck", "hidden") if key in network}
    return {
        **layers, "network.width": 8, "training.batch_size": 4,
        **({"method.samples": 20} if name == "meda-paper" else {}),
    }  # fmt: skip


def test_every_compared_method_has_one_and_far_too():
    assert {name for name in afield.list_methods() if name.endswith("-paper")} == {*RECIPES, "far-paper"}


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_its_method_on_every_kind_of_images_and_changes_no_default(name):
    entry = find_entry(name)
    assert entry.card.name == name.removesuffix("-paper")
    for preset in ("digits", "digit5", "pairs", "rotated-mnist", "small", "photos"):
        config = resolve({"data": {"preset": preset}, "method": {"name": name}})
        values = config.as_dict()
        for section, fixed in entry.fixed.items():
            assert {key: values[section][key] for key in fixed} == fixed, preset
    usual = entry.card.options().model_dump()
    changed = {key for key, value in entry.fixed.get("method", {}).items() if usual[key] != value}
    # All others come with their authors' values as defaults.
    assert changed <= {"jigen-paper": {"ordered_share"}, "adda-paper": {"adversary_rate"}}.get(name, set())


@pytest.mark.parametrize("name", RECIPES)
def test_it_trains(train_toy, tmp_path, name):
    task = find_entry(name).as_dict()["tasks"][-1]
    run = train_toy(tmp_path / "run", name, 2, task=task, settings=small(name))
    assert run.step == 2
    assert run.evaluation["losses"]


def test_what_mcds_authors_have():
    config = resolve({"data": {"preset": "pairs"}, "method": {"name": "mcd-paper"}})
    training, network = config.training, config.network
    assert (training.optimiser, training.lr, training.weight_decay, training.batch_size) == ("adam", 2e-4, 5e-4, 128)
    assert (training.schedule, config.method.generator_updates) == ("constant", 4)
    assert (network.neck, network.neck_dropout, network.hidden, network.dropout) == ((3072,), 0.5, (2048,), 0.0)
    assert (network.width, network.pool, network.batch_norm) == (64, "flatten", "each")


def test_what_danns_authors_have():
    config = resolve({"data": {"preset": "pairs"}, "method": {"name": "dann-paper"}})
    training, network = config.training, config.network
    assert (training.optimiser, training.lr, training.momentum) == ("sgd", 0.01, 0.9)
    assert (training.schedule, training.ramp, 2 * training.batch_size) == ("inverse", "dann", 128)
    assert (network.neck, network.hidden) == ((), (3072, 2048)), "the domain classifier reads the convolutions"
    method = create_method("dann-paper", num_classes=10, num_sources=1, network={"width": 8, "hidden": [6, 5]})
    assert method.discriminator[0].in_features == 16 * 8 * 8
    assert method.discriminator[0].out_features == 1024


def test_what_addas_authors_have():
    config = resolve({"data": {"preset": "pairs"}, "method": {"name": "adda-paper"}})
    assert (config.training.optimiser, config.training.batch_size, config.network.neck) == ("adam", 128, (500,))
    rate = getattr(config.method, "adversary_rate", 1.0)  # as a multiple of lr, if the encoder has a rate of its own
    assert config.training.lr * rate == pytest.approx(2e-4)


@pytest.mark.parametrize("name", ["cdan-paper", "mcc-paper", "mme-paper"])
def test_batch_norm_sees_the_source_and_the_target_one_after_the_other_where_authors_pass_them_so(name):
    config = resolve({"data": {"preset": "photos"}, "method": {"name": name}})
    network = {**config.network.model_dump(), "backbone": "resnet18", "pretrained": False}
    torch.manual_seed(0)
    method = create_method(name, num_classes=3, num_sources=1, image_size=32, network=network)
    method.layout.note(1, 4)
    images, other = torch.randn(2, 8, 3, 32, 32)
    method.train()
    f = method.backbone(images)
    swapped = method.backbone(torch.cat((images[:4], other[4:])))
    torch.testing.assert_close(f[:4], swapped[:4])  # the target's images do not reach the source's features
    assert not torch.allclose(f[4:], swapped[4:])


def test_the_necks_last_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    network = {"width": 8, "neck": [400], "neck_dropout": 0.5}
    plain, dropped = (
        create_method("baseline", num_classes=3, num_sources=1, network=chosen)
        for chosen in ({**network, "neck_dropout": 0.0}, network)
    )
    dropped.load_state_dict(plain.state_dict())
    images = torch.randn(8, 3, 32, 32)
    whole, half = plain.backbone(images), dropped.backbone(images)
    kept = half != 0
    assert torch.allclose(half[kept], 2 * whole[kept])
    assert 0.4 < kept.sum() / (whole != 0).sum() < 0.6
    plain.eval(), dropped.eval()
    assert torch.equal(plain.backbone(images), dropped.backbone(images))
    assert [layer.p for layer in plain.backbone.neck if isinstance(layer, nn.Dropout)] == [0.0]
    with pytest.raises(ValueError, match="set neck"):
        NetworkOptions(neck_dropout=0.5)


def test_the_list_of_methods_has_presets_and_recipes_apart_one_line_each():
    methods, presets, recipes = as_list(describe_methods()).split("\n\n")
    assert [line.split()[0] for line in recipes.splitlines()[1:]] == sorted([*RECIPES, "far-paper"])
    assert "far-without-dre " in presets
    assert "-paper" not in methods + presets
    described = methods.splitlines()
    assert len(described) == 2 * sum(not entry["sets"] for entry in describe_methods())
    assert max(map(len, (*described, *presets.splitlines(), *recipes.splitlines()))) <= 120
