"""Several classifiers side by side on the same vectors, and what they say together."""

import math

import torch
from torch import Tensor, nn

from afield.config.network import NetworkOptions
from afield.networks.heads import Classifier
from afield.precision import at_least_float32


class Ensemble(nn.ModuleList):
    """Classifiers that all read all vectors, each with weights of its own."""

    def __init__(self, count: int, inputs: int, num_classes: int, options: NetworkOptions) -> None:
        super().__init__(Classifier(inputs, num_classes, options) for _ in range(count))

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, inputs) to the scores of each, (count, B, classes)."""
        return torch.stack([classifier(vectors) for classifier in self])


def mean_prediction(scores: Tensor) -> Tensor:
    """Log-probabilities (B, classes) of the mean of the softmaxes of scores (count, B, classes).

    >>> mean_prediction(torch.tensor([[[100.0, 0.0]], [[0.0, 0.0]]])).exp()
    tensor([[0.7500, 0.2500]])
    """
    return at_least_float32(scores).log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(scores))
