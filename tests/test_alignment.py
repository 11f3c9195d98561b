"""The alignment of FAR and of the rungs before it: directions, the adversary, classes in equal shares."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from afield.config.network import NetworkOptions
from afield.data.batches import Batch
from afield.losses import direction_distance
from afield.methods.alignment import Alignment, AlignmentOptions, select_by_gate
from afield.methods.dann import domain_loss
from afield.methods.method import Shape
from afield.networks import Pool
from support.comparing import same
from support.far import build, make_batch

SOURCES, CLASSES, CHANNELS = 3, 4, 6


def make_alignment(channels=CHANNELS, **options):
    torch.manual_seed(0)
    shape = Shape(NetworkOptions(), 32, CLASSES, SOURCES)
    return Alignment(AlignmentOptions(**options), channels, shape).double()


def batch_of(labels, per_domain, target=True):
    """A batch whose images do not matter."""
    return Batch(torch.zeros((SOURCES + target) * per_domain, 1), labels, SOURCES)


def random_batch(per_domain=8, target=True):
    return batch_of(torch.randint(CLASSES, (SOURCES * per_domain,)), per_domain, target)


def vectors_of(batch, channels=CHANNELS):
    torch.manual_seed(1)
    return torch.randn(len(batch.images), channels, dtype=torch.float64).exp()


def test_the_distance_of_directions_is_that_of_unit_vectors_means_and_deviations():
    right, up = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    mixed, constant = torch.stack((3 * right, 0.1 * up)), torch.stack((7 * right, right))
    # The means (1/2, 1/2) and (1, 0), the deviations (1/2, 1/2) and (0, 0).
    expected = 2 * math.sqrt(1 / 2)
    assert direction_distance(torch.stack((mixed, constant)), has_target=False).item() == pytest.approx(expected, 1e-5)
    assert direction_distance(torch.stack((mixed, constant)), has_target=True).item() == pytest.approx(expected, 1e-5)


@pytest.mark.parametrize("has_target", [True, False])
def test_the_distance_of_directions_knows_neither_scale_nor_number_of_features(has_target):
    torch.manual_seed(0)
    features = torch.randn(4, 16, 5, dtype=torch.float64)
    distance = direction_distance(features, has_target)
    same(direction_distance(features * torch.rand(4, 16, 1, dtype=torch.float64).exp(), has_target), distance)
    same(direction_distance(features.repeat(1, 1, 400), has_target), distance)
    assert distance < 2 * 2 * (1 + has_target)


@pytest.mark.parametrize("alignment", ["both", "adversary", "directions"])
def test_no_feature_can_shrink_away_from_its_alignment(alignment):
    """The gradient is orthogonal to each vector, so that its length is nothing to descend in."""
    batch, align = random_batch(), make_alignment(alignment=alignment)
    vectors = vectors_of(batch).requires_grad_()
    scores = torch.zeros(len(vectors), CLASSES)
    losses = align(vectors, scores, batch)
    (gradient,) = torch.autograd.grad(losses["align"], vectors)
    assert gradient.norm() > 1e-4
    assert ((gradient * vectors).sum(dim=1).abs() < 1e-9).all()
    for name, loss in align(1000 * vectors, scores, batch).items():
        same(loss, losses[name])


def test_the_moments_of_the_paper_grow_with_the_features():
    batch, align = random_batch(), make_alignment(alignment="moments", align_weight=0.5)
    vectors = vectors_of(batch)
    assert align(2 * vectors, vectors, batch)["align"] > 1.5 * align(vectors, vectors, batch)["align"]


@pytest.mark.parametrize("target", [True, False], ids=["uda", "dg"])
def test_the_adversary_learns_domains_and_the_features_unlearn_them(target):
    batch = random_batch(target=target)
    align = make_alignment(alignment="adversary", align_weight=0.3)
    vectors = vectors_of(batch).requires_grad_()
    losses = align(vectors, torch.zeros(len(vectors), CLASSES), batch)
    directions = (CHANNELS**0.5 * normalize(vectors)).detach().requires_grad_()
    by_hand = domain_loss(align.discriminator(directions), batch)
    same(losses["domain"], by_hand)
    same(losses["align"], 0.3 * by_hand)
    parameters = list(align.parameters())
    learned = torch.autograd.grad(losses["domain"], parameters, retain_graph=True)
    same(learned, torch.autograd.grad(by_hand, parameters, retain_graph=True))
    none = torch.autograd.grad(losses["align"], parameters, retain_graph=True, allow_unused=True)
    assert all(gradient is None for gradient in none)
    assert torch.autograd.grad(losses["domain"], vectors, retain_graph=True, allow_unused=True) == (None,)
    downhill = torch.autograd.grad(losses["align"], vectors, retain_graph=True)[0]
    told = align.discriminator(CHANNELS**0.5 * normalize(vectors))
    uphill = torch.autograd.grad(domain_loss(told, batch), vectors)[0]
    same(downhill, -0.3 * uphill)


@pytest.mark.parametrize("target", [True, False], ids=["uda", "dg"])
def test_a_conditional_adversary_reads_directions_times_predictions_and_sure_images_count_more(target):
    batch, align = random_batch(target=target), make_alignment(alignment="adversary", conditional=True)
    vectors, scores = vectors_of(batch), 3 * vectors_of(batch, CLASSES)
    p = scores.softmax(dim=1)
    joint = CHANNELS**0.5 * torch.einsum("bi,bk->bik", normalize(vectors), p).flatten(1)
    weights = 1 + torch.exp((p * p.log()).sum(dim=1))
    weights = torch.cat([part / part.mean() for part in batch.split(weights) if len(part)])
    losses = align(vectors, scores, batch)
    same(losses["domain"], domain_loss(align.discriminator(joint), batch, weights))
    same(losses["align"], losses["domain"])


def test_by_default_the_moments_of_directions_and_the_adversary_add_up():
    batch = random_batch()
    vectors, scores = vectors_of(batch), torch.zeros(len(batch.images), CLASSES)
    both, moments, adversary = (make_alignment(alignment=kind) for kind in ("both", "directions", "adversary"))
    of_moments, of_adversary = (align(vectors, scores, batch)["align"] for align in (moments, adversary))
    same(both(vectors, scores, batch)["align"], 0.2 * of_moments + of_adversary)


def test_without_a_target_the_default_is_the_moments_of_directions_alone():
    batch = random_batch(target=False)
    vectors, scores = vectors_of(batch), torch.zeros(len(batch.images), CLASSES)
    both, moments = (make_alignment(alignment=kind)(vectors, scores, batch) for kind in ("both", "directions"))
    assert both.keys() == moments.keys() == {"align"}
    same(both["align"], moments["align"])


@pytest.mark.parametrize("shape", [(16, 8, 8), (256, 1, 1), (64, 4, 4)], ids=str)
@pytest.mark.parametrize("alignment", ["both", "directions", "moments"])
def test_a_gate_that_learns_from_alignment_alone_does_not_close(alignment, shape):
    """500 steps, on features of which a fifth is dead; under the paper's moments a plain gate closes."""
    torch.manual_seed(0)
    per_domain, channels = 2, shape[0]
    F = torch.randn(SOURCES + 1, per_domain, *shape).relu() * torch.rand(SOURCES + 1, 1, channels, 1, 1).mul(3).exp()
    F = F.flatten(0, 1)
    F[:, ::5] = 0  # features that no image has
    batch = random_batch(per_domain)

    def kept(alignment, projected):
        options = AlignmentOptions(alignment=alignment, projected_gate=projected)
        fa, align = select_by_gate(shape, options), make_alignment(channels, alignment=alignment).float()
        optimiser = torch.optim.SGD([*fa.parameters(), *align.parameters()], lr=0.05, momentum=0.9)
        for _ in range(500):
            losses = align(fa(F).mean(dim=(2, 3)), torch.zeros(len(F), CLASSES), batch)
            optimiser.zero_grad()
            sum(losses.values()).backward()
            optimiser.step()
        return (fa(F).square().sum() / F.square().sum()).item()

    assert kept(alignment, projected=True) > 1 - 1e-3  # and so more than the third that is asked for
    if alignment == "moments":
        assert kept(alignment, projected=False) < 1 / 3


