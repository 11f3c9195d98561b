"""Backbones by name: every kind of timm model becomes a map, or says in one line why not."""

import logging
import socket

import pytest
import timm
import torch
from huggingface_hub import constants

import afield
from afield.config.network import NetworkOptions
from afield.data.batches import Batch
from afield.errors import AfieldError
from afield.methods.create import create_method
from afield.networks import build_backbone, map_shape, normalisation
from support.networks import FAMILIES


def batch(size, per_domain=2, num_classes=5):
    torch.manual_seed(1)
    images = torch.randn(3 * per_domain, 3, size, size)
    return Batch(images, torch.randint(num_classes, (2 * per_domain,)), 2)


def build(backbone, size, method="far", **network):
    torch.manual_seed(0)
    return create_method(method, backbone=backbone, num_classes=5, num_sources=2, image_size=size, network=network)


def refusal(backbone, size, **network):
    with pytest.raises(AfieldError) as caught:
        build(backbone, size, **network)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_digit_network_maps_32_pixels_to_128_channels_of_8_by_8():
    backbone = build_backbone(NetworkOptions(), 32)
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 128, 8, 8)
    assert create_method("far", num_classes=10, num_sources=4).map_shape == (128, 8, 8)
    convolutions = (3 * 64 + 64 * 64 + 64 * 128) * 25
    batch_norms = 2 * (64 + 64 + 128)
    assert sum(p.numel() for p in backbone.parameters()) == convolutions + batch_norms


def test_the_width_of_the_digit_network_is_an_option():
    backbone = build_backbone(NetworkOptions(width=8), 32)
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 16, 8, 8)


@pytest.mark.parametrize("name", ["digit", "convit_tiny"])  # ConViT notes in a pass what it needs in the next
def test_finding_the_map_shape_leaves_the_backbone_as_it_was(name):
    backbone = build_backbone(NetworkOptions(backbone=name, width=8), 32)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    shape = map_shape(backbone, 32, name)
    assert backbone.training
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, *shape)


