"""Dual ranking entropy: restoring the right features sharpens the prediction, restoring the others blurs it.

Three predictions of the shared classifier C are compared by their entropy E: that of the enhanced feature
f+ = pool(A + R+), of the reference f = pool(A), and of the contaminated feature f- = pool(A + R-). All arguments are
logits (n, K), and all losses are averaged over the n samples. In place of the entropy of each sample, `measure` may be
another function of logits that says how ambiguous they are, such as the class confusion of all n.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from afield.losses.entropy import entropy

Measure = Callable[[Tensor], Tensor]


def ranking_entropy_plus(enhanced: Tensor, reference: Tensor, measure: Measure = entropy) -> Tensor:
    r"""L+, small when the enhanced feature's prediction is sharper than the reference's.

    .. math::
        L_+ = \mathrm{softplus}\big(E(C(f_+)) - E(C(f))\big)

    >>> sharp, blurred = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> ranking_entropy_plus(sharp, blurred), ranking_entropy_plus(blurred, sharp)
    (tensor(0.4055), tensor(1.0986))
    """
    return softplus(measure(enhanced) - measure(reference)).mean()


def ranking_entropy_minus(reference: Tensor, contaminated: Tensor, measure: Measure = entropy) -> Tensor:
    r"""L-, small when the contaminated feature's prediction is more blurred than the reference's.

    .. math::
        L_- = \mathrm{softplus}\big(E(C(f)) - E(C(f_-))\big)

    >>> sharp, blurred = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> ranking_entropy_minus(sharp, blurred), ranking_entropy_minus(blurred, sharp)
    (tensor(0.4055), tensor(1.0986))
    """
    return softplus(measure(reference) - measure(contaminated)).mean()


def dual_ranking_entropy(
    enhanced: Tensor, reference: Tensor, contaminated: Tensor, measure: Measure = entropy
) -> Tensor:
    r"""FAR's L_DRE, the sum of both halves.

    .. math::
        L_{DRE} = L_+ + L_- = \mathrm{softplus}\big(E(C(f_+)) - E(C(f))\big)
        + \mathrm{softplus}\big(E(C(f)) - E(C(f_-))\big)

    Args:
        enhanced: C(f+), logits (n, K).
        reference: C(f), logits (n, K).
        contaminated: C(f-), logits (n, K).
        measure: E, from logits (..., n, K) to one value per sample, or per batch.

    >>> sharp, middle, blurred = torch.tensor([[[100.0, 0.0]], [[2.0, 0.0]], [[0.0, 0.0]]])
    >>> dual_ranking_entropy(sharp, middle, blurred)  # ranked as it should be
    tensor(1.0697)
    >>> dual_ranking_entropy(blurred, middle, sharp)
    tensor(1.7628)
    >>> dual_ranking_entropy(middle, middle, middle)  # 2 log 2
    tensor(1.3863)
    """
    measured = measure(torch.stack((enhanced, reference, contaminated))).reshape(3, -1)  # one pass over the three
    return softplus(measured[:2] - measured[1:]).mean(dim=1).sum()


def unranked_entropy(enhanced: Tensor, contaminated: Tensor, measure: Measure = entropy) -> Tensor:
    r"""The ablation without ranking, which has no reference to rank against.

    .. math::
        E(C(f_+)) - E(C(f_-))

    >>> unranked_entropy(torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(-0.6931)
    """
    return (measure(enhanced) - measure(contaminated)).mean()
