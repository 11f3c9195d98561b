"""Methods that compare the domains' distributions: DAN, JAN, CORAL, MMD-AAE, and the losses they do it by."""

import itertools
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, tensor
from torch.nn.functional import cross_entropy, softplus

from afield.batches import Batch
from afield.catalogue import create_method, find_entry
from afield.losses import (
    CoralDistance,
    JointSquaredMMD,
    SquaredMMD,
    coral_distance,
    gaussian_kernel,
    joint_squared_mmd,
    squared_mmd,
    squared_mmd_among,
)
from afield.methods.mmd_aae import laplace_like
from afield.training.options import TrainingOptions
from afield.training.schedules import adaptation_weight
from test_resume import Killed, assert_equal_runs, every, kill_before_step

METHODS = ("dan", "jan", "coral", "mmd-aae")
SOURCES, PER_DOMAIN, CLASSES = 3, 4, 3
quick = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


# ---- MMD ----


def kernel_by_hand(x, y, widths):
    """Pair by pair, from the definition."""
    distance = (x[:, None] - y[None]).square().sum(dim=-1)
    return sum(torch.exp(-distance / width) for width in widths) / len(widths)


def widths_by_hand(samples, kernels, step):
    pairs = [(a - b).square().sum() for a, b in itertools.combinations(samples.detach(), 2)]
    middle = sum(pairs) / len(pairs)
    return [middle * step ** (number - (kernels - 1) / 2) for number in range(kernels)]


@pytest.mark.parametrize(("kernels", "step"), [(1, 2.0), (2, 3.0), (5, 2.0)])
def test_the_kernels_lie_about_the_mean_squared_distance_of_two_samples(kernels, step):
    samples = 3 + 2 * normal(6, 4)
    widths = widths_by_hand(samples, kernels, step)
    same(gaussian_kernel(samples, kernels, step), kernel_by_hand(samples, samples, widths))
    assert math.prod(widths) == pytest.approx(math.prod(widths_by_hand(samples, 1, step)) ** kernels)


def test_mmd_is_that_of_its_definition_and_its_width_is_no_variable():
    source, target = normal(5, 3).requires_grad_(), (1 + normal(7, 3)).requires_grad_()
    widths = widths_by_hand(torch.cat((source, target)), 5, 2.0)
    within = kernel_by_hand(source, source, widths).mean() + kernel_by_hand(target, target, widths).mean()
    expected = within - 2 * kernel_by_hand(source, target, widths).mean()
    actual = squared_mmd(source, target)
    same(actual, expected)
    same(torch.autograd.grad(actual, (source, target)), torch.autograd.grad(expected, (source, target)))


@pytest.mark.parametrize("kernels", [1, 5])
def test_mmd_of_two_gaussians_is_the_closed_form_and_the_bias_of_the_estimate(kernels):
    # x - y ~ N(m, v I), so that E exp(-|x - y|^2 / w) = (w / (w + 2 v))^(d/2) exp(-|m|^2 / (w + 2 v)).
    dim, count, mean, spread = 2, 800, 1.5, 2.0
    source, target = normal(count, dim), spread * normal(count, dim)
    target[:, 0] += mean
    middle = 2 * (dim * (1 + spread**2) / 2 + mean**2 / 4)  # twice the variance of the mixture of both

    def expected_kernel(m, v):
        widths = [middle * 2 ** (number - (kernels - 1) / 2) for number in range(kernels)]
        return sum((w / (w + 2 * v)) ** (dim / 2) * math.exp(-(m**2) / (w + 2 * v)) for w in widths) / kernels

    of_source, of_target = expected_kernel(0, 2), expected_kernel(0, 2 * spread**2)
    population = of_source + of_target - 2 * expected_kernel(mean, 1 + spread**2)
    bias = (2 - of_source - of_target) / count
    assert squared_mmd(source, target, kernels).item() == pytest.approx(population + bias, rel=0.1)


def test_two_samples_of_one_distribution_are_as_far_apart_as_the_bias_says():
    size, kernel = 32, 0.5  # d = 2 and v = 2: the width is 4, and E k = 4 / (4 + 2 v)
    values = [squared_mmd(*normal(2, size, 2), kernels=1) for _ in range(300)]
    # The width is the batch's own, not quite 4; hence the tolerance.
    assert torch.stack(values).mean().item() == pytest.approx(2 / size * (1 - kernel), rel=0.05)


