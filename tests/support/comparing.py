"""What tests of several methods compare with: random numbers and equality to many digits, two sources swapped."""

import torch

from afield.data.batches import Batch


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def swap_first_sources(batch):
    """The same batch with its first two sources in the other order."""
    images, labels = batch.by_domain(batch.images), batch.by_domain(batch.labels)
    order = [1, 0, *range(2, len(images))]
    return Batch(images[order].flatten(0, 1), labels[order[: batch.num_sources]].flatten(), batch.num_sources)
