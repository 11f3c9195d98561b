"""Classification by the class prototypes of the other domains, which makes a class alike in all domains."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from afield.precision import at_least_float32

TEMPERATURE = 0.1


def prototype_loss(features: Tensor, members: Tensor) -> Tensor:
    r"""Cross-entropy of each feature's direction against the mean directions of the classes in all other domains.

    .. math::
        \mu_{dk} = \mathrm{unit}\Bigl(\sum_{e \neq d} \sum_i m_{eik} \hat f_{ei}\Bigr), \qquad
        -\log \mathrm{softmax}_k \bigl(\hat f_{di} \cdot \mu_{dk} / 0.1\bigr) \text{ at } i\text{'s class}

    The prototypes are constants. Only features count whose class is known and occurs in another domain of the batch.

    Args:
        features: (domains, b, C).
        members: (domains, b, K), a row per feature: 1 at its class, or all 0 where its class is not known.

    Returns:
        The sum over features that count, divided by the number of all features.

    >>> two_classes = torch.eye(2).expand(2, 2, 2)  # in two domains
    >>> prototype_loss(two_classes, two_classes).round(decimals=3)
    tensor(0.)
    >>> prototype_loss(torch.stack((two_classes[0], two_classes[1].flip(0))), two_classes)
    tensor(10.0000)
    """
    with torch.autocast(features.device.type, enabled=False):  # which takes these products into bf16
        return _loss(at_least_float32(features), at_least_float32(members))


def _loss(features: Tensor, members: Tensor) -> Tensor:
    unit = normalize(features, dim=2)
    sums = torch.einsum("nbk,nbc->nkc", members, unit.detach())
    counts = members.sum(dim=1)
    prototypes, present = normalize(sums.sum(dim=0) - sums, dim=2), counts.sum(dim=0) - counts > 0
    cosines = torch.einsum("nbc,nkc->nbk", unit, prototypes)
    cosines = torch.where(present[:, None], cosines, -1.0)  # as far away as a class can be
    known = (members * present[:, None]).sum(dim=2)
    losses = cross_entropy((cosines / TEMPERATURE).flatten(0, 1), members.argmax(dim=2).flatten(), reduction="none")
    return (known.flatten() * losses).mean()