@quick
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(2, 6))
def test_mmd_is_symmetric_never_negative_and_indifferent_to_place_turn_and_scale(seed, n, m):
    torch.manual_seed(seed)
    source, target = normal(n, 3), normal(m, 3) * 2 + 1
    value = squared_mmd(source, target)
    assert value >= -1e-12
    same(squared_mmd(target, source), value)
    same(squared_mmd(source.flip(0), target), value)
    turn = torch.linalg.qr(normal(3, 3)).Q
    same(squared_mmd(5 * source @ turn - 7, 5 * target @ turn - 7), value)
    assert abs(squared_mmd(source, source)) < 1e-12


def test_mmd_grows_with_the_shift():
    sample = normal(20, 2)
    values = [squared_mmd(sample, sample + shift).item() for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values)


def test_equal_samples_have_a_finite_gradient():
    points = torch.ones(4, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(squared_mmd(points, points[:2] + 0), points)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kernels", [1, 5])
def test_joint_mmd_of_one_layer_is_mmd(kernels):
    source, target = normal(5, 3), normal(4, 3) + 1
    same(joint_squared_mmd([source], [target], kernels), squared_mmd(source, target, kernels))
    # A layer that says the same of all samples adds nothing.
    silent = [source, torch.ones(5, 2).double()], [target, torch.ones(4, 2).double()]
    same(joint_squared_mmd(*silent, kernels), squared_mmd(source, target, kernels))


def test_joint_mmd_multiplies_the_layers_kernels():
    source, target = [normal(5, 3), normal(5, 2)], [normal(4, 3), normal(4, 2) + 1]
    kernel = math.prod(gaussian_kernel(torch.cat(pair), 3, 2.0) for pair in zip(source, target, strict=True))
    expected = kernel[:5, :5].mean() + kernel[5:, 5:].mean() - 2 * kernel[:5, 5:].mean()
    same(joint_squared_mmd(source, target, 3), expected)


def test_joint_mmd_sees_what_the_layers_have_together_and_neither_has_alone():
    signs = tensor([[-1.0], [-1.0], [1.0], [1.0]])
    source, target = (signs, signs), (signs, -signs)
    assert all(abs(squared_mmd(a, b)) < 1e-6 for a, b in zip(source, target, strict=True))
    assert joint_squared_mmd(source, target) > 0.1


def test_mmd_among_domains_is_twice_their_variance_in_the_kernels_space():
    domains = normal(4, 3, 2) + torch.arange(4).view(-1, 1, 1)
    kernel = gaussian_kernel(domains.flatten(0, 1)).view(4, 3, 4, 3)
    inner = kernel.mean(dim=(1, 3))
    pairs = [inner[i, i] + inner[j, j] - 2 * inner[i, j] for i in range(4) for j in range(4)]
    variance = sum(inner[i, i] - 2 * inner[i].mean() + inner.mean() for i in range(4)) / 4
    same(squared_mmd_among(domains), sum(pairs) / 16)
    same(squared_mmd_among(domains), 2 * variance)
    same(squared_mmd_among(domains[:2]), squared_mmd(*domains[:2]) / 2)
    assert abs(squared_mmd_among(domains[:1].expand(4, -1, -1))) < 1e-12


# ---- CORAL ----


@pytest.mark.parametrize("count", [2, 3, 5])
def test_coral_is_the_mean_over_pairs_of_the_papers_distance(count):
    domains = normal(count, 6, 4) * torch.arange(1, count + 1).view(-1, 1, 1)
    covariances = [torch.cov(domain.T) for domain in domains]
    pairs = [(a - b).square().sum() / (4 * 4**2) for a, b in itertools.combinations(covariances, 2)]
    same(coral_distance(domains), sum(pairs) / len(pairs))


def test_coral_of_two_gaussians_is_the_distance_of_their_covariances():
    factor = tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)  # covariance [[1, 1], [1, 5]]
    domains = torch.stack((normal(20000, 2), normal(20000, 2) @ factor.T))
    assert coral_distance(domains).item() == pytest.approx((0 + 1 + 1 + 16) / (4 * 2**2), rel=0.05)


