import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from afield.config.network import NetworkOptions
from afield.methods.create import create_method
from afield.networks import (
    ChannelGate,
    Classifier,
    ConvolutionSelection,
    Experts,
    Gate,
    GatedSelection,
    Pool,
    SpatialGate,
    classify_all,
    run_aside,
)
from afield.networks.gates import FLOOR, SmallConvolution

shapes = st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 9), st.integers(1, 9))
kinds = st.sampled_from(["both", "channel", "spatial"])
seeds = st.integers(0, 2**31)
quick = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


def random_map(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def count(module):
    return sum(p.numel() for p in module.parameters())


def deviation_over(gate, dims):
    return (gate.amax(dim=dims) - gate.amin(dim=dims)).max().item()


@quick
@given(shapes, kinds, st.booleans(), seeds)
def test_a_gate_broadcasts_to_its_map_whatever_the_shape(shape, kind, projected, seed):
    torch.manual_seed(seed)
    features = random_map(*shape)
    gate = Gate(shape[1], kind).double()
    values = gate(features)
    batch, channels, height, width = shape
    positions = (1, 1) if kind == "channel" else (height, width)
    assert values.shape == (batch, 1 if kind == "spatial" else channels, *positions)
    assert GatedSelection(gate, projected)(features).shape == shape


@quick
@given(shapes, kinds, seeds)
def test_plain_gates_lie_strictly_between_zero_and_one(shape, kind, seed):
    torch.manual_seed(seed)
    values = Gate(shape[1], kind).double()(random_map(*shape))
    assert values.min() > 0
    assert values.max() < 1


def inner(one, other):
    return (one * other).sum(dim=(1, 2, 3))


@quick
@given(shapes, kinds, seeds)
def test_what_a_projected_gate_selects_projects_on_the_whole_map_and_is_no_smaller(shape, kind, seed):
    torch.manual_seed(seed)
    features = random_map(*shape)
    selected = GatedSelection(Gate(shape[1], kind).double(), projected=True)(features)
    torch.testing.assert_close(inner(selected, features), inner(features, features))
    assert (inner(selected, selected) >= inner(features, features) * (1 - 1e-9)).all()


def test_weight_on_a_dead_feature_does_not_keep_a_projected_gate_open():
    """A gate of mean 1 could be all on a channel that is 0, and leave nothing of the map."""
    features = random_map(4, 8, 5, 5)
    features[:, 0] = 0
    gate = Gate(8, "channel").double()
    with torch.no_grad():  # closed by its bias, but for the dead channel
        gate.channel.layers[2].weight.zero_()
        gate.channel.layers[2].bias.copy_(torch.tensor([9.0] + 7 * [-9.0]))
    selected = GatedSelection(gate, projected=True)(features)
    torch.testing.assert_close(selected, features, rtol=1e-6, atol=1e-6)
    assert GatedSelection(gate)(features).norm() < 1e-3 * features.norm()


def test_each_branch_varies_only_along_its_own_dimensions():
    features = random_map(2, 16, 5, 5)

    def gate(kind):
        return Gate(16, kind).double()(features).expand(features.shape)

    channel, spatial, both = gate("channel"), gate("spatial"), gate("both")
    assert deviation_over(channel, (2, 3)) == 0 < deviation_over(channel, (1,))
    assert deviation_over(spatial, (1,)) == 0 < deviation_over(spatial, (2, 3))
    assert deviation_over(both, (1,)) > 0 < deviation_over(both, (2, 3))


def test_branches_run_in_parallel_and_the_gate_is_their_product():
    features = random_map(2, 16, 5, 5)
    gate = Gate(16).double()
    a = gate.channel(features.mean(dim=(2, 3)))
    S = gate.spatial(features.mean(dim=1), features.amax(dim=1))
    torch.testing.assert_close(gate(features), a[:, :, None, None] * S[:, None])


def test_the_channel_branch_sees_only_the_average_over_positions():
    features = random_map(2, 16, 4, 4)
    gate = Gate(16, "channel").double()
    averaged = features.mean(dim=(2, 3), keepdim=True).expand_as(features)
    torch.testing.assert_close(gate(features), gate(averaged))


def test_the_spatial_branch_sees_only_mean_and_maximum_over_channels():
    features = random_map(2, 16, 6, 6)
    features[:, 0] = 20
    gate = Gate(16, "spatial").double()

    def shifted(up, down, by):
        """The same mean; another maximum if channel 0, the largest, is moved."""
        changed = features.clone()
        changed[:, up] += by
        changed[:, down] -= by
        return gate(changed)

    torch.testing.assert_close(shifted(1, 2, by=5), gate(features))
    assert not torch.allclose(shifted(0, 2, by=5), gate(features))
    assert not torch.allclose(gate(features - 5 * (torch.arange(16) == 2).view(-1, 1, 1)), gate(features))


@pytest.mark.parametrize(("channels", "reduction"), [(512, 8), (64, 4), (16, 16), (4, 8)])
def test_branches_have_as_many_parameters_as_their_formulas_say(channels, reduction):
    hidden = max(1, channels // reduction)
    channel = (channels * hidden + hidden) + (hidden * channels + channels)
    spatial = (2 * hidden * 25 + hidden) + (hidden * 25 + 1)
    assert count(ChannelGate(channels, reduction)) == count(Gate(channels, "channel", reduction)) == channel
    assert count(SpatialGate(channels, reduction)) == count(Gate(channels, "spatial", reduction)) == spatial
    assert count(Gate(channels, "both", reduction)) == channel + spatial


def test_gated_selection_multiplies_the_map_by_its_gate():
    features = random_map(2, 16, 5, 5)
    gate = Gate(16).double()
    plain, projected = GatedSelection(gate)(features), GatedSelection(gate, projected=True)(features)
    torch.testing.assert_close(plain, gate(features) * features)
    above_floor = plain + FLOOR * features
    scale = inner(features, features) / inner(above_floor, features)
    torch.testing.assert_close(projected, scale[:, None, None, None] * above_floor)


def test_on_one_position_a_projected_gate_has_no_use_for_its_spatial_branch():
    features = random_map(3, 16, 1, 1)
    both, channel = Gate(16, relative=True).double(), Gate(16, "channel").double()
    channel.channel.load_state_dict(both.channel.state_dict())
    torch.testing.assert_close(both(features), channel(features))


@pytest.mark.parametrize(
    ("name", "gate_shape", "projected"),
    [
        ("far", (16, 8, 8), True),
        ("far-paper", (16, 8, 8), False),
        ("far-channel-gate", (16, 1, 1), True),
        ("far-spatial-gate", (1, 8, 8), True),
        ("baseline-att-align", (16, 8, 8), True),
    ],
)
def test_gates_have_their_presets_branches_and_what_they_select_is_projected(name, gate_shape, projected):
    method = create_method(name, num_classes=4, num_sources=2, network={"width": 8}).double()
    F = random_map(2, 16, 8, 8)
    assert method.fa.gate(F).shape[1:] == gate_shape
    assert torch.allclose(inner(method.fa(F), F), inner(F, F)) == projected
    if name != "baseline-att-align":
        fr = method.fr(random_map(2, 16, 8, 8))
        assert fr.shape[1:] == gate_shape
        assert fr.max() < 1


def test_convolution_selection_keeps_the_shape_and_is_never_negative():
    features = random_map(2, 16, 5, 5)
    selection = ConvolutionSelection(16).double()
    selected = selection(features)
    assert selected.shape == features.shape
    assert selected.min() == 0 < selected.max()
    assert count(selection) == 16 * 16 + 16
    pixel = features[:, :, 2:3, 3:4]
    torch.testing.assert_close(selected[:, :, 2:3, 3:4], selection(pixel))


@pytest.mark.parametrize("kind", ["both", "channel", "spatial"])
@pytest.mark.parametrize("projected", [False, True])
def test_gradients_of_a_selection_match_finite_differences(kind, projected):
    selection = GatedSelection(Gate(4, kind, reduction=2), projected).double()
    assert torch.autograd.gradcheck(selection, random_map(2, 4, 3, 3).requires_grad_())


@quick
@given(shapes, kinds, seeds)
def test_gradients_are_finite_on_a_map_of_zeros(shape, kind, seed):
    torch.manual_seed(seed)
    features = torch.zeros(shape, requires_grad=True)
    selection = GatedSelection(Gate(shape[1], kind), projected=True)
    selection(features).sum().backward()
    assert all(values.grad.isfinite().all() for values in (features, *selection.parameters()))


@pytest.mark.parametrize("kind", ["average", "average2x2", "flatten"])
@quick
@given(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(2, 9), st.integers(2, 9)), seeds)
def test_pooling_is_linear_and_gives_the_width_it_says(kind, shape, seed):
    torch.manual_seed(seed)
    A, R = random_map(*shape), random_map(*shape)
    pool = Pool(kind, shape[1:])
    torch.testing.assert_close(pool(A) + pool(R), pool(A + R))
    assert pool(A).shape == (shape[0], pool.width)


def test_pooling_averages_over_everything_over_quadrants_or_not_at_all():
    features = random_map(2, 16, 8, 8)
    pool, pool2, flatten = (Pool(kind, (16, 8, 8)) for kind in ("average", "average2x2", "flatten"))
    assert (pool.width, pool2.width, flatten.width) == (16, 16 * 4, 16 * 64)
    torch.testing.assert_close(pool(features), features.mean(dim=(2, 3)))
    quadrants = features.reshape(2, 16, 2, 4, 2, 4).mean(dim=(3, 5))
    torch.testing.assert_close(pool2(features), quadrants.flatten(1))
    assert torch.equal(flatten(features), features.flatten(1))


@pytest.fixture
def head():
    return Classifier(6, 3, NetworkOptions(hidden=(5, 4))).double()


@pytest.mark.parametrize("frozen", [False, True])
def test_classifying_aside_gives_the_classifiers_scores_and_leaves_running_statistics_alone(head, frozen):
    vectors = 3 + random_map(8, 6)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    aside = run_aside(head, vectors, frozen=frozen)
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())
    torch.testing.assert_close(aside, head(vectors))
    assert not torch.equal(before["1.running_mean"], head[1].running_mean)
    head.eval()
    torch.testing.assert_close(run_aside(head, vectors, frozen=frozen), head(vectors))


