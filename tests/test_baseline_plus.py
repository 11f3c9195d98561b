"""Baseline+: what it adds to the baseline, by hand, with a target and without."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from support.far import PER_DOMAIN, SOURCES, build, make_batch

LABELLED = SOURCES * PER_DOMAIN


def known_views(**having):
    """A batch whose strong views can be made again: the negatives."""
    return replace(make_batch(**having), strong_view=torch.neg)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.99])
def test_it_is_fixmatch_on_the_target(threshold):
    method, batch = build("baseline+", threshold=threshold, self_training_weight=2.0).eval(), known_views()
    target, losses = batch.images[LABELLED:], method.losses(batch)
    confidence, guesses = method(target).softmax(dim=1).max(dim=1)
    believed = (confidence >= threshold).double()
    expected = 2 * (believed * cross_entropy(method(-target), guesses, reduction="none")).sum() / PER_DOMAIN
    torch.testing.assert_close(losses["self_training"], expected)
    torch.testing.assert_close(losses["classification"], cross_entropy(method(batch.images[:LABELLED]), batch.labels))
    assert len(losses) == 2


def test_without_a_target_it_learns_the_sources_images_and_strong_views_of_them():
    method, batch = build("baseline+", strong_views_weight=2.0).eval(), known_views(target=False)
    losses = method.losses(batch)
    torch.testing.assert_close(losses["classification"], cross_entropy(method(batch.images), batch.labels))
    torch.testing.assert_close(losses["strong_views"], 2 * cross_entropy(method(-batch.images), batch.labels))
    assert len(losses) == 2


@pytest.mark.parametrize("target", [True, False])
def test_it_learns_of_views_what_far_plus_learns(target):
    batch, far, plus = known_views(target=target), build("far+").eval(), build("baseline+").eval()
    # The same scores from both: one class for all images, whatever the network sees.
    for method in (far, plus):
        torch.nn.init.zeros_(method.classifier[-1].weight)
        torch.nn.init.constant_(method.classifier[-1].bias, 0.0)
        method.classifier[-1].bias.data[1] = 5.0
    name = "self_training" if target else "strong_views"
    torch.testing.assert_close(far.losses(batch)[name], plus.losses(batch)[name])
