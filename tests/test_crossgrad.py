"""CrossGrad: how far it moves an image, and what each of its networks learns from images moved by the other."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from afield.methods.crossgrad import FURTHEST
from support.comparing import same
from support.generalizing import LABEL_NETWORK, PER_DOMAIN, SOURCES, build, make_batch, reached


def domain_loss(method, images):
    domains = torch.arange(SOURCES).repeat_interleave(len(images) // SOURCES)
    return cross_entropy(method.domain_network(images), domains)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_the_perturbation_raises_the_domain_loss_by_its_squared_gradient(epsilon):
    method, x = build("crossgrad", epsilon=epsilon), make_batch().images.requires_grad_()
    loss = domain_loss(method, x)
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    moved = method.moved(x, loss)
    assert not moved.requires_grad
    rise = (domain_loss(method, moved) - loss).item()
    assert rise > 0
    assert rise == pytest.approx(epsilon * len(x) * gradient.square().sum().item(), rel=0.05)


def test_an_image_moves_by_its_own_loss_whatever_the_batch_and_never_too_far():
    method = build("crossgrad", epsilon=2.0)
    method.domain_network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, SOURCES).double())
    images = make_batch().images
    moves = []
    for part in (images, images[:1]):
        x = part.clone().requires_grad_()
        labels = torch.zeros(len(x), dtype=torch.int64)
        moves.append(method.moved(x, cross_entropy(method.domain_network(x), labels))[:1] - images[:1])
    same(*moves)
    assert moves[0].abs().max() > 0
    x = images.clone().requires_grad_()
    assert (method.moved(x, 1e6 * domain_loss(method, x)) - images).abs().max().item() == pytest.approx(FURTHEST)


def test_crossgrad_trains_each_network_on_images_moved_by_the_other():
    method, batch = build("crossgrad", alpha=0.2, epsilon=0.5), make_batch()
    x, domains = batch.images.clone().requires_grad_(), torch.arange(SOURCES).repeat_interleave(PER_DOMAIN)
    plain_labels, plain_domains = cross_entropy(method(x), batch.labels), domain_loss(method, x)
    x_d, x_l = (
        (x + 0.5 * len(x) * torch.autograd.grad(loss, x)[0].clamp(-2 / len(x), 2 / len(x))).detach()
        for loss in (plain_domains, plain_labels)
    )
    losses = method.losses(batch)
    expected = {
        "classification": 0.8 * cross_entropy(method(batch.images), batch.labels),
        "moved_classification": 0.2 * cross_entropy(method(x_d), batch.labels),
        "domain": 0.8 * domain_loss(method, batch.images),
        "moved_domain": 0.2 * cross_entropy(method.domain_network(x_l), domains),
    }
    same(losses, expected)
    for name, loss in losses.items():
        assert reached(method, loss) == ({"domain_network"} if "domain" in name else LABEL_NETWORK)
        ours, theirs = (
            torch.autograd.grad(value, list(method.parameters()), retain_graph=True, allow_unused=True)
            for value in (loss, expected[name])
        )
        same(ours, theirs)  # and so the moves are constants


def test_without_a_step_crossgrad_learns_labels_as_the_baseline_does():
    method, baseline, batch = build("crossgrad", epsilon=0.0), build("baseline"), make_batch()
    baseline.load_state_dict({k: v for k, v in method.state_dict().items() if not k.startswith("domain_network")})
    losses = method.losses(batch)
    same(losses["classification"] + losses["moved_classification"], baseline.losses(batch)["classification"])