def test_coral_is_blind_to_means_and_of_one_domain_is_nothing():
    domains = normal(2, 5, 3)
    shifted = domains + tensor([[[0.0]], [[9.0]]])
    same(coral_distance(shifted), coral_distance(domains))
    assert coral_distance(domains[:1]) == 0
    assert coral_distance(domains) > 0


def test_modules_compute_what_the_functions_do_and_autocast_changes_nothing():
    source, target = torch.randn(2, 6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        same(SquaredMMD(3, 1.5)(source, target), squared_mmd(source, target, 3, 1.5))
        pair = (source, source[:, :2]), (target, target[:, :2])
        same(JointSquaredMMD(3, 1.5)(*pair), joint_squared_mmd(*pair, 3, 1.5))
        same(CoralDistance()(torch.stack((source, target))), coral_distance(torch.stack((source, target))))
        low = squared_mmd(source, target), coral_distance(torch.stack((source, target)))
    same(low, (squared_mmd(source, target), coral_distance(torch.stack((source, target)))))


# ---- the methods ----


def build(name, **options):
    torch.manual_seed(0)
    network = {"width": 8}
    return create_method(name, num_classes=CLASSES, num_sources=SOURCES, network=network, **options).double()


def make_batch(target=True):
    """Domains that differ in mean and contrast, so that there is something to align."""
    torch.manual_seed(1)
    steps = torch.arange(SOURCES + target).view(-1, 1, 1, 1, 1)
    images = normal(SOURCES + target, PER_DOMAIN, 3, 32, 32) * (0.5 + steps / 2) + steps
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (SOURCES * PER_DOMAIN,)), SOURCES)


def swap_sources(batch):
    """The same batch with its first two sources in the other order."""
    order = torch.arange(len(batch.images)).view(-1, PER_DOMAIN)
    order[[0, 1]] = order[[1, 0]]
    order = order.flatten()
    return Batch(batch.images[order], batch.labels[order[: batch.num_labelled]], batch.num_sources)


def losses(method, batch):
    torch.manual_seed(2)  # the prior's draws
    return method.losses(batch)


def expected_losses(name, method, batch):
    """From the method's parts, by the papers' formulas."""
    labelled, with_target = batch.num_labelled, name != "mmd-aae"
    features = method.pool(method.backbone(batch.images if with_target else batch.images[:labelled]))
    if name == "mmd-aae":
        code = features @ method.encoder.weight.T + method.encoder.bias
        error = code @ method.decoder.weight.T + method.decoder.bias - features.detach()
        torch.manual_seed(2)
        drawn, coded = method.discriminator(laplace_like(code)), method.discriminator(code)
        return {
            "classification": cross_entropy(method.classifier(code), batch.labels),
            "reconstruction": 0.3 * error.square().mean(),
            "mmd": 0.7 * squared_mmd_among(batch.by_domain(code)),
            "prior": -0.2 * (drawn.sigmoid().log().mean() + (1 - coded.sigmoid()).log().mean()),
        }
    scores = method.classifier(features)
    probabilities = scores.softmax(dim=1)
    expected = {"classification": cross_entropy(scores[:labelled], batch.labels)}
    match name:
        case "dan":
            layers = [squared_mmd(x[:labelled], x[labelled:], 3, 1.5) for x in (features, scores)]
            expected["mmd"] = 0.7 * sum(layers)
        case "jan":
            sides = [(features[part], probabilities[part]) for part in (slice(labelled), slice(labelled, None))]
            expected["joint_mmd"] = 0.7 * joint_squared_mmd(*sides, 3, 1.5)
        case "coral":
            expected["coral"] = 0.7 * coral_distance(batch.by_domain(scores))
    return expected


WEIGHTS = {
    "dan": {"mmd_weight": 0.7, "kernels": 3, "kernel_step": 1.5},
    "jan": {"mmd_weight": 0.7, "kernels": 3, "kernel_step": 1.5},
    "coral": {"coral_weight": 0.7},
    "mmd-aae": {"mmd_weight": 0.7, "reconstruction_weight": 0.3, "prior_weight": 0.2},
}
TASKS = [("dan", True), ("jan", True), ("coral", True), ("coral", False), ("mmd-aae", True), ("mmd-aae", False)]


