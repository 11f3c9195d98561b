"""Entropy: how unsure single predictions are, and whether many predictions leave classes out."""

from torch import Tensor
from torch.nn.functional import log_softmax

from afield.precision import at_least_float32

SMALLEST = 1e-6  # of a mean probability, so that a class that is never predicted has a finite loss


def entropy(logits: Tensor) -> Tensor:
    r"""E(z), the entropy in nats of p = softmax(z): 0 for a certain prediction, log K for one that knows nothing.

    .. math::
        E(z) = -\sum_{k=1}^{K} p_k \log p_k

    Args:
        logits: (..., K), one score per class.

    Returns:
        (...): one value per row.

    >>> import torch
    >>> entropy(torch.tensor([[0.0, 0.0], [5.0, 0.0]]))
    tensor([0.6931, 0.0402])
    """
    log_p = log_softmax(at_least_float32(logits), dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def class_shortage(logits: Tensor, share: float = 0.5) -> Tensor:
    r"""How far classes are from their least share in a batch of predictions: 0 when each of the K has it.

    .. math::
        \frac1K \sum_{k=1}^{K} \max\Bigl(0, \log \frac{s / K}{\bar p_k}\Bigr), \qquad
        \bar p = \tfrac1n \sum_i \mathrm{softmax}(z_i)

    Entropies alone are smallest when every sample is said to be of one class; this is what such a collapse costs. The
    classes' true shares are unknown, so it does not ask for equal ones.

    Args:
        logits: (n, K).
        share: s, the least share, of an equal one.

    >>> import torch
    >>> class_shortage(torch.tensor([[100.0, 0.0], [100.0, 0.0], [0.0, 100.0]]))
    tensor(0.)
    >>> class_shortage(torch.tensor([[0.0, 2.0], [0.0, 2.0]]))
    tensor(0.3703)
    """
    mean = at_least_float32(logits).softmax(dim=-1).mean(dim=0)
    return (share / len(mean) / mean.clamp_min(SMALLEST)).log().clamp_min(0).mean()
