"""DAN: Deep Adaptation Network (Long, Cao, Wang, Jordan: ICML 2015, arXiv 1502.02791).

    L = L_cls + w sum_l MMD_k^2(sources, target) of layer l      (eq. 4, of eq. 1's discrepancy)

with k a mixture of Gaussian kernels of several widths (eq. 2).

Differences from the paper:
- Its layers are AlexNet's fc6, fc7 and fc8. Here the pooled features stand for the first two, and the class scores are
  the last. The authors' later code, for ResNet, takes the features alone.
- The kernels are those of that code: the sum of five about the data's own scale, each with weight 1. The paper has 33
  from 2^-8 to 2^8 of that scale, and learns their weights by a quadratic program. The scale is the mean squared
  distance in the batch, as in that code, not the median of the training set.
- The estimate is the biased one over all pairs of the batch. The paper's is unbiased and of linear time; that code's is
  ours without the pairs of a sample with itself.
- Several sources are pooled into one. The loop raises the weight from 0, where the paper's is constant.
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import squared_mmd


class DANOptions(MethodOptions):
    """Options of DAN."""

    mmd_weight: float = Field(1.0, ge=0, description="weight of each layer's squared MMD")
    kernels: int = Field(5, ge=1, description="Gaussian kernels, which are summed (paper: 33 with learned weights)")
    kernel_step: float = Field(
        2.0, gt=1, description="ratio of two neighbouring kernels' squared widths (paper: the root of 2)"
    )


@register_method("dan", summary="multi-kernel MMD of features and of scores", reference="Long et al. 2015")
class DAN(Method):
    """Cross-entropy on the sources, and the squared MMD between the pooled sources and the target, layer by layer."""

    Options = DANOptions
    options: DANOptions
    needs_target = True
    pools_target = True
    ramped = frozenset({"mmd"})

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Both losses; the discrepancy is summed over the layers."""
        options = self.options
        features = self.pool(F)
        scores = self.classifier(features)
        distances = [
            squared_mmd(*batch.split(layer), options.kernels, options.kernel_step) for layer in (features, scores)
        ]
        return {
            "classification": cross_entropy(batch.split(scores)[0], batch.labels),
            "mmd": options.mmd_weight * torch.stack(distances).sum(),
        }