@pytest.mark.parametrize(("name", "target"), TASKS)
def test_losses_are_those_of_the_paper_times_their_weights(name, target):
    method, batch = build(name, **WEIGHTS[name]), make_batch(target)
    actual, expected = losses(method, batch), expected_losses(name, method, batch)
    assert actual.keys() == expected.keys()
    for loss, value in expected.items():
        same(actual[loss], value)
    assert method.ramped == expected.keys() - {"classification", "reconstruction"}
    sum(actual.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize(("name", "target"), TASKS)
def test_the_order_of_the_sources_does_not_matter(name, target):
    method, batch = build(name), make_batch(target)
    same(losses(method, swap_sources(batch)), losses(method, batch))


def test_every_method_says_what_it_needs():
    needs = {name: find_entry(name).registration.method for name in METHODS}
    assert {name for name, method in needs.items() if method.needs_target} == {"dan", "jan"}
    assert {name for name, method in needs.items() if method.min_sources > 1} == {"mmd-aae"}


def test_coral_can_align_the_features_instead():
    method, batch = build("coral", layer="features"), make_batch()
    features = method.pool(method.backbone(batch.images))
    same(losses(method, batch)["coral"], coral_distance(batch.by_domain(features)))


@pytest.mark.parametrize("name", METHODS)
def test_only_mmd_aae_leaves_the_target_unseen(name):
    method, batch = build(name), make_batch()
    changed = Batch(batch.images.clone(), batch.labels, SOURCES)
    changed.images[batch.num_labelled :] += normal(PER_DOMAIN, 3, 32, 32)
    before, after = (sum(losses(method, which).values()) for which in (batch, changed))
    assert (before == after) == (name == "mmd-aae")


def gradient(loss, method, part):
    """Of one loss, by the parameters of one part; None where it does not reach."""
    parameters = list(getattr(method, part).parameters())
    return torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)


MMD_AAE_ROUTES = {
    "classification": {"backbone", "encoder", "classifier"},
    "reconstruction": {"backbone", "encoder", "decoder"},
    "mmd": {"backbone", "encoder"},
    "prior": {"backbone", "encoder", "discriminator"},
}


def test_each_loss_of_mmd_aae_reaches_the_parts_that_it_is_about():
    method = build("mmd-aae")
    values = losses(method, make_batch())
    for loss, parts in MMD_AAE_ROUTES.items():
        for part in ("backbone", "encoder", "decoder", "discriminator", "classifier"):
            gradients = gradient(values[loss], method, part)
            assert all((g is not None) == (part in parts) for g in gradients), (loss, part)


def test_the_encoder_of_mmd_aae_plays_against_the_discriminator():
    method, batch = build("mmd-aae", prior_weight=0.2), make_batch(target=False)
    actual = losses(method, batch)["prior"]
    torch.manual_seed(2)
    code = method.encoder(method.pool(method.backbone(batch.images)))
    drawn, coded = method.discriminator(laplace_like(code)), method.discriminator(code)
    told_apart = 0.2 * (softplus(-drawn).mean() + softplus(coded).mean())
    same(gradient(actual, method, "discriminator"), gradient(told_apart, method, "discriminator"))
    for part in ("encoder", "backbone"):
        expected = tuple(-g for g in gradient(told_apart, method, part))
        same(gradient(actual, method, part), expected)


def test_reconstruction_does_not_shrink_what_it_reconstructs():
    # With the decoder at 0 the code says nothing, and the error could only fall by smaller features.
    method = build("mmd-aae")
    nn.init.zeros_(method.decoder.weight)
    loss = losses(method, make_batch())["reconstruction"]
    assert loss > 0
    assert all(g.abs().max() == 0 for g in gradient(loss, method, "backbone"))


def test_mmd_aae_predicts_without_its_training_parts():
    method, images = build("mmd-aae").eval(), make_batch().images
    before = method(images)
    same(before, method.classifier(method.encoder(method.pool(method.backbone(images)))))
    method.drop_training_parts()
    assert not any(name.startswith(("decoder", "discriminator")) for name in method.state_dict())
    assert torch.equal(method(images), before)


@pytest.mark.parametrize(("share", "width"), [(0.5, 8), (0.25, 4), (1.0, 16), (0.001, 1)])
def test_the_code_is_as_wide_as_its_share_says(share, width):
    method = build("mmd-aae", code_share=share)
    assert method.encoder.weight.shape == (width, 16)
    assert method(make_batch().images).shape == (16, CLASSES)


