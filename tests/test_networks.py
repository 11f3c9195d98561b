import pytest
import torch

from afield.data.batches import Batch
from afield.errors import AfieldError
from afield.methods.create import create_method
from afield.networks import Pool
from afield.networks.bare import DigitNetwork
from afield.networks.batch_norm import norms_of

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


def test_far_adds_the_parameters_to_resnet18_that_the_paper_states():
    far, baseline = (
        create_method(name, backbone="resnet18", num_classes=126, num_sources=3, image_size=64)
        for name in ("far-paper", "baseline")  # the paper's alignment has no parameters
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


NECKED = {**SMALL, "pool": "flatten", "neck": [9], "hidden": [7]}


@pytest.mark.parametrize(("kind", "alike"), [("none", True), ("together", False)])
def test_without_batch_norm_an_image_is_scored_alike_whatever_stands_beside_it(kind, alike):
    torch.manual_seed(0)
    network, images = {**NECKED, "batch_norm": kind}, batch(32).images
    method = create_method("far", num_classes=5, num_sources=2, network=network).train()
    assert torch.allclose(method(images[:3])[:2], method(images)[:2], atol=1e-6) == alike


@pytest.mark.parametrize("name", ["far", "mixstyle"])  # the second acts between the convolutions
def test_methods_learn_without_batch_norm(name):
    torch.manual_seed(0)
    method = create_method(name, num_classes=5, num_sources=2, network={**SMALL, "hidden": [7], "batch_norm": "none"})
    assert not norms_of(method)
    assert_learns_and_predicts(method, 32)


def test_what_pools_without_batch_norm_is_what_batch_norm_of_nothing_gives():
    torch.manual_seed(0)
    plain, normed = DigitNetwork(8, batch_norm=False), DigitNetwork(8).eval()
    for norm in norms_of(normed):
        norm.eps = 0.0  # of mean 0 and variance 1: it changes nothing
    weights = {name: weight for name, weight in plain.state_dict().items() if name.endswith("weight")}
    normed.load_state_dict(weights, strict=False)
    for layer in plain:
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.zeros_(layer.bias)
    images = batch(32).images
    assert torch.allclose(plain(images), normed(images), atol=1e-6)
    assert plain(images).shape == (6, 16, 8, 8)


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
        ("far", {"backbone": "resnet18", "network": {"batch_norm": "none"}}, "'none' is for the digit network"),
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
