"""Dual ranking entropy: restoring the right features sharpens the prediction, restoring the others blurs it."""

from torch import Tensor, nn
from torch.nn import functional

from afield.losses.precision import at_least_float32


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
    return ranking_entropy_plus(enhanced, reference) + ranking_entropy_minus(reference, contaminated)


def unranked_entropy(enhanced: Tensor, contaminated: Tensor) -> Tensor:
    """The ablation without ranking: E(C(f+)) - E(C(f-)), averaged, with no reference to rank against."""
    return (entropy(enhanced) - entropy(contaminated)).mean()


class DualRankingEntropy(nn.Module):
    """`dual_ranking_entropy` as a module."""

    def forward(self, enhanced: Tensor, reference: Tensor, contaminated: Tensor) -> Tensor:
        """See `dual_ranking_entropy`."""
        return dual_ranking_entropy(enhanced, reference, contaminated)
