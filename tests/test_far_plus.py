"""FAR+: what it adds to FAR's losses, by hand; and strong views."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from support.far import PER_DOMAIN, SOURCES, build, by_hand, classify, make_batch

LABELLED = SOURCES * PER_DOMAIN


def batch_of_known_views():
    """A batch whose strong views can be made again: the negatives."""
    return replace(make_batch(), strong_view=torch.neg)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.99])
def test_confident_predictions_on_plain_images_are_the_labels_of_their_strong_views(threshold):
    method, batch = build("far+", threshold=threshold, self_training_weight=2.0), batch_of_known_views()
    target = batch.images[LABELLED:]
    _, A, R_plus, _ = by_hand(method, torch.cat((batch.images, -target)))
    scores = classify(method, A + R_plus)
    plain, strong = scores[LABELLED : LABELLED + PER_DOMAIN], scores[LABELLED + PER_DOMAIN :]
    confidence, labels = plain.softmax(dim=1).max(dim=1)
    believed = (confidence >= threshold).double()
    expected = 2 * (believed * cross_entropy(strong, labels, reduction="none")).sum() / PER_DOMAIN
    torch.testing.assert_close(method.losses(batch)["self_training"], expected)


def test_labels_are_not_taught_by_those_who_learn_from_them():
    method, batch = build("far+", threshold=0.0), batch_of_known_views()
    images = batch.images.clone().requires_grad_()
    method.eval()  # in training, batch norm ties every image to every other
    method.losses(replace(batch, images=images))["self_training"].backward()
    method.train()
    by_view = torch.autograd.grad(
        cross_entropy(method.eval()(-images[LABELLED:]), method(images[LABELLED:]).argmax(dim=1)), images
    )[0]
    torch.testing.assert_close(images.grad, by_view)


def test_far_plus_keeps_fars_own_losses():
    # Evaluated as at inference: in training, batch norm lets the views change what is seen of the images.
    batch, options = batch_of_known_views(), {"dre_balance": 0.5}
    far, plus = build("far", **options).eval(), build("far+", **options).eval()
    plus.load_state_dict(far.state_dict())
    losses, more = far.losses(batch), plus.losses(batch)
    assert more.keys() - losses.keys() == {"self_training"}
    for name, value in losses.items():
        torch.testing.assert_close(more[name], value)


def test_without_a_target_strong_views_of_the_sources_have_the_labels_of_their_images():
    batch = replace(make_batch(target=False), strong_view=torch.neg)
    method = build("far+", strong_views_weight=2.0).eval()
    losses = method.losses(batch)
    torch.testing.assert_close(losses["strong_views"], 2 * cross_entropy(method(-batch.images), batch.labels))
    far = build("far").eval()
    far.load_state_dict(method.state_dict())
    plain = far.losses(batch)
    assert losses.keys() - plain.keys() == {"strong_views"}
    for name, value in plain.items():
        torch.testing.assert_close(losses[name], value)
