"""What the tests of DANN, CDAN, ADDA, DCTN, MME and MCC share: small methods, a batch for them, gradients of a loss."""

import torch

from afield.data.batches import Batch
from afield.methods.create import create_method

SOURCES, PER_DOMAIN, CLASSES = 3, 4, 3


def build(name, *, sources=SOURCES, hidden=(), **options):
    """In double precision, so that what is equal on paper is equal to many digits here."""
    torch.manual_seed(0)
    if name not in ("mme", "mcc"):
        options = {"discriminator_width": 16} | options
    network = {"width": 8, "hidden": list(hidden)}
    method = create_method(name, num_classes=CLASSES, num_sources=sources, image_size=8, network=network, **options)
    method.phase = 1 if name == "dctn" else 0  # before that it is a classifier of each source
    return method.double()


def make_batch(target=True):
    torch.manual_seed(1)
    domains = SOURCES + target
    images = torch.randn(domains, PER_DOMAIN, 3, 8, 8, dtype=torch.float64)
    images = images + torch.arange(domains).view(-1, 1, 1, 1, 1) / 2
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (SOURCES * PER_DOMAIN,)), SOURCES)


def gradients(loss, parameters):
    return torch.autograd.grad(loss, list(parameters), retain_graph=True, allow_unused=True, materialize_grads=True)
