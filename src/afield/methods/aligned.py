"""Alignment without restoration: the two rungs of the paper's ladder between the baseline and FAR.

Reference: Jin et al. 2020, Table 1 (Baseline-align, Baseline-att-align). With `attention` off the whole feature F is
aligned; with it on, a gate selects A from F, A is aligned and A alone is classified.

Differences from the paper: alignment and gate are FAR's. The options `alignment` and `projected_gate` say why, and can
be set to the paper's.
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, Shape, register_method
from afield.methods.alignment import Alignment, AlignmentOptions, select_by_gate
from afield.methods.method import Inspection, relative_size
from afield.precision import exact_mean


class AlignedOptions(AlignmentOptions):
    """Options of `baseline-align` and `baseline-att-align`."""

    attention: bool = Field(False, description="select A from F by a gate, align and classify A")


@register_method("baseline-align", summary="cross-entropy and alignment of F", reference="Jin et al. 2020, Table 1")
class Aligned(Method):
    """Cross-entropy and alignment of one feature: F, or the A that a gate selects."""

    Options = AlignedOptions
    min_sources = 2
    ramped = frozenset({"align"})
    training_only = frozenset({"alignment"})
    options: AlignedOptions

    def __init__(self, shape: Shape, options: AlignedOptions) -> None:
        super().__init__(shape, options)
        self.fa = select_by_gate(self.map_shape, options) if options.attention else None
        self.alignment = Alignment(options, self.map_shape[0], shape)

    def selected(self, F: Tensor) -> Tensor:
        """The map that is aligned and classified."""
        return self.fa(F) if self.fa else F

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Cross-entropy over the sources, alignment of all domains of the batch."""
        features = self.selected(F)
        scores = self.classifier(self.alignment.watch(self.pool(features), self.pool))
        losses = {"classification": cross_entropy(batch.split(scores)[0], batch.labels)}
        losses |= self.alignment(exact_mean(features, 2, 3), scores, batch)
        return losses

    def scores_of(self, F: Tensor) -> Tensor:
        """Class scores of the aligned feature."""
        return super().scores_of(self.selected(F))

    def maps_of(self, F: Tensor) -> dict[str, Tensor]:
        """F and, with attention, A."""
        return {"F": F} if self.fa is None else {"F": F, "A": self.fa(F)}

    def inspect(self, images: Tensor) -> Inspection:
        """Scores; with attention also the scores of F and how much of F the gate lets through."""
        if self.fa is None:
            return super().inspect(images)
        F = self.backbone(images)
        A = self.fa(F)
        views = {"F": super().scores_of(F), "A": super().scores_of(A)}
        return Inspection(views["A"], views, {"kept": relative_size(A, F)})
