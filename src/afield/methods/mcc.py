"""MCC: minimum class confusion (Jin, Wang, Long, Wang: ECCV 2020, arXiv 1912.03699).

    L = L_cls + mu L_MCC(C(f_t))

L_MCC is the class confusion of the target's predictions (`losses/class_confusion.py` has the formula): cooled by a
temperature, weighted by how sure they are, normalised class by class. Nothing is aligned, so that the domains need not
have their classes in equal shares.

Differences from the paper:
- The loop raises mu from 0. The paper's is constant, and its network comes trained on ImageNet, where ours knows
  nothing at first.
- Several sources are pooled.
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import class_confusion


class MCCOptions(MethodOptions):
    """Options of MCC."""

    confusion_weight: float = Field(1.0, ge=0, description="mu, the weight of the target's confusion (authors: 1)")
    temperature: float = Field(2.5, gt=0, description="T, which divides the target's scores (paper: 2.5)")


@register_method("mcc", summary="minimum class confusion on the target", reference="Jin, Wang et al. 2020")
class MCC(Method):
    """Cross-entropy on the sources, and the class confusion of the target's predictions."""

    Options = MCCOptions
    options: MCCOptions
    needs_target = True
    pools_target = True
    ramped = frozenset({"confusion"})

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Both losses."""
        source, target = batch.split(self.classifier(self.pool(F)))
        return {
            "classification": cross_entropy(source, batch.labels),
            "confusion": self.options.confusion_weight * class_confusion(target, self.options.temperature),
        }
