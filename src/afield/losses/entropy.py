"""Entropy: how unsure single predictions are, and how evenly many predictions use the classes."""

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from afield.precision import at_least_float32


def entropy(logits: Tensor) -> Tensor:
    r"""E(z), the entropy in nats of p = softmax(z): 0 for a certain prediction, log K for one that knows nothing.

    .. math::
        E(z) = -\sum_{k=1}^{K} p_k \log p_k

    Args:
        logits: (..., K), one score per class.

    Returns:
        (...): one value per row.

    >>> entropy(torch.tensor([[0.0, 0.0], [5.0, 0.0]]))
    tensor([0.6931, 0.0402])
    """
    log_p = log_softmax(at_least_float32(logits), dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def class_imbalance(logits: Tensor) -> Tensor:
    r"""How unevenly a batch of predictions uses the K classes: 0 when all are used alike, log K when one takes all.

    .. math::
        \log K + \sum_{k=1}^{K} \bar p_k \log \bar p_k, \qquad \bar p = \tfrac1n \sum_i \mathrm{softmax}(z_i)

    Entropies alone are smallest when every sample is said to be of one class; this is what such a collapse costs.

    Args:
        logits: (n, K).

    >>> class_imbalance(torch.tensor([[100.0, 0.0], [0.0, 100.0]]))
    tensor(0.)
    >>> class_imbalance(torch.tensor([[100.0, 0.0], [100.0, 0.0]]))
    tensor(0.6931)
    """
    mean = at_least_float32(logits).softmax(dim=-1).mean(dim=0)
    imbalance: Tensor = math.log(len(mean)) - torch.special.entr(mean).sum()
    return imbalance
