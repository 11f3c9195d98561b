"""What the tests of CCSA, JiGen, CrossGrad and Epi-FCR share: small methods, a batch for them, what a loss trains."""

import torch

from afield.data.batches import Batch
from afield.methods.create import create_method

SOURCES, PER_DOMAIN, CLASSES = 3, 5, 4
LABEL_NETWORK = {"backbone", "classifier"}


def build(name, *, sources=SOURCES, hidden=(), **options):
    """In double precision, so that what is equal on paper is equal to many digits here."""
    torch.manual_seed(0)
    network = {"width": 8, "hidden": list(hidden)}
    return create_method(
        name, num_classes=CLASSES, num_sources=sources, image_size=12, network=network, **options
    ).double()


def make_batch(target=False, sources=SOURCES):
    torch.manual_seed(1)
    images = torch.randn(sources + target, PER_DOMAIN, 3, 12, 12, dtype=torch.float64)
    images += torch.arange(sources + target).view(-1, 1, 1, 1, 1)
    return Batch(images.flatten(0, 1), torch.randint(CLASSES, (sources * PER_DOMAIN,)), sources)


def reached(method, loss):
    """The parts of which one loss trains a parameter."""
    grads = torch.autograd.grad(loss, trained(method).values(), retain_graph=True, allow_unused=True)
    names = zip(trained(method), grads, strict=True)
    return {name.split(".")[0] for name, grad in names if grad is not None and grad.abs().max() > 0}


def trained(method):
    return {name: p for name, p in method.named_parameters() if p.requires_grad}
