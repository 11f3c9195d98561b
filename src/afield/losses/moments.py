"""Moment distance: how far apart the domains' feature means and variances are."""

import torch
from torch import Tensor

from afield.precision import at_least_float32


def moment_distance(features: Tensor, has_target: bool) -> Tensor:
    r"""FAR's L_align over one batch: N sources and, in UDA, a target t.

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
    features = at_least_float32(features)
    variances, means = torch.var_mean(features, dim=1, correction=0)
    moments = torch.stack((means, variances))
    # Between all domains, (2, n, n). Not torch.cdist: compiled with it, FAR's gradients were NaN on a GPU (torch 2.11).
    distances: Tensor = torch.linalg.vector_norm(moments[:, :, None] - moments[:, None], dim=-1)
    num_sources = features.shape[0] - int(has_target)
    total = features.new_zeros(())
    if has_target:
        total = total + distances[:, :num_sources, num_sources].mean(dim=1).sum()
    if num_sources > 1:
        # All ordered pairs: each unordered one twice, and n zeros that do not count.
        pairs = distances[:, :num_sources, :num_sources]
        total = total + pairs.sum() / (num_sources * (num_sources - 1))
    return total
