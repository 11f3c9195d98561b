"""From feature map to vector, and from vector to class scores."""

from torch import Tensor, nn
from torch.func import functional_call

from afield.networks.options import NetworkOptions

GRID = {"pool": 1, "pool2": 2}


class Pool(nn.Module):
    """(B, C, H, W) to (B, width). Linear in the map: pool(A) + pool(R) = pool(A + R), which FAR makes use of."""

    def __init__(self, kind: str, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        # A map smaller than the grid would be copied into its cells.
        rows, columns = (height, width) if kind == "flatten" else (min(GRID[kind], height), min(GRID[kind], width))
        self.average = nn.Identity() if kind == "flatten" else nn.AdaptiveAvgPool2d((rows, columns))
        self.width = channels * rows * columns

    def forward(self, features: Tensor) -> Tensor:
        """Average over the grid's cells and flatten."""
        pooled: Tensor = self.average(features)
        return pooled.flatten(1)


class Classifier(nn.Sequential):
    """Fully connected layers (batch norm, ReLU, dropout), if any, and a linear layer to class scores."""

    def __init__(self, inputs: int, num_classes: int, options: NetworkOptions) -> None:
        layers: list[nn.Module] = []
        for width in options.hidden:
            layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(options.dropout)]
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, num_classes))


def classify_aside(classifier: nn.Module, vectors: Tensor, *, frozen: bool = False) -> Tensor:
    """Scores of vectors that the classifier will not see at inference.

    Batch norm's running statistics stay those of the vectors it will see. With `frozen`, the parameters receive no
    gradient either, while the vectors still do.
    """
    parameters = {name: p.detach() if frozen else p for name, p in classifier.named_parameters()}
    buffers = {name: b.clone() for name, b in classifier.named_buffers()}
    scores: Tensor = functional_call(classifier, parameters | buffers, (vectors,))
    return scores
