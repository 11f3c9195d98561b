"""FAR+: FAR, and strong views to learn. What goes beyond the paper (Jin et al. 2020) stands here.

The network's own prediction C(f+) on a target image, where it is confident, is the label of a strongly changed view of
the same image (FixMatch, Sohn et al. 2020, arXiv 2001.07685, eq. 4, applied to the target). Without a target (DG) the
views are of the sources' images, and have their labels.

Differences from the paper:
- FAR's paper has no strong views and no self-training.
- In FixMatch's the weight of predicted labels is constant; here it is ramped up with FAR's other losses.
- FAR's ranking of class confusion keeps all classes in use, without which a low threshold would let one class take all.
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, register_method
from afield.methods.far import FAR, FAROptions


class FARPlusOptions(FAROptions):
    """Options of FAR+, beside those of FAR."""

    dre_balance: float = Field(
        1.0, ge=0, description="beside entropies: no class may have less than half of an equal share on the target"
    )
    self_training_weight: float = Field(
        1.0, ge=0, description="weight of learning strong views by the labels that the target gives itself"
    )
    strong_views_weight: float = Field(
        1.0, ge=0, description="without a target (DG): weight of learning strong views of the sources' images"
    )
    threshold: float = Field(0.7, ge=0, lt=1, description="probability from which on a label is believed")


@register_method("far+", summary="FAR, and strong views learned", reference="this project")
class FARPlus(FAR):
    """FAR that learns strong views of the target's images or, without a target, of the sources'.

    They stand last in what the network sees.
    """

    Options = FARPlusOptions
    ramped = FAR.ramped | {"self_training"}
    options: FARPlusOptions

    def images(self, batch: Batch) -> Tensor:
        """All images, and strong views of the target's or, where there is none, of all."""
        changed = batch.split(batch.images)[1] if batch.has_target else batch.images
        return torch.cat((batch.images, batch.strong_view(changed)))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """FAR's losses on the images as they are, and cross-entropy of the views against the labels of the images."""
        seen, count = self.see(F), len(batch.images)
        plain = seen.first(count)
        losses = self.losses_seen(plain, F[:count], batch)
        if not batch.has_target:
            learned = cross_entropy(seen.enhanced[count:], batch.labels)
            return losses | {"strong_views": self.options.strong_views_weight * learned}
        confidence, labels = batch.split(plain.enhanced)[1].detach().softmax(dim=1).max(dim=1)
        learned = cross_entropy(seen.enhanced[count:], labels, reduction="none")
        believed = (confidence >= self.options.threshold).to(learned.dtype)
        losses["self_training"] = self.options.self_training_weight * (believed * learned).mean()
        return losses
