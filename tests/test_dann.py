"""DANN: the reversal and the discriminator it is made of, and its equations."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from afield.methods.dann import domain_loss
from afield.networks import Discriminator, reverse_gradient
from support.adversarial import PER_DOMAIN, SOURCES, build, gradients, make_batch
from support.comparing import same, swap_first_sources

# The reversal and the discriminator.


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, 2.5])
def test_reversal_changes_the_sign_and_scale_of_the_gradient_and_nothing_else(weight):
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = reverse_gradient(x, weight)
    assert torch.equal(y, x)
    (plain,) = gradients((x**3).sum(), [x])
    (turned,) = gradients((y**3).sum(), [x])
    same(turned, -weight * plain)
    (twice,) = gradients((reverse_gradient(y, 2.0) ** 3).sum(), [x])
    same(twice, 2 * weight * plain)


def test_reversal_and_discriminator_are_one_graph_for_the_compiler():
    network = Discriminator(3, 8)

    def loss(x):
        return network(reverse_gradient(x, 0.5)).square().mean()

    x = torch.randn(5, 3, requires_grad=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(x), [x]), gradients(loss(x), [x]))
    torch.testing.assert_close(gradients(loss(x), [x])[0], -0.5 * gradients(network(x).square().mean(), [x])[0])


def test_a_discriminator_keeps_float32_in_autocast():
    network, x = Discriminator(3, 8, 2), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(x)
        assert network(x.bfloat16()).dtype == torch.float32
    assert torch.equal(scores, network(x))
    assert scores.shape == (5, 2)


# DANN.


def test_a_discriminator_at_chance_loses_log_2_in_uda_and_log_n_in_dg():
    scores = torch.zeros((SOURCES + 1) * PER_DOMAIN, SOURCES)
    assert domain_loss(scores, make_batch()).item() == pytest.approx(math.log(2))
    assert domain_loss(scores[PER_DOMAIN:], make_batch(target=False)).item() == pytest.approx(math.log(SOURCES))


def test_the_pooled_sources_weigh_as_much_as_the_target():
    # p(target) = 0.8 everywhere: the sources' images lose -log 0.2, the target's -log 0.8.
    scores = torch.tensor([0.2, 0.8, 1e9]).log().expand((SOURCES + 1) * PER_DOMAIN, 3)
    expected = -(math.log(0.2) + math.log(0.8)) / 2
    assert domain_loss(scores, make_batch()).item() == pytest.approx(expected)


@pytest.mark.parametrize("target", [True, False], ids=["uda", "dg"])
def test_dann_descends_along_the_papers_gradient_with_only_the_reversal_ramped(target):
    ramp, weight = 0.3, 0.7
    method, batch = build("dann", adversary_weight=weight), make_batch(target)
    losses = method.losses(batch)
    assert method.ramped == {"adversary"}
    total = losses["classification"] + losses["domain"] + ramp * losses["adversary"]

    vectors = method.pool(method.backbone(batch.images))
    L_y = cross_entropy(method.classifier(vectors[: batch.num_labelled]), batch.labels)
    L_d = domain_loss(method.discriminator(vectors), batch)
    same((losses["domain"], losses["adversary"]), (L_d, L_d))
    backbone, head, D = (list(part.parameters()) for part in (method.backbone, method.classifier, method.discriminator))
    same(gradients(total, backbone), gradients(L_y - ramp * weight * L_d, backbone))
    same(gradients(total, head), gradients(L_y, head))
    same(gradients(total, D), gradients(L_d, D))


def test_swapping_two_sources_swaps_danns_scores_of_them_in_dg():
    method, other, batch = build("dann"), build("dann"), make_batch(target=False)
    with torch.no_grad():
        for parameter in other.discriminator[-1].parameters():
            parameter[:2] = parameter[:2].flip(0)
    same(other.losses(swap_first_sources(batch)), method.losses(batch))