@pytest.mark.parametrize("alignment", ["both", "adversary", "directions"])
def test_an_image_without_features_does_not_outweigh_all_others(alignment):
    batch, align = random_batch(), make_alignment(alignment=alignment)
    align.pull.fill_(1e-3)

    def gradient(shrink):
        vectors = vectors_of(batch)
        vectors[0] *= shrink
        losses = align(vectors.requires_grad_(), torch.zeros(len(vectors), CLASSES), batch)
        return torch.autograd.grad(losses["align"], vectors)[0][1:].norm()

    usual = gradient(1)
    assert gradient(0) > usual / 10
    assert gradient(1e-3) > usual / 100


@pytest.mark.parametrize("name", ["far", "baseline-align", "baseline-att-align"])
def test_a_step_of_a_method_leaves_behind_how_hard_its_classifier_pulls(name):
    method = build(name)
    assert method.alignment.pull == method.alignment.sureness == 0
    sum(method.losses(make_batch()).values()).backward()
    assert method.alignment.pull > 0
    assert 0 < method.alignment.sureness < 1


def pulled(align, strength, target=True):
    """The gradients of alignment by its vectors, in two steps; C's losses pull at f with a known strength."""
    batch, pool = random_batch(target=target), Pool("average2x2", (CHANNELS, 4, 4))
    found = []
    for _ in range(2):
        vectors, f = vectors_of(batch).requires_grad_(), torch.zeros(1, 4, requires_grad=True)
        losses = align(vectors, torch.zeros(len(vectors), CLASSES), batch)
        (strength * align.watch(f, pool)).sum().backward()
        found.append(torch.autograd.grad(losses["align"], vectors)[0])
    return found


@pytest.mark.parametrize("target", [True, False], ids=["uda", "dg"])
@pytest.mark.parametrize("alignment", ["both", "adversary", "directions"])
def test_alignment_pulls_no_harder_than_the_losses_of_the_classifier(alignment, target):
    free, limited = pulled(make_alignment(alignment=alignment), 1e-4, target)
    # The gradient by f, of four values in four cells, has twice the strength; by the map it is as long as one by the
    # map's mean that is twice as long. C is as sure as if it guessed.
    sureness = 1 / CLASSES
    assert limited.norm().item() == pytest.approx(sureness * 2 * 2e-4, rel=1e-4)
    same(limited / limited.norm(), free / free.norm())


@pytest.mark.parametrize(("alignment", "limit"), [("adversary", 0.0), ("moments", 1.0), ("adversary", 1.0)])
def test_alignment_is_free_without_a_limit_as_the_papers_moments_and_where_it_pulls_less(alignment, limit):
    strength = 1e-4 if limit == 0 or alignment == "moments" else 1e4
    options = {"alignment": alignment, "pull_limit": limit}
    same(*pulled(make_alignment(**options), strength))
