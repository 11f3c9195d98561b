"""Backbones that start from a file: by timm's names and by torchvision's, and from no file that could run code."""

import argparse
import hashlib
import os
import pickle

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

import afield
from afield.config.network import NetworkOptions
from afield.errors import AfieldError
from afield.networks import build_backbone
from afield.networks.weights import load_weights
from support.resuming import Killed, assert_equal_runs, every, kill_before_step, kill_while_saving

WRITERS = {"safetensors": save_file, "torch": torch.save}


def build(name, path, size=64, **options):
    return build_backbone(NetworkOptions(backbone=name, weights=str(path), **options), size)


def refusal(path, name="test_resnet", size=64, **options):
    with pytest.raises(AfieldError) as caught:
        build(name, path, size, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def worn(network, size):
    """With scales and statistics that are not those a network begins with, and in evaluation mode."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        for _ in range(2):
            network.train()(torch.randn(4, 3, size, size))
    return network.eval()


def small_convnext():
    """torchvision's ConvNeXt in the widths of timm's smallest, which has 1 x 1 convolutions for linear layers."""
    return ConvNeXt([CNBlockConfig(*stage) for stage in [(40, 80, 2), (80, 160, 2), (160, 320, 6), (320, None, 2)]])


def resnet_features(network, images):
    x = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    return network.layer4(network.layer3(network.layer2(network.layer1(x))))


TORCHVISION = {
    "resnet18": (models.resnet18, resnet_features),
    "mobilenetv2_100": (models.mobilenet_v2, lambda network, images: network.features(images)),
    "efficientnet_b0": (models.efficientnet_b0, lambda network, images: network.features(images)),
    "convnext_atto": (small_convnext, lambda network, images: network.features(images)),
    "regnety_004": (models.regnet_y_400mf, lambda network, images: network.trunk_output(network.stem(images))),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvisions_weights_give_torchvisions_features(tmp_path, name):
    make, features = TORCHVISION[name]
    theirs, images = worn(make(), 64), torch.randn(2, 3, 64, 64)
    for kind, write in WRITERS.items():
        write(theirs.state_dict(), tmp_path / kind)
        ours = build(name, tmp_path / kind).eval()
        with torch.no_grad():
            torch.testing.assert_close(ours(images), features(theirs, images))


def small_vision_transformer(size, **options):
    name, small = "vit_tiny_patch16_224", {"depth": 2, "embed_dim": 48, "num_heads": 3}
    return timm.create_model(name, num_classes=0, img_size=size, **small, **options)


def small_swin_transformer(size, **options):
    name, small = "swin_tiny_patch4_window7_224", {"depths": (2, 2), "embed_dim": 24, "num_heads": (2, 4)}
    return timm.create_model(name, num_classes=0, img_size=size, **small, **options)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_torchvisions_vision_transformer_gives_torchvisions_tokens(tmp_path, write):
    theirs = worn(models.VisionTransformer(64, 16, 2, 3, 48, 192, num_classes=5), 64)
    write(theirs.state_dict(), tmp_path / "file")
    ours, images = small_vision_transformer(64).eval(), torch.randn(2, 3, 64, 64)
    load_weights(ours, str(tmp_path / "file"), "vit", 64)
    with torch.no_grad():
        tokens = torch.cat((theirs.class_token.expand(2, -1, -1), theirs._process_input(images)), dim=1)
        torch.testing.assert_close(ours.forward_features(images), theirs.encoder(tokens))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_torchvisions_swin_transformer_gives_torchvisions_map(tmp_path, write):
    theirs = worn(models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [7, 7], num_classes=5), 56)
    write(theirs.state_dict(), tmp_path / "file")
    ours, images = small_swin_transformer(56).eval(), torch.randn(2, 3, 56, 56)
    load_weights(ours, str(tmp_path / "file"), "swin", 56)
    with torch.no_grad():
        torch.testing.assert_close(ours.forward_features(images), theirs.norm(theirs.features(images)))


@pytest.mark.parametrize(
    ("make", "made_for", "size"), [(small_vision_transformer, 64, 96), (small_swin_transformer, 56, 32)]
)
@pytest.mark.filterwarnings("ignore")  # timm's, about code of its own
def test_positions_of_another_image_size_are_resampled_as_timm_does_it(tmp_path, make, made_for, size):
    tensors = worn(make(made_for), made_for).state_dict()
    torch.save(tensors, tmp_path / "file")
    ours = make(size)
    assert any(tensor.shape != tensors[name].shape for name, tensor in ours.state_dict().items())
    load_weights(ours, str(tmp_path / "file"), "some", size)
    # timm's Swin knows a file of its own by the classifier.
    overlay = {"state_dict": {"head.fc.weight": torch.zeros(1), **tensors}, "num_classes": 10}
    theirs = make(size, pretrained=True, pretrained_cfg_overlay=overlay).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.state_dict().items())


def small_tensors(name="test_resnet", **options):
    torch.manual_seed(5)
    return timm.create_model(name, num_classes=7, **options).state_dict()


def assert_filled(backbone, tensors):
    own = backbone.model.state_dict()
    assert all(torch.equal(own[name], tensors[name]) for name in own)


@pytest.mark.parametrize("nest", [None, "state_dict", "model", "model_state_dict", "model_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "model.", "module.backbone."])
def test_tensors_are_found_where_training_scripts_keep_them(tmp_path, nest, prefix):
    tensors = small_tensors()
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    torch.save({"epoch": 3, "loss": 0.5, nest: named} if nest else named, tmp_path / "file")
    assert_filled(build("test_resnet", tmp_path / "file"), tensors)


def test_a_backbone_beside_other_parts_is_taken_alone(tmp_path):
    tensors = small_tensors()
    parts = {f"backbone.{name}": tensor for name, tensor in tensors.items()} | {"neck.weight": torch.zeros(3)}
    torch.save(parts, tmp_path / "file")
    assert_filled(build("test_resnet", tmp_path / "file"), tensors)


def test_half_precision_and_a_classifier_of_any_size_do_not_matter(tmp_path):
    tensors = {name: t.half() if t.is_floating_point() else t for name, t in small_tensors("test_convnext").items()}
    save_file(tensors, tmp_path / "file")
    backbone = build("test_convnext", tmp_path / "file")
    assert all(p.dtype == torch.float32 for p in backbone.parameters())
    assert_filled(backbone, {name: tensor.float() for name, tensor in tensors.items()})


def test_the_digit_network_takes_weights_by_its_own_names_and_those_of_an_earlier_run(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "far", 2, settings={"network.neck": [6]})
    trained = afield.load(run.folder).method.backbone.backbone
    torch.save(trained.state_dict(), tmp_path / "file")
    for path in (tmp_path / "file", run.folder / "last.ckpt"):
        backbone = build("digit", path, 16, width=8)
        for name, tensor in trained.state_dict().items():
            assert name.endswith("num_batches_tracked") or torch.equal(backbone.state_dict()[name], tensor)


class Code:
    """Runs a command where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_that_holds_more_than_tensors_is_not_opened(tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "file"
    for write in (
        lambda: torch.save({"state_dict": small_tensors(), "x": Code(marker)}, path),
        lambda: torch.save(Code(marker), path, _use_new_zipfile_serialization=False),
        lambda: path.write_bytes(pickle.dumps(Code(marker))),
        lambda: torch.save({"model": small_tensors(), "args": argparse.Namespace()}, path),
        lambda: torch.save(torch.nn.Linear(2, 2), path),
    ):
        write()
        assert refusal(path).startswith(f"{path} holds more than tensors, which could run code")
    assert not marker.exists()


def test_a_file_that_cannot_be_read_is_an_error_that_says_so(tmp_path):
    path = tmp_path / "file"
    assert refusal(path) == f"no file of weights at {path}"
    assert refusal(tmp_path) == f"no file of weights at {tmp_path}, which is a folder"
    for write in WRITERS.values():
        write(small_tensors(), path)
        whole = path.read_bytes()
        for length in (0, 8, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert refusal(path) == f"cannot read weights {path}: it is cut short, or no file of tensors"
    path.write_text("<html>not found</html>", "utf-8")
    assert "no file of tensors" in refusal(path)


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, [torch.zeros(3)], torch.zeros(3), {"model": {"epoch": 3}}])
def test_a_file_without_tensors_by_name_is_an_error(tmp_path, content):
    torch.save(content, tmp_path / "file")
    assert refusal(tmp_path / "file") == f"{tmp_path / 'file'} has no tensors with names in it"


def without(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("name", "tensors", "words"),
    [
        (
            "test_resnet",
            lambda: without(small_tensors(), "layer1.0.conv1.weight", "layer1.0.bn1.running_var"),
            "2 tensors differ: missing 2 (layer1.0.conv1.weight, layer1.0.bn1.running_var)",
        ),
        (
            "test_resnet",
            lambda: small_tensors() | {"layer9.weight": torch.zeros(3)},
            "one tensor differs: not in the network 1 (layer9.weight)",
        ),
        (
            "test_resnet",
            lambda: small_tensors() | {"layer1.0.bn1.bias": torch.zeros(3)},
            "one tensor differs: of another shape 1 (layer1.0.bn1.bias (3,) for (32,))",
        ),
        ("resnet18", lambda: small_tensors("resnet34"), "not in the network 80 (layer1.2.conv1.weight, "),
        ("resnet34", lambda: small_tensors("resnet18"), "missing 80 (layer1.2.conv1.weight, "),
        ("test_convnext", lambda: small_tensors("test_vit"), "not in the network"),
        ("efficientnet_b1", lambda: models.efficientnet_b0().state_dict(), "missing"),
    ],
)
def test_weights_of_another_network_are_an_error_that_names_the_first_tensors(tmp_path, name, tensors, words):
    torch.save(tensors(), tmp_path / "file")
    text = refusal(tmp_path / "file", name)
    assert text.startswith(f"{tmp_path / 'file'} has the weights of another network than '{name}': ")
    assert words in text


def test_a_digit_network_of_another_width_is_another_network(tmp_path):
    torch.save(build_backbone(NetworkOptions(width=16), 32).state_dict(), tmp_path / "file")
    assert "15 tensors differ: of another shape 15 (0.weight (16, 3, 5, 5) for (8, 3, 5, 5)" in refusal(
        tmp_path / "file", "digit", 32, width=8
    )


@pytest.fixture
def file(tmp_path):
    """Weights for the tests' small digit network."""
    path = tmp_path / "digit.pth"
    torch.manual_seed(3)
    backbone = build_backbone(NetworkOptions(width=8), 16)
    for _ in range(3):
        backbone(2 * torch.randn(8, 3, 16, 16) + 1)
    torch.save(backbone.state_dict(), path)
    return path


@pytest.fixture
def settings(file):
    """A run with these weights, frozen statistics and a checkpoint every two steps."""
    return {"network.weights": str(file), "network.batch_norm": "frozen", "network.hidden": [8]} | every(3, 2)


def test_a_run_resumes_and_loads_after_its_weights_are_gone(train_toy, tmp_path, file, settings):
    begun = {name: value for name, value in torch.load(file).items() if "running" in name}
    unbroken = train_toy(tmp_path / "unbroken", "far", 5, settings=settings)
    assert unbroken.records[0]["weights_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 3)
        train_toy(tmp_path / "killed", "far", 5, settings=settings)
    file.unlink()
    assert_equal_runs(train_toy(tmp_path / "killed", "far", 5, settings=settings, resume=True), unbroken)
    for path in (tmp_path / "killed", unbroken.checkpoint):
        trained = afield.load(path).method.backbone.state_dict()
        assert all(torch.equal(trained[name], value) for name, value in begun.items())


def test_a_run_killed_before_its_first_checkpoint_starts_from_its_weights_again(train_toy, tmp_path, file, settings):
    unbroken = train_toy(tmp_path / "unbroken", "far", 5, settings=settings)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_while_saving(patch, "last.ckpt", 0)
        train_toy(tmp_path / "killed", "far", 5, settings=settings)
    aside = file.rename(tmp_path / "aside.pth")
    with pytest.raises(AfieldError, match="no file of weights at"):
        train_toy(tmp_path / "killed", "far", 5, settings=settings, resume=True)
    aside.rename(file)
    assert_equal_runs(train_toy(tmp_path / "killed", "far", 5, settings=settings, resume=True), unbroken)


def test_only_a_run_from_a_file_records_its_checksum(train_toy, tmp_path):
    assert "weights_sha256" not in train_toy(tmp_path / "run", "baseline", 1).records[0]
