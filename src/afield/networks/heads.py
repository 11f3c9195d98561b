"""From feature map to vector, and from vector to class scores."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import adaptive_avg_pool2d

from afield.config.network import NetworkOptions
from afield.networks.wide_linear import WideLinear
from afield.precision import at_least_float32, exact_mean, in_float32

GRID = {"average": 1, "average2x2": 2}


class Pool(nn.Module):
    """(B, C, H, W) to (B, width). Linear in the map: pool(A) + pool(R) = pool(A + R), which FAR makes use of."""

    def __init__(self, kind: str, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        # A map smaller than the grid would be copied into its cells.
        rows, columns = (height, width) if kind == "flatten" else (min(GRID[kind], height), min(GRID[kind], width))
        self.grid = rows, columns
        self.width = channels * rows * columns
        self.shape = shape

    def forward(self, features: Tensor) -> Tensor:
        """Average over the grid's cells, in float32, and flatten."""
        (rows, columns), (count, channels, height, width) = self.grid, features.shape
        if height % rows or width % columns:
            return adaptive_avg_pool2d(at_least_float32(features), self.grid).flatten(1)
        # Cells of one size are a mean over axes, whose gradient is a plain copy: several times faster.
        cells = features.reshape(count, channels, rows, height // rows, columns, width // columns)
        # One axis after the other: each is a reduction that a GPU has a fast kernel for.
        return exact_mean(exact_mean(cells, 5), 3).flatten(1)


def hidden_layers(inputs: int, widths: Sequence[int], options: NetworkOptions) -> list[nn.Module]:
    """Fully connected layers, each with batch norm, ReLU and dropout, as far as the options have them."""
    layers: list[nn.Module] = []
    for before, width in pairwise((inputs, *widths)):
        norm = [] if options.batch_norm == "none" else [nn.BatchNorm1d(width)]
        layers += [WideLinear(before, width), *norm, nn.ReLU(), nn.Dropout(options.dropout)]
    return layers


class Classifier(nn.Sequential):
    """Fully connected layers, if any, and a linear layer to class scores."""

    def __init__(self, inputs: int, num_classes: int, options: NetworkOptions) -> None:
        layers = hidden_layers(inputs, options.hidden, options)
        super().__init__(*layers, nn.Linear((inputs, *options.hidden)[-1], num_classes))

    def forward(self, vectors: Tensor) -> Tensor:
        """Class scores; without hidden layers, in float32."""
        if len(self) == 1:
            return in_float32(self[0], vectors)
        scores: Tensor = super().forward(vectors)  # type: ignore[no-untyped-call]
        return scores


class Experts(nn.Module):
    """A linear classifier for each source, all in one product."""

    def __init__(self, count: int, inputs: int, num_classes: int) -> None:
        super().__init__()
        bound = inputs**-0.5  # as in nn.Linear
        self.weight = nn.Parameter(torch.empty(count, inputs, num_classes).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, num_classes).uniform_(-bound, bound))

    def __len__(self) -> int:
        return len(self.weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, b, inputs), slice i for expert i, to scores (n, b, classes)."""
        return in_float32(lambda v: torch.baddbmm(self.bias, v, self.weight), vectors)


def classify_all(classifier: nn.Module, vectors: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Scores of the vectors the classifier will see at inference, and of others that it will not; all of one size."""
    if any(True for _ in classifier.buffers()):  # batch norm: each kind of vectors has its own statistics
        return classifier(vectors), *(run_aside(classifier, aside) for aside in others)
    scores: Tensor = classifier(torch.cat((vectors, *others)))
    return scores.chunk(1 + len(others))


def run_aside(network: nn.Module, values: Tensor, *, frozen: bool = False) -> Tensor:
    """What a network (a backbone, a classifier, a discriminator) makes of values that it will not see at inference.

    Its buffers stay as they are: batch norm's running statistics remain those of what inference will see. With
    `frozen`, its parameters receive no gradient either, while the values still do.
    """
    parameters = {name: p.detach() if frozen else p for name, p in network.named_parameters()}
    buffers = {name: b.clone() for name, b in network.named_buffers()}
    output: Tensor = functional_call(network, parameters | buffers, (values,))
    return output