def test_a_frozen_classifier_passes_gradients_on_but_keeps_none(head):
    vectors = random_map(8, 6).requires_grad_()
    run_aside(head, vectors, frozen=True).square().sum().backward()
    frozen = vectors.grad.clone()
    assert frozen.abs().sum() > 0
    assert all(p.grad is None and p.requires_grad for p in head.parameters())

    vectors.grad = None
    run_aside(head, vectors).square().sum().backward()
    torch.testing.assert_close(vectors.grad, frozen)
    assert all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (2, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_small_convolution_is_a_convolution_and_so_are_its_gradients(size, kernel):
    layer = SmallConvolution(3, 4, kernel, size).double()
    assert layer.places is not None
    maps = torch.randn(6, 3, *size, dtype=torch.double, requires_grad=True)
    plain = torch.nn.functional.conv2d(maps, layer.weight, layer.bias, padding=kernel // 2)
    torch.testing.assert_close(layer(maps), plain)
    leaves = (maps, layer.weight, layer.bias)
    ours, theirs = (torch.autograd.grad(y.square().sum(), leaves) for y in (layer(maps), plain))
    torch.testing.assert_close(ours, theirs)


def test_a_small_convolution_takes_maps_of_other_sizes_too():
    layer = SmallConvolution(2, 1, 5, (8, 8))
    maps = torch.randn(3, 2, 11, 6)
    plain = torch.nn.functional.conv2d(maps, layer.weight, layer.bias, padding=2)
    torch.testing.assert_close(layer(maps), plain)
    assert SmallConvolution(2, 1, 5, (56, 56)).places is None
    assert layer.state_dict().keys() == {"weight", "bias"}


def test_experts_each_score_their_own_slice():
    experts = Experts(3, 5, 4)
    vectors = torch.randn(3, 7, 5)
    for number, scores in enumerate(experts(vectors)):
        torch.testing.assert_close(scores, vectors[number] @ experts.weight[number] + experts.bias[number])
    assert experts.weight.abs().max() <= 5**-0.5


@pytest.mark.parametrize("hidden", [(), (6,)])
def test_classifying_several_kinds_at_once_equals_classifying_each(hidden):
    classifier = Classifier(5, 3, NetworkOptions(hidden=hidden))
    kinds = [torch.randn(4, 5) for _ in range(3)]
    statistics = {name: value.clone() for name, value in classifier.named_buffers()}
    together = classify_all(classifier, *kinds)
    classifier.load_state_dict(statistics, strict=False)
    torch.testing.assert_close(together[0], classifier(kinds[0]))
    after = {name: value.clone() for name, value in classifier.named_buffers()}
    for scores, vectors in zip(together[1:], kinds[1:], strict=True):
        torch.testing.assert_close(scores, classifier(vectors))
    classifier.load_state_dict(statistics, strict=False)
    classify_all(classifier, *kinds)
    # Only the vectors that inference sees move batch norm's running statistics.
    assert all(torch.equal(value, after[name]) for name, value in classifier.named_buffers())


def test_small_layers_stay_in_float32_under_autocast():
    gate, classifier = Gate(16, size=(4, 4)), Classifier(16, 3, NetworkOptions())
    with torch.autocast("cpu", torch.bfloat16):
        assert gate.channel(torch.randn(2, 16).bfloat16()).dtype == torch.float32
        assert gate.spatial(torch.randn(2, 4, 4), torch.randn(2, 4, 4).bfloat16()).dtype == torch.float32
        assert gate(torch.randn(2, 16, 4, 4).bfloat16()).dtype == torch.bfloat16  # as the map it weighs
        assert classifier(torch.randn(2, 16).bfloat16()).dtype == torch.float32
        assert Experts(2, 4, 3)(torch.randn(2, 5, 4).bfloat16()).dtype == torch.float32
