"""JAN: Joint Adaptation Network (Long, Zhu, Wang, Jordan: ICML 2017, arXiv 1605.06636), with its MMD, not JAN-A.

    L = L_cls + w JMMD^2(sources, target)

JMMD is the distance of the layers' joint distributions: an MMD whose kernel is the product of the layers' kernels.

Differences from the paper:
- The kernels are those of the authors' code: on the features the sum of five about the mean squared distance in the
  batch, on the probabilities one of fixed width. The paper has one per layer, its width the median of the training set.
- The weight is 1, as in their PyTorch code; their Caffe models have 0.3.
- The estimate is the biased one over all pairs of the batch. The paper trains with one of linear time; the PyTorch
  code's is ours without the pairs of a sample with itself.
- Several sources are pooled into one.

As in the paper, the layers are the last of the network, for ResNet the pooled features and the class layer, the latter
as probabilities, as in the authors' code. The weight rises from 0 by DANN's schedule, as the paper's does.
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import gaussian_kernel, joint_squared_mmd
from afield.precision import at_least_float32


class JANOptions(MethodOptions):
    """Options of JAN."""

    mmd_weight: float = Field(1.0, ge=0, description="weight of the squared joint MMD (paper: 1)")
    kernels: int = Field(
        5, ge=1, description="Gaussian kernels of the features, which are summed (authors: 5; paper: 1)"
    )
    kernel_step: float = Field(2.0, gt=1, description="ratio of two neighbouring kernels' squared widths (authors: 2)")
    probability_width: float = Field(
        1.68, gt=0, description="squared width of the one kernel of the probabilities (authors: 1.68)"
    )


@register_method("jan", summary="joint MMD of features and predictions", reference="Long et al. 2017")
class JAN(Method):
    """Cross-entropy on the sources, and the squared joint MMD between the pooled sources and the target."""

    Options = JANOptions
    options: JANOptions
    needs_target = True
    pools_target = True
    ramped = frozenset({"joint_mmd"})

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Both losses."""
        options, features = self.options, self.pool(F)
        scores = self.classifier(features)
        probabilities = at_least_float32(scores).softmax(dim=1)
        kernels = (
            gaussian_kernel(features, options.kernels, options.kernel_step),
            gaussian_kernel(probabilities, kernels=1, width=options.probability_width),
        )
        return {
            "classification": cross_entropy(batch.split(scores)[0], batch.labels),
            "joint_mmd": options.mmd_weight * joint_squared_mmd(kernels, batch.num_labelled),
        }
