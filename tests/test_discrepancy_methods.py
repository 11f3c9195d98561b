"""MCD, M3SDA and M3SDA-beta: their losses, which update trains what, and that they adapt."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from torch import nn, tensor
from torch.nn.functional import cross_entropy

from afield.config.training import TrainingOptions
from afield.data.batches import Batch
from afield.losses import (
    classifier_discrepancy,
    moment_distance,
    raw_moment_distance,
)
from afield.methods.create import create_method
from afield.networks import mean_prediction
from afield.training.schedules import adaptation_weight, learning_rate
from support.comparing import same
from support.stepping import take_step

SOURCES, PER_DOMAIN, CLASSES = 3, 4, 4
LABELLED = SOURCES * PER_DOMAIN
METHODS = ("mcd", "m3sda", "m3sda-beta")
IN_STEPS = ("mcd", "m3sda-beta")


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


def build(name, *, hidden=(), batch_norm="together", **options):
    torch.manual_seed(0)
    network = {"width": 8, "hidden": list(hidden), "batch_norm": batch_norm}
    return create_method(name, num_classes=CLASSES, num_sources=SOURCES, network=network, **options).double()


def make_batch():
    torch.manual_seed(1)
    images = torch.randn(SOURCES + 1, PER_DOMAIN, 3, 32, 32, dtype=torch.float64)
    images = images * torch.linspace(0.5, 2, SOURCES + 1).view(-1, 1, 1, 1, 1)
    images = images + torch.arange(SOURCES + 1).view(-1, 1, 1, 1, 1)
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (LABELLED,)), SOURCES)


# The losses.


def test_equal_classifiers_have_no_discrepancy_and_opposite_ones_the_largest():
    scores = torch.randn(5, 7)
    assert classifier_discrepancy(scores, scores + 3) < 1e-7  # the same softmax
    sure = 100 * torch.eye(4)
    assert classifier_discrepancy(sure, sure.roll(1, dims=0)).item() == pytest.approx(2 / 4)


def test_discrepancy_is_the_mean_absolute_difference_of_probabilities():
    first, second = tensor([[0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3]]).log(), tensor([[0.5, 0.3, 0.2], [0.5, 0.25, 0.25]])
    expected = ((0.3 + 0 + 0.3) / 3 + (1 / 6 + 1 / 12 + 1 / 12) / 3) / 2
    assert classifier_discrepancy(first, second.log()).item() == pytest.approx(expected)
    assert classifier_discrepancy(second.log(), first).item() == pytest.approx(expected)


def test_moment_distance_of_points_is_that_of_the_definition():
    # Of single points E[x] = x and E[x^2] = x^2: sources (3, 4), (0, 0) and (3, 0), target (0, 0).
    features = tensor([[[3.0, 4.0]], [[0.0, 0.0]], [[3.0, 0.0]], [[0.0, 0.0]]])
    to_target = (5 + 0 + 3) / 3 + (math.hypot(9, 16) + 0 + 9) / 3
    between = (5 + 4 + 3) / 3 + (math.hypot(9, 16) + 16 + 9) / 3
    assert raw_moment_distance(features).item() == pytest.approx(to_target + between)
    assert raw_moment_distance(features, orders=1).item() == pytest.approx(8 / 3 + 12 / 3)
    assert raw_moment_distance(features[[0, -1]]).item() == pytest.approx(5 + math.hypot(9, 16))


def test_second_moments_are_raw_not_central():
    # N(m, s^2) has E[x^2] = m^2 + s^2: these two differ in mean alone, and yet in both raw moments.
    normal = torch.randn(100_000, dtype=torch.float64)
    features = torch.stack((2 + normal, normal))[:, :, None]
    assert raw_moment_distance(features).item() == pytest.approx(2 + 4, abs=0.05)
    assert moment_distance(features, has_target=True).item() == pytest.approx(2, abs=0.05)
    # N(1, 1) and N(0, 2) share their second raw moment.
    features = torch.stack((1 + normal, math.sqrt(2) * normal))[:, :, None]
    assert raw_moment_distance(features).item() == pytest.approx(1, abs=0.05)


def test_moment_distance_does_not_depend_on_the_order_of_the_sources():
    features = torch.randn(5, 6, 3, dtype=torch.float64) * torch.arange(1, 6).view(-1, 1, 1)
    for order in ([3, 1, 0, 2, 4], [1, 2, 3, 0, 4]):
        same(raw_moment_distance(features[order]), raw_moment_distance(features))
    assert raw_moment_distance(features[[4, 1, 2, 3, 0]]) != raw_moment_distance(features)  # another target
    doubled = features.clone()
    for source in range(4):  # each source counts: none is left out
        doubled[source] *= 2
        assert raw_moment_distance(doubled) != raw_moment_distance(features)
        doubled[source] = features[source]


def test_equal_domains_have_no_moment_distance_and_no_gradient():
    features = torch.randn(1, 6, 3).repeat(4, 1, 1).requires_grad_()
    distance = raw_moment_distance(features)
    distance.backward()
    assert distance == 0
    assert (features.grad == 0).all()


def test_the_mean_prediction_is_one_of_probabilities():
    scores = 3 * torch.randn(5, 2, 4, dtype=torch.float64)
    same(mean_prediction(scores).exp(), scores.softmax(dim=-1).mean(dim=0))


# The updates.


def by_hand(method, batch):
    """The classifiers' scores (classifiers, domains, b, classes) and the vectors (domains, b, d) they read."""
    vectors = method.pool(method.backbone(batch.images))
    scores = torch.stack([classifier(vectors) for classifier in method.classifier])
    return scores.unflatten(1, (SOURCES + 1, PER_DOMAIN)), vectors.unflatten(0, (SOURCES + 1, PER_DOMAIN))


