"""Class confusion: how often a batch of predictions hesitates between two classes."""

import torch
from torch import Tensor

from afield.losses.entropy import entropy
from afield.precision import at_least_float32, in_float32

TEMPERATURE = 2.5


def class_confusion(logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    r"""MCC's loss (Jin et al. 2020, section 3): the mean share of a class's predictions that falls on other classes.

    .. math::
        p_i = \mathrm{softmax}(z_i / T), \quad w_i = 1 + e^{-H(p_i)}, \quad
        C_{jk} = \sum_i w_i\,p_{ij}\,p_{ik}, \quad
        L = \frac1K \sum_j \sum_{k \ne j} \frac{C_{jk}}{\sum_l C_{jl}}

    The temperature keeps sure predictions from hiding their second choice. Sure ones weigh more; the weights are
    constants, and that the paper divides them by their mean cancels when C is divided by its row's sum. 0 where every
    prediction is certain, whatever its class; (K - 1) / K where none knows anything.

    Args:
        logits: (..., n, K), one score per class.
        temperature: T.

    Returns:
        (...): one value per batch of n predictions.

    >>> class_confusion(torch.tensor([[100.0, 0.0], [0.0, 100.0]]))
    tensor(0.)
    >>> class_confusion(torch.zeros(3, 4))
    tensor(0.7500)
    """
    cooled = at_least_float32(logits) / temperature
    p, weights = cooled.softmax(dim=-1), 1 + (-entropy(cooled).detach()).exp()
    confusion = in_float32(lambda q: (weights[..., None] * q).mT @ q, p)
    # A class that no prediction thinks of, within rounding, would be divided by 0.
    totals = confusion.sum(dim=-1).clamp_min(torch.finfo(p.dtype).tiny)
    return 1 - (confusion.diagonal(dim1=-2, dim2=-1) / totals).mean(dim=-1)
