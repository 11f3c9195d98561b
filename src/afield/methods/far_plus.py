"""FAR+: FAR, and strong views to learn. What goes beyond the paper (Jin et al. 2020) stands here.

`learned_views.py` says what is learned of the views; `baseline+` learns the same without FAR.

Difference from FAR's paper: it has no strong views and no pseudo-labels. The threshold from which on these are believed
can be low here, because FAR's ranking of class confusion keeps all classes in use.
"""

from pydantic import Field
from torch import Tensor

from afield import Batch, Losses, register_method
from afield.methods.far import FAR, FAROptions
from afield.methods.learned_views import RAMPED, ViewOptions, view_losses, with_views


class FARPlusOptions(FAROptions, ViewOptions):
    """Options of FAR+: those of FAR, and how strong views are learned."""

    dre_balance: float = Field(
        1.0,
        ge=0,
        description="if dre_measure is entropy: weight of a guard by which no class may have less than half of an "
        "equal share on the target",
    )


@register_method("far+", summary="FAR, and strong views learned", reference="this project")
class FARPlus(FAR):
    """FAR that learns strong views, which stand last in what the network sees."""

    Options = FARPlusOptions
    ramped = FAR.ramped | RAMPED
    options: FARPlusOptions

    def images(self, batch: Batch) -> Tensor:
        """All images, and strong views of the target's or, where there is none, of all."""
        return with_views(batch)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """FAR's losses on the images as they are, and what is learned of the views."""
        seen, count = self.see(F), len(batch.images)
        losses = self.losses_seen(seen.first(count), F[:count], batch)
        return losses | view_losses(seen.enhanced, batch, self.options)
