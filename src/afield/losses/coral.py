"""CORAL: how far apart the domains' second-order statistics, their covariances, are."""

import torch
from torch import Tensor

from afield.precision import in_float32


def coral_distance(features: Tensor) -> Tensor:
    r"""Deep CORAL's distance of two domains, averaged over all pairs of n domains.

    .. math::
        \frac1{\binom n2}\sum_{i<j}\frac1{4d^2}\|C_i-C_j\|_F^2
        = \frac1{2d^2(n-1)}\sum_i\|C_i-\bar C\|_F^2

    C_i is a domain's covariance in the batch (divided by b - 1). Of a single domain there is no pair, and the distance
    is 0.

    Args:
        features: (n_domains, b, d), b > 1.

    >>> coral_distance(torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]]]))  # variances 2 and 0
    tensor(1.)
    """
    covariances = in_float32(_covariances, features)
    count, width, _ = covariances.shape
    # The right-hand side of the formula: no differences of all pairs, which are many and large.
    spread = (covariances - covariances.mean(dim=0)).square().sum()
    return spread / (2 * width**2 * max(count - 1, 1))


def _covariances(features: Tensor) -> Tensor:
    centred = features - features.mean(dim=1, keepdim=True)
    return torch.bmm(centred.mT, centred) / (features.shape[1] - 1)
