"""CCSA: classification and contrastive semantic alignment (Motiian et al. 2017, arXiv 1709.10190).

    L = (1 - alpha) L_C + alpha (L_SA + L_S)      section 3, for two domains; section 4, for every pair of sources

L_SA pulls samples of one class from two sources together, L_S pushes samples of different classes from two sources
apart, up to a margin.

Differences from the paper:
- All pairs of the batch are used, and each loss is a mean over its own pairs, where the paper has sums. Their weights
  are those of the authors' code, which has two domains, draws three pairs of different classes for each of one class,
  takes one mean, and leaves out the factors 1/2.
- The loop ramps both up from 0. From the first step on, they would draw a network with batch norm, which knows no class
  yet, into one point, where it stays for hundreds of steps; the authors' network has no batch norm.
- The features are what the classifier reads, pool(F), compared as vectors of length 1. Without that they are hundreds
  of units long: no two of different classes would come nearer than the margin, and L_S would be 0.
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import contrastive_alignment
from afield.precision import at_least_float32

DIFFERENT = 3  # pairs of different classes that count for one of the same


class CCSAOptions(MethodOptions):
    """Options of CCSA."""

    alpha: float = Field(0.25, ge=0, le=1, description="share of alignment and separation in the loss (authors: 0.25)")
    margin: float = Field(1.0, gt=0, description="distance at which different classes are far enough (authors: 1)")


@register_method("ccsa", summary="contrastive semantic alignment of the sources", reference="Motiian et al. 2017")
class CCSA(Method):
    """Cross-entropy on the sources and a contrastive loss over their cross-domain pairs. A target is not looked at."""

    Options = CCSAOptions
    sees_target = False
    min_sources = 2
    ramped = frozenset({"alignment", "separation"})
    options: CCSAOptions

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """All three, weighted."""
        alpha, features = self.options.alpha, self.pool(F)
        domains = batch.by_domain(normalize(at_least_float32(features))), batch.by_domain(batch.labels)
        alignment, separation = contrastive_alignment(*domains, self.options.margin)
        weight = alpha * 2 / (1 + DIFFERENT)  # 2 for the factors 1/2
        return {
            "classification": (1 - alpha) * cross_entropy(self.classifier(features), batch.labels),
            "alignment": weight * alignment,
            "separation": weight * DIFFERENT * separation,
        }
