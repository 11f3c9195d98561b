"""DAEL: its three losses by hand, who teaches whom, and what it sees."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from afield.data.batches import Batch
from afield.methods.create import create_method
from support.comparing import same

SOURCES, PER_DOMAIN, CLASSES = 3, 4, 5


def build(**options):
    torch.manual_seed(0)
    method = create_method("dael", num_classes=CLASSES, num_sources=SOURCES, network={"width": 8}, **options)
    return method.double()


def make_batch(target=True):
    torch.manual_seed(1)
    images = torch.randn((SOURCES + target) * PER_DOMAIN, 3, 32, 32, dtype=torch.float64)
    # A view that is known: the images in negative.
    return Batch(images, torch.randint(CLASSES, (SOURCES * PER_DOMAIN,)), SOURCES, torch.neg)


def predictions(method, images):
    """(experts, domains, b, classes), in evaluation, where an image's prediction does not depend on the others."""
    vectors = method.pool(method.backbone(images))
    return torch.stack([expert(vectors).softmax(dim=1) for expert in method.classifier]).view(
        SOURCES, -1, PER_DOMAIN, CLASSES
    )


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.9])
def test_losses_are_those_of_the_paper(threshold):
    method, batch = build(threshold=threshold, target_weight=0.3).eval(), make_batch()
    plain, strong = predictions(method, batch.images), predictions(method, -batch.images)
    labels = batch.labels.view(SOURCES, PER_DOMAIN)
    ce = cr = u = 0
    for i in range(SOURCES):
        ce += -plain[i, i].log()[torch.arange(PER_DOMAIN), labels[i]].mean() / SOURCES
        others = sum(strong[j, i] for j in range(SOURCES) if j != i) / (SOURCES - 1)
        cr += (others - plain[i, i]).square().sum(dim=1).mean() / SOURCES
    for image in range(PER_DOMAIN):
        said = plain[:, SOURCES, image]
        if said.max() >= threshold:
            label = int(said.max(dim=0).values.argmax())
            u += -strong[:, SOURCES, image].mean(dim=0).log()[label] / PER_DOMAIN
    losses = method.losses(batch)
    same(losses["classification"], ce)
    same(losses["collaboration"], cr)
    same(losses["pseudo_labels"], 0.3 * torch.as_tensor(u, dtype=torch.float64))


def test_without_a_target_there_are_no_labels_to_guess():
    method, batch = build(), make_batch(target=False)
    assert list(method.losses(batch)) == ["classification", "collaboration"]
    assert len(method.images(batch)) == 2 * SOURCES * PER_DOMAIN


def test_an_expert_that_teaches_is_not_taught_by_its_pupils():
    method, batch = build().eval(), make_batch(target=False)
    scores = torch.randn(SOURCES, SOURCES * PER_DOMAIN, CLASSES, dtype=torch.float64, requires_grad=True)
    views = torch.randn_like(scores, requires_grad=True)
    own = batch.own(scores)
    method.collaboration(own, views, batch).backward()
    assert scores.grad is None
    reached = views.grad.abs().sum(dim=-1).view(SOURCES, SOURCES, PER_DOMAIN) > 0
    assert torch.equal(reached.all(dim=2), ~torch.eye(SOURCES, dtype=torch.bool))


def test_inference_averages_the_experts():
    method, images = build().eval(), make_batch().images
    same(method(images).exp(), predictions(method, images).mean(dim=0).flatten(0, 1))
    labels = torch.zeros(len(images), dtype=torch.int64)
    same(cross_entropy(method(images), labels), -(method(images) * one_hot(labels, CLASSES)).sum(dim=1).mean())


@pytest.mark.parametrize("kind", ["each", "apart"])
@pytest.mark.parametrize("target", [True, False])
def test_batch_norm_of_each_domain_knows_its_views(kind, target):
    torch.manual_seed(0)
    network = {"width": 8, "batch_norm": kind, "hidden": [6]}
    method = create_method("dael", num_classes=CLASSES, num_sources=SOURCES, network=network)
    batch = make_batch(target)
    method.layout.note(SOURCES, PER_DOMAIN, target)
    b, rows = PER_DOMAIN, len(method.images(batch))
    expected = {
        ("each", True): [b] * 8,
        ("each", False): [b] * 6,
        ("apart", True): [3 * b, 2 * b, 3 * b],
        ("apart", False): [6 * b],
    }[kind, target]
    assert method.layout.divide(rows) == expected