@pytest.mark.parametrize("name", METHODS)
def test_losses_of_the_first_update_are_those_of_the_paper(name):
    method, batch = build(name), make_batch()
    scores, vectors = by_hand(method, batch)
    labels = batch.labels.view(SOURCES, PER_DOMAIN)
    assert len(method.classifier) == {"mcd": 2, "m3sda": SOURCES, "m3sda-beta": 2 * SOURCES}[name]
    if name == "mcd":
        expected = {"classification": sum(cross_entropy(s[:-1].flatten(0, 1), batch.labels) for s in scores)}
    else:
        own = [cross_entropy(s[i % SOURCES], labels[i % SOURCES]) for i, s in enumerate(scores)]
        expected = {"classification": sum(own) / SOURCES, "moments": 0.125 * raw_moment_distance(vectors)}
    losses = method.losses(batch)
    assert losses.keys() == expected.keys()
    for loss, value in expected.items():
        same(losses[loss], value)


@pytest.mark.parametrize("name", METHODS)
def test_inference_averages_all_predictions(name):
    method, batch = build(name).eval(), make_batch()
    scores, _ = by_hand(method, batch)
    same(method(batch.images).softmax(dim=1), scores.flatten(1, 2).softmax(dim=-1).mean(dim=0))


def watched(method, batch, rate=0.02):
    """One update with plain SGD; for each descent its losses, the parts that it moved, and d before and after."""
    optimiser, descents = torch.optim.SGD(method.parameters(), lr=rate), []

    def disagreement():
        scores, _ = by_hand(deepcopy(method), batch)  # whose running statistics do not matter
        first, second = scores[:, -1].detach().softmax(dim=-1).chunk(2)
        return (first - second).abs().mean().item()

    def descend(losses):
        before, apart = {n: p.detach().clone() for n, p in method.named_parameters()}, disagreement()
        optimiser.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        optimiser.step()
        moved = {n.split(".")[0] for n, p in method.named_parameters() if not torch.equal(p, before[n])}
        descents.append(({n: v.detach() for n, v in losses.items()}, moved, (apart, disagreement())))

    return take_step(method, batch, descend), descents


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("name", IN_STEPS)
def test_each_update_trains_what_it_may_and_nothing_else(name, hidden):
    returned, descents = watched(build(name, hidden=hidden, generator_updates=3), make_batch())
    moved = [parts for _, parts, _ in descents]
    assert moved == [{"backbone", "classifier"}, {"classifier"}, *[{"backbone"}] * 3]
    first = {"classification"} if name == "mcd" else {"classification", "moments"}
    assert [losses.keys() for losses, _, _ in descents] == [first, {"kept", "apart"}, *[{"together"}] * 3]
    assert returned.keys() == first | {"kept", "apart", "together"}


