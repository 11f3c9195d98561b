"""Contrastive semantic alignment: samples of one class meet across domains, samples of different classes keep apart."""

from itertools import combinations

import torch
from torch import Tensor

from afield.precision import at_least_float32


def contrastive_alignment(features: Tensor, labels: Tensor, margin: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Semantic alignment and separation over all pairs of samples from two different domains.

    .. math::
        L_{SA} = \operatorname{mean}_{y_i = y_j} \tfrac12 \|f_i-f_j\|^2,\qquad
        L_S = \operatorname{mean}_{y_i \ne y_j} \tfrac12 \max(0,\ m-\|f_i-f_j\|)^2

    Each is a mean over its own pairs, so that neither depends on how many classes there are; 0 if it has no pair.

    Args:
        features: (n_domains, b, d), two domains or more.
        labels: (n_domains, b).
        margin: m, the distance from which on different classes are far enough apart.

    >>> features = torch.tensor([[[0.0], [0.0]], [[3.0], [0.25]]])
    >>> contrastive_alignment(features, torch.tensor([[0, 0], [0, 1]]))
    (tensor(4.5000), tensor(0.2812))
    """
    features = at_least_float32(features)
    pairs = list(combinations(range(len(features)), 2))
    differences = torch.stack([features[i, :, None] - features[j, None] for i, j in pairs])
    same = torch.stack([labels[i, :, None] == labels[j, None] for i, j in pairs]).to(features.dtype)
    distances: Tensor = torch.linalg.vector_norm(differences, dim=-1)
    alignment = same * differences.square().sum(dim=-1)  # not the squared root, whose gradient has no value at 0
    separation = (1 - same) * (margin - distances).clamp_min(0).square()
    return (
        0.5 * alignment.sum() / same.sum().clamp_min(1),
        0.5 * separation.sum() / (1 - same).sum().clamp_min(1),
    )
