"""What adversarial methods share: the reversal of a gradient, and the network that tells domains apart."""

from typing import Any

import torch
from torch import Tensor, nn

from afield.precision import in_float32


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradients[0], None


def reverse_gradient(x: Tensor, weight: float = 1.0) -> Tensor:
    """x itself; the gradient that comes back is multiplied by -weight (Ganin et al. 2016, section 4.2).

    What follows learns to lower a loss, and what lies before x to raise it, in one backward pass.

    >>> x = torch.ones(1, requires_grad=True)
    >>> torch.autograd.grad(reverse_gradient(3 * x, 0.5).sum(), x)
    (tensor([-1.5000]),)
    """
    reversed_: Tensor = _Reversal.apply(x, weight)
    return reversed_


class Discriminator(nn.Sequential):
    """Vectors to scores of domains, through two hidden layers with ReLU; in float32 whatever autocast says.

    With one output, the score is the logit of the one domain against the other.
    """

    def __init__(self, inputs: int, hidden: int = 256, outputs: int = 1) -> None:
        layers = nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        super().__init__(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs)."""
        return in_float32(super().forward, vectors)