@pytest.mark.parametrize("name", IN_STEPS)
def test_classifiers_part_and_the_features_bring_them_together(name):
    method = build(name, discrepancy_weight=30.0)  # so that keeping the sources' accuracy does not hide it
    _, (learn, part, *rejoin) = watched(method, make_batch(), rate=0.001)
    same(part[0]["apart"].item(), -30.0 * learn[2][1])  # of what the first update left
    same(rejoin[0][0]["together"].item(), 30.0 * part[2][1])
    assert part[2][1] > part[2][0]
    assert len(rejoin) == 4
    for _, _, (before, after) in rejoin:
        assert after < before


@pytest.mark.parametrize("name", IN_STEPS)
def test_the_second_update_keeps_the_sources(name):
    _, (learn, part, *_) = watched(build(name), make_batch(), rate=0.0)
    same(part[0]["kept"], learn[0]["classification"])  # nothing has moved between them


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("name", IN_STEPS)
def test_running_statistics_are_those_of_the_first_pass(name, hidden):
    batch, once, method = make_batch(), build(name, hidden=hidden), build(name, hidden=hidden)
    once.losses(batch)
    take_step(method, batch, lambda losses: None)
    assert len(list(method.buffers())) > 0
    for (buffer, value), expected in zip(method.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(value, expected), buffer


@pytest.mark.parametrize("name", IN_STEPS)
def test_a_step_costs_a_pass_to_learn_and_one_for_each_update_of_the_features(name):
    method, passes = build(name, generator_updates=3), []
    method.backbone.register_forward_hook(lambda *_: passes.append("forward"))
    take_step(method, make_batch(), lambda losses: None)
    assert len(passes) == 1 + 3  # the classifiers part on the features that the first of them brings together


def step_of(method, batch):
    """The losses and gradients of each update of a step that moves nothing, and how many rows each pass of G has."""
    updates, rows = [], []
    method.backbone.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))

    def look(losses):
        method.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        updates.append((losses, {name: p.grad for name, p in method.named_parameters()}))

    take_step(method, batch, look)
    return updates, rows


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("batch_norm", ["apart", "each", "none"])
@pytest.mark.parametrize(("name", "target_batches"), [("mcd", 1), ("mcd", 3), ("m3sda-beta", 1)])
def test_a_target_that_no_source_touches_passes_alone_which_changes_no_update(
    name, batch_norm, hidden, target_batches, monkeypatch
):
    batch = make_batch()
    batch = Batch(
        torch.cat([batch.images, *[batch.images[LABELLED:] + i for i in range(1, target_batches)]]),
        batch.labels,
        SOURCES,
    )
    method = build(name, hidden=hidden, generator_updates=3, batch_norm=batch_norm)
    alone, rows = step_of(method, batch)
    target = target_batches * PER_DOMAIN
    assert rows == [LABELLED + target, target, LABELLED, target, target]
    monkeypatch.setattr(method, "target_is_alone", lambda: False)
    together, rows = step_of(method, batch)
    assert rows[-4:] == 4 * [LABELLED + target]
    for (losses, gradients), (expected, expected_gradients) in zip(alone, together, strict=True):
        for loss, value in expected.items():
            same(losses[loss], value)
        for parameter, gradient in expected_gradients.items():
            if gradient is not None:
                torch.testing.assert_close(gradients[parameter], gradient)
            assert (gradients[parameter] is None) == (gradient is None)


