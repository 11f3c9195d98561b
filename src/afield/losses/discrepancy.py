"""Classifier discrepancy: how much two classifiers disagree about the same images."""

from torch import Tensor

from afield.precision import at_least_float32


def classifier_discrepancy(first: Tensor, second: Tensor) -> Tensor:
    r"""MCD's d(p1, p2), averaged over all images (Saito et al. 2018, section 3.2).

    .. math::
        d(p_1, p_2) = \frac1K \sum_{k=1}^{K} |p_{1k} - p_{2k}|

    with p the softmax of the scores: 0 for equal predictions, at most 2 / K.

    Args:
        first: scores (..., K) of one classifier.
        second: those of the other, of the same images.

    >>> import torch
    >>> classifier_discrepancy(torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(0.5000)
    """
    difference = at_least_float32(first).softmax(dim=-1) - at_least_float32(second).softmax(dim=-1)
    return difference.abs().mean()
