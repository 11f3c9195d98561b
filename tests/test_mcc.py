"""MCC: the class confusion of a batch of predictions, and where the method asks for less of it."""

import math

import pytest
import torch
from torch import tensor
from torch.nn.functional import cross_entropy

from afield.losses import class_confusion, entropy
from support.adversarial import build, gradients, make_batch
from support.comparing import normal, same


def as_in_the_paper(logits, temperature):
    """Step by step: rescaling, class correlation, weights by certainty, category normalisation."""
    p = (logits / temperature).softmax(dim=1)
    H = -(p * p.log()).sum(dim=1)
    w = len(p) * (1 + torch.exp(-H)) / (1 + torch.exp(-H)).sum()
    C = p.T @ torch.diag(w) @ p
    C = C / C.sum(dim=1, keepdim=True)
    return (C.sum() - C.trace()) / len(C)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_it_is_the_papers_formula(temperature):
    torch.manual_seed(0)
    logits = 3 * normal(7, 4)
    same(class_confusion(logits, temperature), as_in_the_paper(logits, temperature))


def test_two_unsure_predictions_in_closed_form():
    # p = (a, b) and (b, a) have one entropy, so that weights cancel: C has a^2 + b^2 beside 2 a b, and rows sum to 1.
    a, b = 0.8, 0.2
    logits = tensor([[a, b], [b, a]], dtype=torch.float64).log()
    assert class_confusion(logits, 1.0).item() == pytest.approx(2 * a * b)
    # At temperature 2 the odds are the root: 2 to 1.
    assert class_confusion(logits, 2.0).item() == pytest.approx(2 * (2 / 3) * (1 / 3))


def test_it_lies_between_certain_predictions_and_those_that_know_nothing():
    certain = 1000 * torch.eye(4, dtype=torch.float64)
    assert class_confusion(certain).item() == pytest.approx(0)
    assert class_confusion(torch.zeros(5, 4)).item() == pytest.approx(3 / 4)


def test_neither_the_order_of_images_nor_that_of_classes_matters():
    torch.manual_seed(0)
    logits = normal(6, 4)
    same(class_confusion(logits[torch.randperm(6)][:, torch.randperm(4)]), class_confusion(logits))


def test_batches_are_measured_each_on_its_own():
    scores = torch.randn(3, 8, 5, dtype=torch.float64)
    same(class_confusion(scores), torch.stack([class_confusion(batch) for batch in scores]))


def test_weights_by_certainty_are_constants():
    torch.manual_seed(0)
    logits = normal(6, 4).requires_grad_()
    w = 1 + torch.exp(-entropy(logits / 2.5)).detach()
    p = (logits / 2.5).softmax(dim=1)
    C = (w[:, None] * p).T @ p
    same(gradients(class_confusion(logits), [logits]), gradients(1 - (C.diagonal() / C.sum(dim=1)).mean(), [logits]))


def test_the_method_asks_for_it_on_the_target_alone():
    method, batch = build("mcc", confusion_weight=0.4, temperature=2.0), make_batch()
    losses = method.losses(batch)
    source, target = batch.split(method.classifier(method.pool(method.backbone(batch.images))))
    same(losses, {
        "classification": cross_entropy(source, batch.labels), "confusion": 0.4 * class_confusion(target, 2.0),
    })  # fmt: skip
    assert method.ramped == {"confusion"}


def test_it_stays_finite_in_float32_where_a_class_is_never_predicted():
    logits = torch.tensor([[400.0, 0.0, 0.0], [400.0, 0.0, 0.0]], requires_grad=True)
    loss = class_confusion(logits)
    assert math.isfinite(loss.item())
    assert gradients(loss, [logits])[0].isfinite().all()