@pytest.mark.parametrize(("backbone", "channels"), [("resnet18", 512), ("mobilenetv2_100", 1280)])
def test_far_learns_and_predicts_with_convolutional_timm_backbones(backbone, channels):
    method = build(backbone, 64)
    assert method.map_shape == (channels, 2, 2)
    losses = method.losses(batch(64))
    sum(losses.values()).backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
    method.eval()
    with torch.no_grad():
        assert method(batch(64).images).shape == (6, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_a_map_with_gradients_and_trains_far_to_a_model_that_loads(train_toy, tmp_path, family):
    name, size, shape = FAMILIES[family]
    method = build(name, size)
    maps = method.backbone(batch(size).images)
    assert maps.shape == (6, *shape)
    sum(method.losses_of(maps, batch(size)).values()).backward()
    assert next(method.backbone.parameters()).grad.abs().sum() > 0
    settings = {"network.backbone": name, "data.image_size": size, "training.lr": 0.01}
    model = afield.load(train_toy(tmp_path / "run", "far", 2, settings=settings).folder)
    assert model.method.map_shape == shape
    assert model(torch.rand(2, 3, size, size)).isfinite().all()


def test_a_token_stands_where_its_patch_does():
    backbone = build_backbone(NetworkOptions(backbone="test_vit"), 64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        maps, tokens = backbone(images), backbone.model.forward_features(images)
    assert maps.shape == (2, 64, 4, 4)
    assert tokens.shape == (2, 1 + 16, 64)
    for row, column in [(0, 0), (0, 3), (2, 1)]:
        assert torch.equal(maps[:, :, row, column], tokens[:, 1 + 4 * row + column])


def test_a_map_with_channels_last_is_turned():
    backbone = build_backbone(NetworkOptions(backbone="test_mambaout"), 96).eval()
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(backbone(images), backbone.model.forward_features(images).permute(0, 3, 1, 2))


class Tokens(torch.nn.Module):
    """As many tokens as there are, for a model that may say what comes before those of patches."""

    def __init__(self, count, **noted):
        super().__init__()
        self.count = count
        vars(self).update(noted)

    def forward_features(self, images):
        return torch.arange(self.count, dtype=torch.float32).expand(len(images), 1, -1).transpose(1, 2)


@pytest.mark.parametrize(
    ("count", "noted", "grid", "first"),
    [(9, {}, (3, 3), 0), (10, {}, (3, 3), 1), (11, {"num_prefix_tokens": 2}, (3, 3), 2), (1, {}, (1, 1), 0)],
)
def test_tokens_that_stand_for_no_patch_are_left_out(count, noted, grid, first):
    backbone = build_backbone(NetworkOptions(backbone="test_resnet"), 32)
    backbone.model = Tokens(count, **noted)
    maps = backbone(torch.zeros(2, 3, 32, 32))
    assert maps.shape == (2, 1, *grid)
    assert maps[0, 0, 0, 0] == first


@pytest.mark.parametrize(("count", "noted"), [(7, {}), (10, {"num_prefix_tokens": 0}), (1, {"num_prefix_tokens": 1})])
def test_tokens_that_are_no_square_are_refused(count, noted):
    backbone = build_backbone(NetworkOptions(backbone="test_resnet"), 32)
    backbone.model = Tokens(count, **noted)
    with pytest.raises(AfieldError, match="'test_resnet' gives neither a map nor a square of tokens"):
        backbone(torch.zeros(2, 3, 32, 32))


def test_what_is_neither_a_map_nor_tokens_is_refused():
    assert "'crossvit_9_240' gives neither a map nor a square of tokens, but list" in refusal("crossvit_9_240", 240)


def test_a_map_of_other_channels_than_the_model_says_is_refused():
    class ChannelsLast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.num_features = 12

        def forward(self, images):
            return torch.zeros(len(images), 7, 7, 12)

    with pytest.raises(AfieldError, match=r"'some'.*map"):
        map_shape(ChannelsLast(), 224, "some")


@pytest.mark.parametrize(
    ("backbone", "size", "reason"),
    [
        ("vit_tiny_patch16_224", 100, "its patches are 16 x 16; 96 or 112 would do; timm has it for 224"),
        ("vit_tiny_patch16_224", 8, "its patches are 16 x 16; 16 would do"),
        ("swin_tiny_patch4_window7_224", 50, "its patches are 4 x 4; 48 or 52 would do"),
        ("swinv2_tiny_window8_256", 96, "timm has it for 256"),  # found by the forward pass
        ("xcit_nano_12_p8_224", 100, "`patch_size` should divide image dimensions evenly"),  # while it is created
        ("inception_v3", 32, "timm has it for 299"),
    ],
)
def test_an_image_size_that_a_backbone_does_not_take_is_an_error_that_says_why(backbone, size, reason):
    text = refusal(backbone, size)
    assert text.startswith(f"backbone '{backbone}' does not take images of {size} x {size}: ")
    assert reason in text


def test_images_are_normalised_as_the_backbone_was_trained():
    assert normalisation(NetworkOptions()) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert normalisation(NetworkOptions(backbone="resnet18")) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert normalisation(NetworkOptions(backbone="inception_v3"))[0] == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("given", "nearest"), [("resnet_18", "resnet18"), ("digits", "digit")])
def test_an_unknown_backbone_names_the_nearest(given, nearest):
    assert f"unknown backbone '{given}'; did you mean '{nearest}'?" in refusal(given, 32)


def test_weights_that_cannot_be_had_are_an_error_of_one_line(monkeypatch):
    create = timm.create_model

    def unreachable(*arguments, pretrained, **options):
        if pretrained:
            raise OSError("no route to host. And a long\ntrace")
        return create(*arguments, **options)

    monkeypatch.setattr(timm, "create_model", unreachable)
    text = refusal("test_resnet", 32, pretrained=True)
    assert text.startswith(
        "no ImageNet weights for 'test_resnet' could be had (no route to host); --weights FILE (network"
    )
    assert "does not take images of 100 x 100" in refusal("xcit_nano_12_p8_224", 100, pretrained=True)


def test_without_a_network_pretrained_says_so_at_once_and_once(monkeypatch, tmp_path, capfd, caplog):
    def unknown(*arguments):
        raise socket.gaierror("Name or service not known")

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with caplog.at_level(logging.WARNING):
        text = refusal("test_resnet", 32, pretrained=True)
    assert "network.weights" in text
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert constants.HF_HUB_OFFLINE is False
