import pytest
import timm
import torch

from afield.config.network import NetworkOptions
from afield.data.batches import Batch
from afield.errors import AfieldError
from afield.methods.create import create_method
from afield.networks import Pool, build_backbone, map_shape, normalisation

SMALL = {"width": 8}


def batch(size, per_domain=2, num_classes=5):
    torch.manual_seed(1)
    images = torch.randn(3 * per_domain, 3, size, size)
    return Batch(images, torch.randint(num_classes, (2 * per_domain,)), 2)


def count(module):
    return sum(p.numel() for p in module.parameters())


def assert_learns_and_predicts(method, size):
    losses = method.losses(batch(size))
    sum(losses.values()).backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
    first = next(method.backbone.parameters())
    assert first.grad.abs().sum() > 0
    method.eval()
    with torch.no_grad():
        scores = method(batch(size).images)
    assert scores.shape == (6, 5)
    assert scores.isfinite().all()


def test_the_digit_network_maps_32_pixels_to_128_channels_of_8_by_8():
    backbone = build_backbone(NetworkOptions(), 32)
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 128, 8, 8)
    assert create_method("far", num_classes=10, num_sources=4).map_shape == (128, 8, 8)
    convolutions = (3 * 64 + 64 * 64 + 64 * 128) * 25
    batch_norms = 2 * (64 + 64 + 128)
    assert count(backbone) == convolutions + batch_norms


def test_the_width_of_the_digit_network_is_an_option():
    backbone = build_backbone(NetworkOptions(width=8), 32)
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 16, 8, 8)


def test_finding_the_map_shape_leaves_the_backbone_as_it_was():
    backbone = build_backbone(NetworkOptions(width=8), 32)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    assert map_shape(backbone, 32, "digit") == (16, 8, 8)
    assert backbone.training
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize(("backbone", "channels"), [("resnet18", 512), ("mobilenetv2_100", 1280)])
def test_far_learns_and_predicts_with_convolutional_timm_backbones(backbone, channels):
    torch.manual_seed(0)
    method = create_method("far", backbone=backbone, num_classes=5, num_sources=2, image_size=64)
    assert method.map_shape == (channels, 2, 2)
    assert_learns_and_predicts(method, 64)


def test_far_adds_the_parameters_to_resnet18_that_the_paper_states():
    far, baseline = (
        create_method(name, backbone="resnet18", num_classes=126, num_sources=3, image_size=64)
        for name in ("far", "baseline")
    )
    channel_branch = (512 * 64 + 64) + (64 * 512 + 512)
    spatial_branch = (2 * 64 * 25 + 64) + (64 * 25 + 1)
    expert = 512 * 126 + 126
    added = count(far) - count(baseline)
    assert added == 2 * (channel_branch + spatial_branch) + 3 * expert == 335_868
    assert 0.33e6 < added < 0.35e6


@pytest.mark.parametrize("pool", ["average", "average2x2", "flatten"])
@pytest.mark.parametrize("hidden", [[], [7], [7, 6]])
def test_heads_of_every_kind_learn_and_predict(pool, hidden):
    torch.manual_seed(0)
    network = {**SMALL, "pool": pool, "hidden": hidden, "dropout": 0.3 if hidden else 0.0}
    method = create_method("far", num_classes=5, num_sources=2, network=network)
    linears = [layer for layer in method.classifier if isinstance(layer, torch.nn.Linear)]
    inputs = 16 * {"average": 1, "average2x2": 4, "flatten": 64}[pool]
    assert [layer.in_features for layer in linears] == [inputs, *hidden]
    assert [layer.out_features for layer in linears] == [*hidden, 5]
    assert method.experts.weight.shape[1] == inputs
    assert [layer.p for layer in method.classifier if isinstance(layer, torch.nn.Dropout)] == [0.3] * len(hidden)
    assert_learns_and_predicts(method, 32)


def test_images_are_normalised_as_the_backbone_expects():
    assert normalisation(NetworkOptions()) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert normalisation(NetworkOptions(backbone="resnet18")) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(("given", "nearest"), [("resnet_18", "resnet18"), ("digits", "digit")])
def test_an_unknown_backbone_names_the_nearest(given, nearest):
    with pytest.raises(AfieldError, match=rf"unknown backbone '{given}'; did you mean '{nearest}'\?"):
        create_method("far", backbone=given, num_classes=5, num_sources=2)