def test_the_prior_is_laplaces_with_variance_one():
    draws = laplace_like(torch.empty(200_000, 2))
    moments = [draws.mean(), draws.abs().mean(), draws.square().mean(), draws.pow(4).mean()]
    assert torch.stack(moments).tolist() == pytest.approx([0, 0.5**0.5, 1, 6], rel=0.03, abs=0.01)


# ---- a few steps, and learning ----


@pytest.mark.parametrize(("method", "task"), [("dan", "uda"), ("jan", "uda"), ("coral", "dg"), ("mmd-aae", "dg")])
def test_a_killed_and_resumed_run_equals_the_unbroken_one(train_toy, tmp_path, method, task):
    options = {"method": method, "task": task, "steps": 6, "settings": every(3, 2)}
    unbroken = train_toy(tmp_path / "unbroken", **options)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", **options)
    assert_equal_runs(train_toy(tmp_path / "killed", **options, resume=True), unbroken)


@pytest.mark.parametrize("method", METHODS)
def test_bf16_trains_to_finite_losses(train_toy, tmp_path, method):
    run = train_toy(tmp_path / "run", method, steps=3, settings={"training.precision": "bf16"})
    values = [value for record in run.records if record["event"] == "evaluation" for value in record["losses"].values()]
    assert values and all(math.isfinite(value) for value in values)


def draw(count, generator, offset=0.0, scale=1.0, sign=1.0, noise=0.5):
    """Two classes in twelve dimensions. The first tells them in every domain alike; the second tells them better in the
    sources, but in each domain in its own way; the others tell nothing."""
    labels = torch.arange(count) % 2
    side = 2.0 * labels - 1
    values = torch.randn(count, 12, generator=generator)
    values[:, 0] += 2.5 * side
    values[:, 1] = scale * (sign * 3 * side + noise * values[:, 1]) + offset
    return values[:, :, None, None], labels


def accuracy_on_target(name, sources, target, seed, *, seen, **options):
    """After 100 steps at the loop's default settings, with a small network in the place of the backbone."""
    torch.manual_seed(seed)
    method = create_method(name, num_classes=2, num_sources=len(sources), network={"width": 8}, **options)
    layers = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU()
    method.backbone = nn.Sequential(nn.Flatten(), *layers, nn.Unflatten(1, (16, 1, 1)))
    training = TrainingOptions(steps=100)
    optimiser = torch.optim.SGD(method.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay)
    generator = torch.Generator().manual_seed(seed)

    def descend(losses):
        optimiser.zero_grad()
        sum(loss * (weight if kind in method.ramped else 1) for kind, loss in losses.items()).backward()
        optimiser.step()

    for step in range(training.steps):
        weight = adaptation_weight(training, step)
        images, labels = zip(*(draw(32, generator, **shift) for shift in (*sources, target)), strict=True)
        images = images if seen else images[:-1]
        method.update(Batch(torch.cat(images), torch.cat(labels[:-1]), len(sources)), descend)
    images, labels = draw(2000, generator, **target)
    with torch.no_grad():
        return (method.eval()(images).argmax(dim=1) == labels).float().mean().item()


SHIFTS = {
    # The second dimension is moved in the target, beyond the boundary between the classes.
    "moved target": (({}, {}), {"offset": 6.0}),
    # It is noisy in the target: no mean differs, only covariances do.
    "noisy target": (({}, {}), {"noise": 10.0}),
    # The sources do not agree on its scale, and in the target it says the opposite.
    "scaled sources": (({}, {"scale": 3.0}), {"sign": -1.0}),
    # The sources do not agree on its mean, and the target's lies far outside theirs.
    "moved sources": (({"offset": -2.0}, {}, {"offset": 2.0}), {"offset": 9.0}),
}


@cache
def mean_accuracy(name, shift, seen):
    return sum(accuracy_on_target(name, *SHIFTS[shift], seed, seen=seen) for seed in range(3)) / 3


@pytest.mark.parametrize(
    ("name", "shift", "seen"),
    [
        ("dan", "moved target", True),
        ("jan", "moved target", True),
        ("coral", "noisy target", True),
        ("coral", "scaled sources", False),
        ("mmd-aae", "moved sources", False),
    ],
)
def test_the_method_beats_the_baseline_under_the_shift_it_is_made_for(name, shift, seen):
    assert mean_accuracy(name, shift, seen) > mean_accuracy("baseline", shift, seen) + 0.15
