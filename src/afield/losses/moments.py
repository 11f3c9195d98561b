"""Moment distances: how far apart the domains' features are, by their means and how they spread about them."""

import torch
from torch import Tensor

from afield.precision import at_least_float32

SMALLEST = 1e-12
SHORTEST = 0.01


def moment_distance(features: Tensor, has_target: bool) -> Tensor:
    r"""The paper's L_align over one batch: N sources and, in UDA, a target t.

    .. math::
        \frac1N\sum_i \|\mu_i-\mu_t\| + \frac{1}{\binom N2}\sum_{i<j}\|\mu_i-\mu_j\|
        + \text{the same two terms for the variances}

    Euclidean norms, not squared (the formula's name has a square, its terms have none). Without a target, as in DG,
    the terms with t are absent. Variances are those of the batch itself (divided by b).

    Args:
        features: (n_domains, b, d), the target last if there is one.
        has_target: whether the last domain is the target.

    >>> moment_distance(torch.tensor([[[0.0]], [[3.0]], [[3.0]]]), has_target=True)
    tensor(4.5000)
    """
    variances, means = torch.var_mean(at_least_float32(features), dim=1, correction=0)
    return distance_of_domains(torch.stack((means, variances)), has_target)


def direction_distance(features: Tensor, has_target: bool) -> Tensor:
    r"""The same of directions: each vector is divided by its length, and standard deviations stand for variances.

    The number and the scale of the features do not enter. A mean of unit vectors has a length of at most 1, and so have
    their standard deviations: no term exceeds 2.

    >>> turned = torch.tensor([[[2.0, 0.0]], [[0.0, 7.0]]])  # two domains of one vector each
    >>> direction_distance(turned, has_target=False)  # the root of 2
    tensor(1.4142)
    >>> direction_distance(100 * turned, has_target=False)
    tensor(1.4142)
    """
    variances, means = torch.var_mean(directions(features), dim=1, correction=0)
    # A root has no gradient at 0.
    return distance_of_domains(torch.stack((means, (variances + SMALLEST).sqrt())), has_target)


def directions(vectors: Tensor) -> Tensor:
    """Vectors (..., d), each divided by its length.

    Those shorter than a hundredth of the mean length are divided by that hundredth: the gradient by the direction of a
    vector that is nearly 0 is nearly infinite, and would outweigh those of all others.

    >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    vectors = at_least_float32(vectors)
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    shortest = (SHORTEST * lengths.detach().mean()).clamp_min(SMALLEST)
    return vectors / torch.maximum(lengths, shortest)


def distance_of_domains(moments: Tensor, has_target: bool) -> Tensor:
    """Mean distance of a source to the target and mean distance of two sources, summed over kinds of moments.

    Args:
        moments: (kinds, n_domains, d).
        has_target: whether the last domain is the target.
    """
    # Between all domains, (2, n, n). Not torch.cdist: compiled with it, FAR's gradients were NaN on a GPU (torch 2.11).
    distances: Tensor = torch.linalg.vector_norm(moments[:, :, None] - moments[:, None], dim=-1)
    num_sources = moments.shape[1] - int(has_target)
    total = moments.new_zeros(())
    if has_target:
        total = total + distances[:, :num_sources, num_sources].mean(dim=1).sum()
    if num_sources > 1:
        # All ordered pairs: each unordered one twice, and n zeros that do not count.
        pairs = distances[:, :num_sources, :num_sources]
        total = total + pairs.sum() / (num_sources * (num_sources - 1))
    return total
