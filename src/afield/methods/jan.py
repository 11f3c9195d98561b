"""JAN: Joint Adaptation Network (Long, Zhu, Wang, Jordan: ICML 2017, arXiv 1605.06636), with its MMD, not JAN-A.

    L = L_cls + w JMMD^2(sources, target)

JMMD is the distance of the layers' joint distributions: an MMD whose kernel is the product of the layers' kernels.

Differences from the paper:
- A kernel's width is the mean squared distance in the batch, not the median of the training set. The authors' code has
  five kernels on the features and one of the fixed width 1.68 on the probabilities.
- The estimate is the biased one over all pairs of the batch, as in that code; the paper trains with one of linear time.
- Several sources are pooled into one.

As in the paper, the layers are the last of the network, for ResNet the pooled features and the class layer, the latter
as probabilities, as in the authors' code. The weight rises from 0 by DANN's schedule, as the paper's does.
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import joint_squared_mmd
from afield.precision import at_least_float32


class JANOptions(MethodOptions):
    """Options of JAN."""

    mmd_weight: float = Field(1.0, ge=0, description="weight of the squared joint MMD (paper: 1)")
    kernels: int = Field(1, ge=1, description="Gaussian kernels of each layer, equally weighted (paper: 1)")
    kernel_step: float = Field(2.0, gt=1, description="ratio of two neighbouring kernels' squared widths")


@register_method("jan", summary="joint MMD of features and predictions", reference="Long et al. 2017")
class JAN(Method):
    """Cross-entropy on the sources, and the squared joint MMD between the pooled sources and the target."""

    Options = JANOptions
    options: JANOptions
    needs_target = True
    ramped = frozenset({"joint_mmd"})

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Both losses."""
        options, features = self.options, self.pool(F)
        scores = self.classifier(features)
        layers = features, at_least_float32(scores).softmax(dim=1)
        source, target = zip(*map(batch.split, layers), strict=True)
        distance = joint_squared_mmd(source, target, options.kernels, options.kernel_step)
        return {
            "classification": cross_entropy(batch.split(scores)[0], batch.labels),
            "joint_mmd": options.mmd_weight * distance,
        }
