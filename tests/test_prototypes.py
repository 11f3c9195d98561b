"""The loss of prototypes: classes of other domains, and only what is known of them."""

import torch

from afield.losses import prototype_loss
from support.comparing import normal, same

DOMAINS, PER_DOMAIN, CHANNELS, CLASSES = 3, 8, 6, 4


def features_and_members():
    features, classes = normal(DOMAINS, PER_DOMAIN, CHANNELS), torch.arange(PER_DOMAIN) % CLASSES
    return features, torch.nn.functional.one_hot(classes, CLASSES).double().expand(DOMAINS, -1, -1).clone()


def by_hand(features, members):
    unit, total = features / features.norm(dim=2, keepdim=True), 0.0
    for domain in range(DOMAINS):
        others = [other for other in range(DOMAINS) if other != domain]
        means = [sum(unit[o][members[o, :, k] > 0].sum(dim=0) for o in others) for k in range(CLASSES)]
        means = torch.stack([mean / mean.norm() for mean in means])
        for vector, member in zip(unit[domain], members[domain], strict=True):
            total = total - torch.log_softmax(means @ vector / 0.1, dim=0)[member.argmax()]
    return total / (DOMAINS * PER_DOMAIN)


def test_it_is_cross_entropy_against_the_mean_directions_of_other_domains():
    features, members = features_and_members()
    same(prototype_loss(features, members), by_hand(features, members))


def test_lengths_of_features_do_not_matter():
    features, members = features_and_members()
    lengths = 1 + normal(DOMAINS, PER_DOMAIN, 1).abs()
    same(prototype_loss(features * lengths, members), prototype_loss(features, members))


def test_mixed_precision_leaves_the_loss_and_its_gradient_as_they_are():
    features, members = features_and_members()
    found = []
    for mixed in (False, True):
        leaf = features.float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = prototype_loss(leaf, members.float())
        found.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    same(*found)


def test_the_prototypes_are_constants():
    features, members = features_and_members()
    members[1:] = members[1:] * 0  # nothing is known of the classes of two domains
    members[1, 0, 2] = 1
    features.requires_grad_()
    (gradient,) = torch.autograd.grad(prototype_loss(features, members), features)
    counted = gradient.norm(dim=2) > 0
    expected = torch.zeros(DOMAINS, PER_DOMAIN, dtype=torch.bool)
    expected[1, 0] = True
    expected[0, [2, 6]] = True  # the first domain has that class in another, and no other class
    assert counted.equal(expected)


def test_classes_that_occur_in_no_other_domain_teach_nothing():
    features, members = features_and_members()
    assert prototype_loss(features[:1], members[:1]) == 0


def test_domains_whose_classes_agree_have_less_loss_than_domains_whose_classes_are_exchanged():
    _, members = features_and_members()
    agreed, exchanged = members.clone(), members.clone()
    exchanged[0] = exchanged[0].roll(1, dims=1)
    assert prototype_loss(agreed, members) < 0.01 < prototype_loss(exchanged, members)