@pytest.mark.parametrize("size", [224, 64])
def test_a_vision_transformer_is_refused(size):
    with pytest.raises(AfieldError, match="vit_tiny_patch16_224"):
        create_method("far", backbone="vit_tiny_patch16_224", num_classes=5, num_sources=2, image_size=size)


def test_a_map_with_channels_last_is_refused():
    class ChannelsLast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.num_features = 12

        def forward(self, images):
            return torch.zeros(len(images), 7, 7, 12)

    with pytest.raises(AfieldError, match=r"'some'.*map"):
        map_shape(ChannelsLast(), 224, "some")


def test_weights_that_cannot_be_had_are_an_error_of_one_line(monkeypatch):
    def unreachable(*arguments, **options):
        raise OSError("no route to host\nand a long trace")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(AfieldError, match=r"'resnet18' could be had \(no route to host\); network.pretrained=false"):
        create_method("far", backbone="resnet18", num_classes=5, num_sources=2, network={"pretrained": True})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fra", {}, r"unknown method 'fra'; did you mean 'far'\?"),
        ("far-without-der", {}, r"unknown method 'far-without-der'; did you mean 'far-without-dre'\?"),
        ("far", {"align_wieght": 0.3}, r"'method.align_wieght'; did you mean 'method.align_weight'\?"),
        ("far", {"network": {"widht": 8}}, r"'network.widht'; did you mean 'network.width'\?"),
        ("baseline", {"align_weight": 0.3}, "'method.align_weight'"),
        ("far", {"align_weight": "0.3"}, "'method.align_weight'"),
        ("far", {"align_weight": -0.3}, "'method.align_weight'"),
        ("far", {"routing": "both"}, "'method.routing'.*'end-to-end'.*'selective'"),
        ("far", {"network": {"hidden": [0]}}, "'network.hidden.0'"),
    ],
)
def test_what_does_not_exist_is_an_error_that_says_what_does(name, options, message):
    with pytest.raises(AfieldError, match=message) as caught:
        create_method(name, num_classes=5, num_sources=2, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["far", "far-paper", "baseline-align", "baseline-att-align"])
def test_moments_need_two_sources(name):
    with pytest.raises(AfieldError, match=f"'{name}' needs at least 2 source domains, not 1"):
        create_method(name, num_classes=5, num_sources=1, network=SMALL)


def test_the_baseline_is_content_with_one_source():
    method = create_method("baseline", num_classes=5, num_sources=1, network=SMALL)
    assert method(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_a_grid_finer_than_the_map_does_not_copy_its_cells():
    assert Pool("average2x2", (5, 1, 1)).width == 5
    assert Pool("average2x2", (5, 1, 3)).width == 10
    assert Pool("average2x2", (5, 1, 3))(torch.ones(2, 5, 1, 3)).shape == (2, 10)


def test_images_are_normalised_as_the_backbone_was_trained():
    assert normalisation(NetworkOptions()) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert normalisation(NetworkOptions(backbone="resnet18"))[0] == (0.485, 0.456, 0.406)
    assert normalisation(NetworkOptions(backbone="inception_v3"))[0] == (0.5, 0.5, 0.5)


def test_apart_the_target_takes_no_part_in_the_sources_batch_norm_and_together_it_does():
    def sources_scores(batch_norm, shift):
        torch.manual_seed(0)
        method = create_method("dann", num_classes=5, num_sources=2, network=SMALL | {"batch_norm": batch_norm})
        given = batch(32)
        given.images[given.num_labelled :] += shift
        method.layout.note(2, 2)
        return method.backbone(given.images)[: given.num_labelled]

    assert torch.equal(sources_scores("apart", 0), sources_scores("apart", 3))
    assert not torch.equal(sources_scores("together", 0), sources_scores("together", 3))


def test_apart_each_part_of_a_batch_passes_as_if_it_were_alone():
    torch.manual_seed(0)
    method = create_method("mcd", num_classes=5, num_sources=2, network=SMALL | {"batch_norm": "apart"})
    given = batch(32)
    before = {name: value.clone() for name, value in method.named_buffers()}
    method.layout.note(2, 2)
    aside = method.features_aside(given)
    assert all(torch.equal(before[name], value) for name, value in method.named_buffers())
    expected = [method.pool(method.backbone(given.images[part])) for part in (slice(4), slice(4, None))]
    torch.testing.assert_close(aside, torch.cat(expected))
    assert all(value == 2 for name, value in method.named_buffers() if name.endswith("num_batches_tracked"))
