"""Moment matching: how far apart the raw moments of all domains are, source from target and source from source."""

import torch
from torch import Tensor

from afield.precision import at_least_float32


def raw_moment_distance(features: Tensor, orders: int = 2) -> Tensor:
    r"""M3SDA's MD^2 over one batch (Peng et al. 2019, Definition 1).

    .. math::
        \sum_{k=1}^{2} \Big( \frac1N \sum_{i=1}^{N} \|E[x_i^k] - E[x_T^k]\|_2
        + \binom N2^{-1} \sum_{i<j} \|E[x_i^k] - E[x_j^k]\|_2 \Big)

    x^k is taken coordinate by coordinate, about zero: unlike in `moment_distance`, where the second moment is the
    variance. Norms are not squared, whatever the name says. With one source the second sum is absent.

    Args:
        features: (N + 1, b, d), the target last.
        orders: the largest k.

    >>> raw_moment_distance(torch.tensor([[[0.0]], [[1.0]], [[3.0]]]))
    tensor(13.)
    """
    features = at_least_float32(features)
    powers = torch.stack([features**k for k in range(1, orders + 1)])
    moments = powers.mean(dim=2)
    sources, target = moments[:, :-1], moments[:, -1:]
    total: Tensor = torch.linalg.vector_norm(sources - target, dim=-1).mean(dim=1).sum()
    count = sources.shape[1]
    if count > 1:
        # All ordered pairs: each unordered one twice, and zeros between a source and itself that do not count.
        pairs = torch.linalg.vector_norm(sources[:, :, None] - sources[:, None], dim=-1)
        total = total + pairs.sum() / (count * (count - 1))
    return total
