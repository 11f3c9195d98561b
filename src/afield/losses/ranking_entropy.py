"""Dual ranking entropy: restoring the right features sharpens the prediction, restoring the others blurs it."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from afield.precision import at_least_float32


def entropy(logits: Tensor) -> Tensor:
    """E(z), the entropy in nats of softmax(z), a value for each row.

    >>> import torch
    >>> entropy(torch.zeros(1, 2))
    tensor([0.6931])
    """
    log_p = functional.log_softmax(at_least_float32(logits), dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def ranking_entropy_plus(enhanced: Tensor, reference: Tensor) -> Tensor:
    """L+ = softplus(E(C(f+)) - E(C(f))), averaged: small when the enhanced feature's prediction is the sharper one."""
    return functional.softplus(entropy(enhanced) - entropy(reference)).mean()


def ranking_entropy_minus(reference: Tensor, contaminated: Tensor) -> Tensor:
    """L- = softplus(E(C(f)) - E(C(f-))), averaged: small when the contaminated feature's prediction is the blurrier."""
    return functional.softplus(entropy(reference) - entropy(contaminated)).mean()


def dual_ranking_entropy(enhanced: Tensor, reference: Tensor, contaminated: Tensor) -> Tensor:
    """L_DRE = L+ + L-. All three are logits (B, classes)."""
    entropies = entropy(torch.stack((enhanced, reference, contaminated)))  # one pass over the three
    return functional.softplus(entropies[:2] - entropies[1:]).mean(dim=1).sum()


def unranked_entropy(enhanced: Tensor, contaminated: Tensor) -> Tensor:
    """The ablation without ranking: E(C(f+)) - E(C(f-)), averaged, with no reference to rank against."""
    return (entropy(enhanced) - entropy(contaminated)).mean()


def class_imbalance(logits: Tensor) -> Tensor:
    """log K - H(p), p the mean prediction over the K classes: 0 when all are used alike, log K when one takes all.

    Entropies alone are smallest when every sample is said to be of one class; this is what such a collapse costs.

    >>> class_imbalance(torch.tensor([[100.0, 0.0], [0.0, 100.0]]))
    tensor(0.)
    """
    mean = at_least_float32(logits).softmax(dim=-1).mean(dim=0)
    imbalance: Tensor = math.log(len(mean)) - torch.special.entr(mean).sum()
    return imbalance


class DualRankingEntropy(nn.Module):
    """`dual_ranking_entropy` as a module."""

    def forward(self, enhanced: Tensor, reference: Tensor, contaminated: Tensor) -> Tensor:
        """See `dual_ranking_entropy`."""
        return dual_ranking_entropy(enhanced, reference, contaminated)
