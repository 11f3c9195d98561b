"""CCSA: the pairs that it pulls together and pushes apart, and their weights."""

from itertools import combinations

import pytest
import torch
from torch import tensor
from torch.nn.functional import cross_entropy, normalize

from afield.losses import contrastive_alignment
from support.comparing import same
from support.generalizing import build, make_batch, reached


def pairwise(features, labels, margin):
    """The two means of the formula, a pair at a time."""
    aligned, separated = [], []
    for (i, a), (j, b) in combinations([(d, k) for d in range(len(labels)) for k in range(len(labels[0]))], 2):
        if i == j:
            continue
        distance = (features[i, a] - features[j, b]).norm()
        if labels[i, a] == labels[j, b]:
            aligned.append(0.5 * distance**2)
        else:
            separated.append(0.5 * max(0.0, margin - distance) ** 2)
    return sum(aligned) / max(1, len(aligned)), sum(separated) / max(1, len(separated))


@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_contrastive_alignment_is_the_mean_over_cross_domain_pairs(margin):
    torch.manual_seed(0)
    features, labels = torch.randn(3, 4, 2, dtype=torch.float64), torch.randint(3, (3, 4))
    same(contrastive_alignment(features, labels, margin), pairwise(features, labels, margin))


def test_alignment_and_separation_have_known_values():
    # One class 3 apart; another class 0.6 from it, within a margin of 1, and one 10 away, beyond it.
    features = tensor([[[0.0, 0.0]] * 3, [[3.0, 0.0], [0.0, 0.6], [10.0, 0.0]]])
    alignment, separation = contrastive_alignment(features, tensor([[0, 0, 0], [0, 1, 2]]))
    assert alignment.item() == pytest.approx(9 / 2)
    assert separation.item() == pytest.approx(0.4**2 / 2 / 2)
    # What lies in one domain makes no pair.
    assert contrastive_alignment(tensor([[[0.0], [9.0]], [[5.0], [5.0]]]), tensor([[0, 0], [1, 1]])) == (0, 0)


def test_alignment_pulls_and_separation_pushes_even_where_features_agree():
    labels = tensor([[0], [0]])
    features = tensor([[[0.0]], [[2.0]]], requires_grad=True)
    same(torch.autograd.grad(contrastive_alignment(features, labels)[0], features)[0], tensor([[[-2.0]], [[2.0]]]))
    near = tensor([[[0.0]], [[0.25]]], requires_grad=True)
    pushed = torch.autograd.grad(contrastive_alignment(near, tensor([[0], [1]]))[1], near)[0]
    same(pushed, tensor([[[0.75]], [[-0.75]]]))  # a descent moves them apart
    equal = torch.zeros(2, 3, 4, requires_grad=True)
    sum(contrastive_alignment(equal, tensor([[0, 0, 1], [0, 1, 1]]))).backward()
    assert equal.grad.isfinite().all()


def test_ccsa_weighs_its_losses_as_the_authors_mean_over_one_to_three_pairs():
    method, batch = build("ccsa", alpha=0.4, margin=2.0), make_batch()
    features = method.pool(method.backbone(batch.images))
    pulled, pushed = pairwise(batch.by_domain(normalize(features)), batch.by_domain(batch.labels), 2.0)
    losses = method.losses(batch)
    same(losses["classification"], 0.6 * cross_entropy(method.classifier(features), batch.labels))
    # Squares without their halves, in one mean over a pair of one class and three of different classes.
    same(losses["alignment"], 0.4 * (2 * pulled) / 4)
    same(losses["separation"], 0.4 * 3 * (2 * pushed) / 4)
    assert reached(method, losses["alignment"]) == {"backbone"}
    assert method.ramped == {"alignment", "separation"}


def test_ccsa_compares_directions_so_that_the_margin_means_the_same_for_features_of_any_length():
    method, batch = build("ccsa"), make_batch()
    F = method.backbone(batch.images)
    losses, of_longer = method.losses_of(F, batch), method.losses_of(100 * F, batch)
    same((of_longer["alignment"], of_longer["separation"]), (losses["alignment"], losses["separation"]))
    assert losses["separation"] > 0
