"""Epi-FCR: its losses, what each trains, and the partners of its episodes."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cross_entropy

from afield.data.batches import Batch
from support.comparing import same
from support.generalizing import LABEL_NETWORK, SOURCES, build, make_batch, reached


@pytest.mark.parametrize("bf16", [False, True])
def test_each_loss_of_epi_fcr_trains_exactly_what_its_equation_names(bf16):
    method, batch = build("epi-fcr").float(), make_batch()
    routes = {
        "classification": LABEL_NETWORK,
        "specific": {"source_backbones", "source_classifiers"},
        "epif": {"backbone"},
        "epic": {"classifier"},
        "epir": {"backbone"},
    }
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        losses = method.losses(Batch(batch.images.float(), batch.labels, SOURCES))
    assert {name: reached(method, loss) for name, loss in losses.items()} == routes
    assert method.ramped == {"epif", "epic", "epir"}


@pytest.mark.parametrize("sources", [2, 3])
def test_losses_of_epi_fcr_are_in_the_proportions_of_the_authors_code(sources):
    weights = {"feature_weight": 0.7, "classifier_weight": 0.3, "random_weight": 0.2}
    method, batch = build("epi-fcr", sources=sources, **weights), make_batch(sources=sources)
    by_hand = deepcopy(method)
    torch.manual_seed(0)
    actual = method.losses(batch)
    torch.manual_seed(0)
    images, labels = batch.by_domain(batch.images), batch.by_domain(batch.labels)
    pairs = [(int(i), j) for j, i in enumerate(by_hand.episodes(images)[0])]
    f = by_hand.pool(by_hand.backbone(batch.images))
    aggregate = specific = random = epif = epic = 0
    for i in range(sources):
        aggregate += cross_entropy(by_hand.classifier(batch.by_domain(f)[i]), labels[i])
        random += cross_entropy(by_hand.random_classifier(batch.by_domain(f)[i]), labels[i])
        own = by_hand.source_classifiers[i](by_hand.pool(by_hand.source_backbones[i](images[i])))
        specific += cross_entropy(own, labels[i])
    by_hand.source_backbones.eval()
    for i, j in pairs:  # in their mean, as one pair
        epif += cross_entropy(by_hand.source_classifiers[j](batch.by_domain(f)[i]), labels[i]) / sources
        foreign = by_hand.pool(by_hand.source_backbones[j](images[i]))
        epic += cross_entropy(by_hand.classifier(foreign), labels[i]) / sources
    authors = {"classification": aggregate, "epif": 0.7 * epif, "epic": 0.3 * epic, "epir": 0.2 * random}
    expected = {name: loss / sources for name, loss in authors.items()} | {"specific": specific}
    same(dict(sorted(actual.items())), dict(sorted(expected.items())))
    # Episodes have moved nothing of the partners: their statistics are those of their own images.
    same(method.source_backbones.state_dict(), by_hand.source_backbones.state_dict())
    assert method.source_backbones.training


@pytest.mark.parametrize("sources", [2, 3, 5])
def test_a_partner_is_never_of_the_same_source_and_all_others_have_their_turn(sources):
    method, images = build("epi-fcr", sources=sources), torch.zeros(sources, 1, 3, 12, 12, dtype=torch.float64)
    torch.manual_seed(0)
    met = torch.stack([method.episodes(images)[0] for _ in range(40)])
    for source in range(sources):
        assert set(met[:, source].tolist()) == set(range(sources)) - {source}


def test_partners_start_as_copies_of_the_aggregate_and_the_weights_are_the_authors():
    method = build("epi-fcr")
    assert len(method.source_backbones) == len(method.source_classifiers) == SOURCES
    for backbone in method.source_backbones:
        same(backbone.state_dict(), method.backbone.state_dict())
    assert list(method.options.model_dump().values()) == [2.0, 0.05, 0.1]
