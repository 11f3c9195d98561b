"""Deep CORAL (Sun, Saenko: ECCV workshops 2016, arXiv 1607.01719).

    L = L_cls + w CORAL                                      (eq. 6)
    CORAL = |C_S - C_T|^2 / (4 d^2), Frobenius               (eq. 1; the covariances C: eqs. 2 and 3)

Differences from the paper:
- It has one source and one target. Here the distance is averaged over all pairs of domains: sources and target in UDA,
  the sources alone in DG. So with N sources a pair of a source and the target weighs 2 / (N (N + 1)).
- The aligned layer is the last, the class scores, like the paper's fc8. `layer = "features"` takes the pooled features
  instead, as benchmarks of DG do; their distance is far smaller and needs a larger weight.
- The paper chooses the weight so that both losses are about equal at the end of training. Ours is 1, and the loop
  raises it from 0. DomainBed's form, without the divisor 4 and with the distance of the means, is not ours.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import coral_distance


class CORALOptions(MethodOptions):
    """Options of Deep CORAL."""

    coral_weight: float = Field(
        1.0, ge=0, description="weight of the distance (paper: such that both losses end about equal)"
    )
    layer: Literal["scores", "features"] = Field("scores", description="what is aligned (paper: the scores)")


@register_method("coral", summary="equal covariances in all domains", reference="Sun and Saenko 2016")
class CORAL(Method):
    """Cross-entropy on the sources, and the distance of the covariances of all domains of the batch."""

    Options = CORALOptions
    options: CORALOptions
    ramped = frozenset({"coral"})

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Both losses."""
        features = self.pool(F)
        scores = self.classifier(features)
        aligned = batch.by_domain(scores if self.options.layer == "scores" else features)
        return {
            "classification": cross_entropy(scores[: batch.num_labelled], batch.labels),
            "coral": self.options.coral_weight * coral_distance(aligned),
        }
