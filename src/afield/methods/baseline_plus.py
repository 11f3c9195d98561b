"""Baseline+: the baseline, and strong views to learn, as FAR+ does (`learned_views.py` says how).

Beside `far+` it shows what FAR adds to strong views. In UDA it has FixMatch's loss (Sohn et al. 2020, arXiv
2001.07685), with the target's images as those without labels; in DG, cross-entropy on RandAugment's views beside the
usual images. Pseudo-labels need FixMatch's confidence: with the lower one that FAR+ asks for, one class can take the
whole target (docs/results.md, "The small network").
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.methods.learned_views import RAMPED, ViewOptions, view_losses, with_views


class BaselinePlusOptions(ViewOptions):
    """Options of the baseline with strong views."""

    threshold: float = Field(
        0.95, ge=0, lt=1, description="probability from which on a pseudo-label is believed (far+: 0.7)"
    )


@register_method("baseline+", summary="the baseline, and strong views learned", reference="Sohn et al. 2020")
class BaselinePlus(Method):
    """Cross-entropy on the sources, and on strong views."""

    Options: ClassVar[type[MethodOptions]] = BaselinePlusOptions
    options: BaselinePlusOptions
    pools_target = True
    ramped = RAMPED

    def images(self, batch: Batch) -> Tensor:
        """All images, and strong views of the target's or, where there is none, of all."""
        return with_views(batch)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Cross-entropy on the sources' images as they are, and what is learned of the views."""
        scores = self.classifier(self.pool(F))
        losses = {"classification": cross_entropy(scores[: batch.num_labelled], batch.labels)}
        return losses | view_losses(scores, batch, self.options)
