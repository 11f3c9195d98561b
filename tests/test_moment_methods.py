"""Methods that compare the domains' distributions: DAN, JAN, CORAL, MMD-AAE."""

import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from afield.config.catalogue import find_entry
from afield.config.training import TrainingOptions
from afield.data.batches import Batch
from afield.losses import coral_distance, gaussian_kernel, joint_squared_mmd, squared_mmd, squared_mmd_among
from afield.methods.create import create_method
from afield.methods.mmd_aae import laplace_like
from afield.training.schedules import adaptation_weight
from support.comparing import normal, same, swap_first_sources
from support.stepping import take_step

METHODS = ("dan", "jan", "coral", "mmd-aae")
SOURCES, PER_DOMAIN, CLASSES = 3, 4, 3


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


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
            "discriminator": -0.2 * (drawn.sigmoid().log().mean() + (1 - coded.sigmoid()).log().mean()),
            "prior": -0.2 * coded.sigmoid().log().mean(),
        }
    scores = method.classifier(features)
    probabilities = scores.softmax(dim=1)
    expected = {"classification": cross_entropy(scores[:labelled], batch.labels)}
    match name:
        case "dan":
            layers = [squared_mmd(x[:labelled], x[labelled:], 3, 1.5) for x in (features, scores)]
            expected["mmd"] = 0.7 * sum(layers)
        case "jan":
            kernels = gaussian_kernel(features, 3, 1.5), gaussian_kernel(probabilities, 1, width=0.9)
            expected["joint_mmd"] = 0.7 * joint_squared_mmd(kernels, labelled)
        case "coral":
            expected["coral"] = 0.7 * coral_distance(batch.by_domain(scores))
    return expected


WEIGHTS = {
    "dan": {"mmd_weight": 0.7, "kernels": 3, "kernel_step": 1.5},
    "jan": {"mmd_weight": 0.7, "kernels": 3, "kernel_step": 1.5, "probability_width": 0.9},
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
    assert method.ramped == expected.keys() - {"classification", "reconstruction", "discriminator"}
    sum(actual.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize(("name", "target"), TASKS)
def test_the_order_of_the_sources_does_not_matter(name, target):
    method, batch = build(name), make_batch(target)
    same(losses(method, swap_first_sources(batch)), losses(method, batch))


def kernel_sum(x, widths):
    distances = (x[:, None] - x[None]).square().sum(dim=-1)
    return sum(torch.exp(-distances / width) for width in widths)


def five_widths(x):
    middle = (x[:, None] - x[None]).square().sum(dim=-1).sum() / (len(x) * (len(x) - 1))
    return [middle * ratio for ratio in (1 / 4, 1 / 2, 1, 2, 4)]


def mmd_by_hand(kernel, count):
    return kernel[:count, :count].mean() + kernel[count:, count:].mean() - 2 * kernel[:count, count:].mean()


def test_dan_sums_five_kernels_of_each_layer_as_its_authors_code():
    method, batch = build("dan"), make_batch()
    features = method.pool(method.backbone(batch.images))
    layers = features, method.classifier(features)
    expected = [mmd_by_hand(kernel_sum(x, five_widths(x)), batch.num_labelled) for x in layers]
    same(losses(method, batch)["mmd"], sum(expected))


def test_jan_multiplies_five_summed_kernels_of_the_features_and_one_of_width_1_68_as_its_authors_code():
    method, batch = build("jan"), make_batch()
    features = method.pool(method.backbone(batch.images))
    probabilities = method.classifier(features).softmax(dim=1)
    kernel = kernel_sum(features, five_widths(features)) * kernel_sum(probabilities, [1.68])
    same(losses(method, batch)["joint_mmd"], mmd_by_hand(kernel, batch.num_labelled))


def test_every_method_says_what_it_needs():
    needs = {name: find_entry(name).card for name in METHODS}
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
    "discriminator": {"discriminator"},
    "prior": {"backbone", "encoder"},
}


def test_each_loss_of_mmd_aae_reaches_the_parts_that_it_is_about():
    method = build("mmd-aae")
    values = losses(method, make_batch())
    for loss, parts in MMD_AAE_ROUTES.items():
        for part in ("backbone", "encoder", "decoder", "discriminator", "classifier"):
            gradients = gradient(values[loss], method, part)
            assert all((g is not None) == (part in parts) for g in gradients), (loss, part)


def test_the_encoder_of_mmd_aae_plays_against_the_discriminator():
    method, batch = build("mmd-aae"), make_batch(target=False)
    values = losses(method, batch)
    rate = 0.05
    with torch.no_grad():
        for parameter, slope in zip(
            method.encoder.parameters(), gradient(values["prior"], method, "encoder"), strict=True
        ):
            parameter -= rate * slope
    assert losses(method, batch)["discriminator"] > values["discriminator"]


def test_the_encoder_of_mmd_aae_learns_most_where_the_discriminator_is_sure():
    method, batch = build("mmd-aae"), make_batch(target=False)
    slopes = {}
    for bias in (-20.0, 0.0):  # D's logit of "drawn from the prior"
        nn.init.constant_(method.discriminator[-1].bias, bias)
        slopes[bias] = torch.cat(
            [g.flatten() for g in gradient(losses(method, batch)["prior"], method, "encoder")]
        ).norm()
    assert slopes[-20.0] > 1.5 * slopes[0.0] > 0


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
        take_step(method, Batch(torch.cat(images), torch.cat(labels[:-1]), len(sources)), descend)
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
