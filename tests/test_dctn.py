"""DCTN: the votes of its sources, the confusion of the hardest, and the labels that confident votes give."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus

from support.adversarial import CLASSES, PER_DOMAIN, SOURCES, build, gradients, make_batch
from support.comparing import same


def test_votes_weigh_by_perplexity_and_sum_to_1():
    method = build("dctn")
    told = torch.randn(SOURCES, 7, dtype=torch.float64) * 5
    method.concentration.copy_(torch.tensor([[0.1], [0.5], [2.0]]))
    D = told.sigmoid()
    S = -(1 - D).log() + method.concentration
    same(method.weights(told), S / S.sum(dim=0))
    same(method.weights(told).sum(dim=0), torch.ones(7, dtype=torch.float64))
    # A target image that looks more like a source lends it more weight.
    nearer = method.weights(told + torch.tensor([[1.0], [0.0], [0.0]]))
    assert (nearer[0] > method.weights(told)[0]).all()
    assert (nearer.sum(dim=0) - 1).abs().max() < 1e-12


def test_votes_of_any_discriminators_sum_to_1():
    # A D_j that is sure of "target" in float32, and a source it never errs on, must not leave 0 / 0.
    method = build("dctn").float()
    method.concentration.fill_(1e-6)
    weights = method.weights(torch.tensor([[-200.0, 200.0], [-200.0, -200.0], [-200.0, 0.0]]))
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(2))


def test_the_vote_is_the_weighted_mean_of_the_sources_predictions():
    method = build("dctn").eval()
    told, scores = torch.randn(SOURCES, 5).double(), torch.randn(SOURCES, 5, CLASSES).double()
    expected = (method.weights(told)[..., None] * scores.softmax(dim=-1)).sum(dim=0)
    same(method.vote(told, scores).exp(), expected)
    same(expected.sum(dim=1), torch.ones(5, dtype=torch.float64))

    images = make_batch().images
    vectors = method.pool(method.backbone(images))
    told = torch.stack([D(vectors)[:, 0] for D in method.discriminators])
    same(method(images), method.vote(told, torch.stack([C(vectors) for C in method.classifier])))


def test_concentration_is_a_running_average_of_the_discriminators_losses_on_their_sources():
    method, batch = build("dctn"), make_batch()
    vectors = batch.by_domain(method.pool(method.backbone(batch.images)))
    on_source = torch.stack([softplus(-D(v)).mean() for D, v in zip(method.discriminators, vectors, strict=False)])
    method.losses(batch)
    torch.testing.assert_close(method.concentration[:, 0], 0.99 * math.log(2) + 0.01 * on_source.detach())
    assert "concentration" in method.state_dict()


def dctn_by_hand(method, batch):
    """Per source: D_j's loss and its confusion."""
    *sources, target = batch.by_domain(method.pool(method.backbone(batch.images)))
    losses, confusions = [], []
    for D, source in zip(method.discriminators, sources, strict=True):
        p_source, p_target = D(source).sigmoid(), D(target).sigmoid()
        losses.append(-p_source.log().mean() - (1 - p_target).log().mean())
        both = torch.cat((p_source, p_target))
        confusions.append(-(both.log() + (1 - both).log()).mean() / 2)
    return torch.stack(losses), torch.stack(confusions)


@pytest.mark.parametrize("hardest", range(SOURCES))
def test_the_hardest_source_is_confused(hardest):
    method, batch = build("dctn"), make_batch()
    with torch.no_grad():
        method.discriminators[hardest][-1].bias.fill_(3.0)  # says "source" of the target too
    losses, (discriminators, confusions) = method.losses(batch), dctn_by_hand(method, batch)
    assert discriminators.argmax() == hardest
    same(losses["discriminators"], discriminators.sum())
    # As the classifiers' losses are a mean where the paper has a sum, confusion is a share.
    same(losses["confusion"], confusions[hardest] / SOURCES)
    same(
        gradients(losses["confusion"], method.backbone.parameters()),
        gradients(confusions[hardest] / SOURCES, method.backbone.parameters()),
    )


def test_dctn_first_learns_the_sources_labels_while_its_discriminators_learn_beside_it():
    method, batch = build("dctn"), make_batch()
    whole = method.losses(batch)
    method.phase = 0
    first = method.losses(batch)
    assert first.keys() == {"classification", "discriminators"}
    same(first, {name: whole[name] for name in first})
    assert not any(g.any() for g in gradients(first["discriminators"], method.backbone.parameters()))


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0])
def test_a_weight_of_confusion_is_that_beside_the_mean_of_the_classifiers_losses(weight):
    batch = make_batch()
    usual, weighed = build("dctn").losses(batch), build("dctn", confusion_weight=weight).losses(batch)
    same(weighed, usual | {"confusion": weight * SOURCES * usual["confusion"]})


def test_dctns_classifiers_read_no_target_before_its_labels_are_learned():
    method, batch = build("dctn", hidden=(5,)), make_batch()
    seen = []
    for classifier in method.classifier:
        classifier.register_forward_hook(lambda _, read, __: seen.append(len(read[0])))
    for phase in (0, 1):
        method.phase = phase
        method.losses(batch)
    assert seen == [PER_DOMAIN] * SOURCES + [2 * PER_DOMAIN] * SOURCES


def test_confusion_is_least_where_the_discriminator_is_at_chance():
    method, batch = build("dctn"), make_batch()
    for D in method.discriminators:
        for parameter in D[-1].parameters():
            nn.init.zeros_(parameter)
    assert method.losses(batch)["confusion"].item() == pytest.approx(math.log(2) / SOURCES)
    torch.testing.assert_close(method.weights(torch.zeros(SOURCES, 2)).float(), torch.full((SOURCES, 2), 1 / SOURCES))


def test_every_classifier_learns_the_labels_of_confident_votes_only():
    batch = make_batch()
    assert build("dctn").losses(batch)["pseudo_labels"] == 0  # nothing is learned yet, and nothing sure
    method = build("dctn", threshold=0.0)
    target = batch.by_domain(method.pool(method.backbone(batch.images)))[-1]
    scores = torch.stack([C(target) for C in method.classifier])
    every_vote = method.losses(batch)["pseudo_labels"]
    # The vote is by the concentration after the batch.
    told = torch.stack([D(target)[:, 0] for D in method.discriminators])
    confidence, labels = method.vote(told, scores).exp().max(dim=1)
    learned = torch.stack([cross_entropy(s, labels, reduction="none") for s in scores]).mean(dim=0)
    same(every_vote, learned.mean())

    believed = confidence >= confidence.median()
    assert 0 < believed.sum() < PER_DOMAIN
    method = build("dctn", threshold=confidence.median().item())
    # Over all target images: the fewer are believed, the less they weigh.
    same(method.losses(batch)["pseudo_labels"], learned[believed].sum() / PER_DOMAIN)
    assert method.ramped == {"confusion", "pseudo_labels"}