@pytest.mark.parametrize("name", METHODS)
def test_exchanging_sources_and_their_classifiers_changes_nothing(name):
    order = [2, 0, 1]
    batch, method, exchanged = make_batch(), build(name), build(name)
    if name != "mcd":  # which has no classifier of a source
        count = len(method.classifier) // SOURCES
        for half in range(count):
            for place, source in enumerate(order):
                state = method.classifier[half * SOURCES + source].state_dict()
                exchanged.classifier[half * SOURCES + place].load_state_dict(state)
    images = batch.by_domain(batch.images)[[*order, SOURCES]].flatten(0, 1)
    labels = batch.labels.view(SOURCES, PER_DOMAIN)[order].flatten()

    def learn(method, batch):
        optimiser = torch.optim.SGD(method.parameters(), lr=0.01)

        def descend(losses):
            optimiser.zero_grad(set_to_none=True)
            sum(losses.values()).backward()
            optimiser.step()

        return take_step(method, batch, descend)

    losses, others = learn(method, batch), learn(exchanged, Batch(images, labels, SOURCES))
    for loss, value in losses.items():
        torch.testing.assert_close(others[loss], value, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(exchanged.eval()(batch.images), method.eval()(batch.images), rtol=1e-6, atol=1e-7)


# In the loop.


@pytest.mark.parametrize("name", METHODS)
def test_training_runs_in_bf16(train_toy, tmp_path, name):
    run = train_toy(tmp_path, name, 2, settings={"training.precision": "bf16"})
    assert all(math.isfinite(value) for value in run.evaluation["losses"].values())


# Learning.


def moons(angle, count, seed):
    """Two interleaved half circles, rotated about their middle: the shift of MCD's toy problem."""
    points, labels = make_moons(count, noise=0.08, random_state=seed)
    turn = np.deg2rad(angle)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return torch.tensor((points - [0.5, 0.25]) @ rotation.T, dtype=torch.float32), torch.tensor(labels)


def accuracy_on_rotated_moons(name, seed, *, steps, lr, hidden):
    """Of a small network that learned from moons at 0 and -10 degrees, on moons at 30; schedules as in the loop."""
    torch.manual_seed(seed)
    method = create_method(name, num_classes=2, num_sources=2, network={"width": 8, "hidden": hidden})
    method.backbone = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    method.pool = nn.Identity()
    domains = [moons(angle, 300, 10 * seed + place) for place, angle in enumerate((0, -10, 30))]
    options = TrainingOptions(steps=steps, lr=lr)
    optimiser = torch.optim.SGD(method.parameters(), lr=lr, momentum=options.momentum)
    for step in range(steps):
        optimiser.param_groups[0]["lr"], ramp = learning_rate(options, step), adaptation_weight(options, step)

        def descend(losses, ramp=ramp):
            optimiser.zero_grad(set_to_none=True)
            sum(value * (ramp if loss in method.ramped else 1) for loss, value in losses.items()).backward()
            optimiser.step()

        picks = [torch.randint(300, (32,)) for _ in domains]
        points = torch.cat([points[pick] for (points, _), pick in zip(domains, picks, strict=True)])
        labels = torch.cat([labels[pick] for (_, labels), pick in zip(domains[:-1], picks, strict=False)])
        take_step(method, Batch(points, labels, 2), descend)
    points, labels = moons(30, 500, 99)
    with torch.no_grad():
        return (method.eval()(points).argmax(dim=1) == labels).float().mean().item()


@pytest.mark.parametrize(
    ("name", "margin", "setting"),
    [
        ("mcd", 0.07, {"steps": 200, "lr": 0.1, "hidden": [16]}),
        ("m3sda", 0.04, {"steps": 200, "lr": 0.2, "hidden": []}),
        ("m3sda-beta", 0.07, {"steps": 150, "lr": 0.14, "hidden": []}),
    ],
)
def test_it_adapts_to_a_rotation_that_the_baseline_does_not_know(name, margin, setting):
    # Over these four seeds the gains are about 0.13, 0.06 and 0.17.
    adapted, baseline = (
        np.mean([accuracy_on_rotated_moons(which, seed, **setting) for seed in range(4)])
        for which in (name, "baseline")
    )
    assert adapted > baseline + margin
