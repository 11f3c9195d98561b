"""Moment alignment without restoration: the two rungs of the paper's ladder between the baseline and FAR.

Reference: Jin et al. 2020, Table 1 (Baseline-align, Baseline-att-align); the alignment loss is its supplementary's
moment distance. With `attention` off the whole feature F is aligned; with it on, a gate selects A from F, A is aligned
and A alone is classified.

Differences from the paper: the gate has mean 1; `normalised_gate` says why, and turns it off.
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.losses import moment_distance
from afield.methods.method import Inspection, relative_size
from afield.networks import Gate, GatedSelection
from afield.precision import exact_mean


class AlignedOptions(MethodOptions):
    """Options of `baseline-align` and `baseline-att-align`."""

    align_weight: float = Field(0.5, ge=0, description="weight of the moment distance (paper: 0.5)")
    attention: bool = Field(False, description="select A from F by a gate, align and classify A")
    normalised_gate: bool = Field(
        True, description="gate with mean 1; a plain sigmoid gate closes, since A = 0 is aligned (paper: plain)"
    )
    reduction: int = Field(8, ge=1, description="the gate's hidden layers have C / reduction units (paper: 8)")


@register_method(
    "baseline-align", summary="cross-entropy and moment alignment of F", reference="Jin et al. 2020, Table 1"
)
class Aligned(Method):
    """Cross-entropy and moment distance on one feature: F, or the A that a gate selects."""

    Options = AlignedOptions
    min_sources = 2
    ramped = frozenset({"align"})
    options: AlignedOptions

    def __init__(self, shape: Shape, options: AlignedOptions) -> None:
        super().__init__(shape, options)
        channels = self.map_shape[0]
        gate = Gate(channels, "both", options.reduction, options.normalised_gate, self.map_shape[1:])
        self.fa = GatedSelection(gate) if options.attention else None

    def selected(self, F: Tensor) -> Tensor:
        """The map that is aligned and classified."""
        return self.fa(F) if self.fa else F

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Cross-entropy over the sources, moment distance over all domains of the batch."""
        features = self.selected(F)
        scores = self.classifier(self.pool(batch.split(features)[0]))
        pooled = batch.by_domain(exact_mean(features, 2, 3))
        return {
            "classification": cross_entropy(scores, batch.labels),
            "align": self.options.align_weight * moment_distance(pooled, batch.has_target),
        }

    def scores_of(self, F: Tensor) -> Tensor:
        """Class scores of the aligned feature."""
        return super().scores_of(self.selected(F))

    def inspect(self, images: Tensor) -> Inspection:
        """Scores; with attention also the scores of F and how much of F the gate lets through."""
        if self.fa is None:
            return super().inspect(images)
        F = self.backbone(images)
        A = self.fa(F)
        views = {"F": super().scores_of(F), "A": super().scores_of(A)}
        return Inspection(views["A"], views, {"kept": relative_size(A, F)})
