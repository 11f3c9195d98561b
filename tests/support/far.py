"""What the tests of FAR and FAR+ share: small methods, a batch for them, and the paper's maps by hand."""

import torch

from afield.data.batches import Batch
from afield.methods.create import create_method

SOURCES, PER_DOMAIN, CLASSES = 3, 3, 4


def build(name="far", *, hidden=(), **options):
    """In double precision, so that what is equal on paper is equal to many digits here."""
    torch.manual_seed(0)
    network = {"width": 8, "hidden": list(hidden)}
    return create_method(name, num_classes=CLASSES, num_sources=SOURCES, network=network, **options).double()


def make_batch(target=True):
    """Domains that differ in mean and contrast, so that there is something to align."""
    torch.manual_seed(1)
    domains = SOURCES + target
    images = torch.randn(domains, PER_DOMAIN, 3, 32, 32, dtype=torch.float64)
    images = images * torch.linspace(0.5, 2, domains).view(-1, 1, 1, 1, 1) + torch.arange(domains).view(-1, 1, 1, 1, 1)
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (SOURCES * PER_DOMAIN,)), SOURCES)


def by_hand(method, images):
    """F, A, R+ and R- from the method's parts, by the paper's formulas."""
    F = method.backbone(images)
    A = method.fa(F)
    gate = method.fr(F - A)
    return F, A, gate * (F - A), (1 - gate) * (F - A)


def classify(method, features):
    return method.classifier(method.pool(features))
