"""MME: minimax entropy (Saito, Kim, Sclaroff, Darrell, Saenko: ICCV 2019, arXiv 1904.06487).

    p(x) = softmax(W f / (|f| T)),  f = F(x)                 rows of W: prototypes of the classes (section 3.1)
    H    = mean over target images of the entropy of p       section 3.2
    F = argmin L + lambda H,   W = argmin L - lambda H

The prototypes move to where the target is (H up), the features to the nearest prototype (H down). As in the authors'
code, one loss, -lambda H, whose gradient is reversed between F and W.

Differences from the paper:
- No target image is labelled (the paper's task is semi-supervised), so L is over the sources alone, several of them
  pooled.
- L and H descend in one step, on one pass of all images; the authors take a step for each. On a small problem, with
  twelve seeds, neither was better.
- A backbone that starts from nothing learns at the prototypes' rate. The authors' is always pretrained and learns at a
  tenth of it, as a pretrained one does here (`training.pretrained_rate`).
- Hidden layers that the network options put before the classifier belong to F, as the bottleneck of the authors' ResNet
  does.
- The loop raises lambda from 0. The paper's is constant, and its network comes trained on ImageNet, where ours knows
  nothing at first.
"""

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.config.network import NetworkOptions
from afield.losses import entropy
from afield.networks import Classifier, reverse_gradient
from afield.precision import in_float32


class MMEOptions(MethodOptions):
    """Options of MME."""

    entropy_weight: float = Field(0.1, ge=0, description="lambda, the weight of the target's entropy (paper: 0.1)")
    temperature: float = Field(0.05, gt=0, description="T, which divides similarities to prototypes (paper: 0.05)")


class CosineClassifier(Classifier):
    """W f / (|f| T): the last layer has no bias and reads vectors of length 1."""

    def __init__(self, inputs: int, num_classes: int, options: NetworkOptions, temperature: float) -> None:
        super().__init__(inputs, num_classes, options)
        self.temperature = temperature
        self[-1] = nn.Linear((inputs, *options.hidden)[-1], num_classes, bias=False)

    def embed(self, vectors: Tensor) -> Tensor:
        """f: what the hidden layers, if any, make of pooled vectors."""
        for layer in list(self)[:-1]:
            vectors = layer(vectors)
        return vectors

    def compare(self, embedded: Tensor) -> Tensor:
        """Scores of f, in float32."""
        return in_float32(lambda f: self[-1](normalize(f)) / self.temperature, embedded)

    def forward(self, vectors: Tensor) -> Tensor:
        """Class scores of pooled vectors."""
        return self.compare(self.embed(vectors))


@register_method("mme", summary="minimax entropy on prototypes", reference="Saito et al. 2019")
class MME(Method):
    """Cross-entropy on the sources; on the target an entropy that prototypes raise and features lower."""

    Options = MMEOptions
    options: MMEOptions
    needs_target = True
    pools_target = True
    ramped = frozenset({"entropy"})
    classifier: CosineClassifier

    def head(self, inputs: int) -> nn.Module:
        """Prototypes."""
        return CosineClassifier(inputs, self.shape.num_classes, self.shape.network, self.options.temperature)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """L, and -lambda H: descending it raises H by W, and by the reversal lowers H by F."""
        source, target = batch.split(self.classifier.embed(self.pool(F)))
        undecided = self.classifier.compare(reverse_gradient(target))
        return {
            "classification": cross_entropy(self.classifier.compare(source), batch.labels),
            "entropy": -self.options.entropy_weight * entropy(undecided).mean(),
        }
