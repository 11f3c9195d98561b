"""FAR: Feature Alignment and Restoration (Jin, Lan, Zeng, Chen: arXiv 2006.12009, 2020).

    x -> backbone -> F
    A  = FA(F)                            the part of F that is aligned across domains
    R  = F - A                            what alignment leaves out
    R+ = FR(R) R,  R- = (1 - FR(R)) R     its task-relevant and its task-irrelevant part
    inference: C(pool(A + R+))

    L = L_cls + 0.5 L_align(A) + 0.1 L_DRE + w L_consist

Two routings, since the paper says two things. `end-to-end` backpropagates the sum into everything (section 3.2).
`selective` follows the supplementary's Algorithm 1: L_cls updates the whole network, L_align only FA, L_DRE only FR,
L_consist only C. It costs one forward and one backward of the network: each loss reads its inputs detached, and C with
detached parameters, so that the single backward pass stops where the algorithm says. Only the gates, which are small,
run a second time.

Differences from the paper: each has an option, whose description says why; the preset `far-paper` sets them all back.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield.config.options import MethodOptions
from afield.data.batches import Batch
from afield.losses import (
    class_imbalance,
    dual_ranking_entropy,
    expert_consistency,
    moment_distance,
    ranking_entropy_minus,
    ranking_entropy_plus,
    unranked_entropy,
)
from afield.methods.method import Inspection, Losses, Method, Shape, relative_size
from afield.methods.registry import register_method
from afield.networks import (
    ConvolutionSelection,
    Experts,
    Gate,
    GatedSelection,
    Pooled,
    can_pool,
    classify_all,
    pooling_weights,
    run_aside,
    select_and_pool,
    weighted,
)
from afield.precision import exact_mean


class FAROptions(MethodOptions):
    """Options of FAR. The weights multiply losses whose own weight in L is 1."""

    align_weight: float = Field(0.5, ge=0, description="weight of the moment distance of A (paper: 0.5)")
    dre_weight: float = Field(
        1.0, ge=0, description="weight of the dual ranking entropy; at the paper's it hardly acts (paper: 0.1)"
    )
    consistency_weight: float = Field(
        0.1, ge=0, description="weight of learning from the experts (paper: 100, which swamps the other losses)"
    )
    aligned_classification_weight: float = Field(
        1.0, ge=0, description="weight of C's cross-entropy on A alone; it keeps A useful and FA open (paper: 0)"
    )
    normalised_gate: bool = Field(
        True, description="FA's gate has mean 1; a plain sigmoid closes, since A = 0 is aligned (paper: plain)"
    )
    gate: Literal["both", "channel", "spatial", "conv"] = Field(
        "both", description="branches of both gates; 'conv' makes A by a 1x1 convolution and ReLU instead"
    )
    reduction: int = Field(8, ge=1, description="the gates' hidden layers have C / reduction units (paper: 8)")
    routing: Literal["end-to-end", "selective"] = Field(
        "end-to-end", description="which parameters each loss updates: all, or those of the paper's Algorithm 1"
    )
    dre: Literal["dual", "plus", "minus", "unranked", "none"] = Field(
        "dual", description="which halves of the ranking entropy; 'unranked' compares with no reference"
    )
    dre_reference: Literal["live", "detached"] = Field(
        "detached",
        description="whether the ranking also trains E(C(f)), which it ranks by; live rewards blurring A (paper: live)",
    )
    dre_balance: float = Field(
        0.3, ge=0, description="beside L+ and L-: keep all classes in use on the target, or one may take all (paper: 0)"
    )
    experts: bool = Field(True, description="one classifier per source reads pool(F) and teaches C")
    experts_shape_backbone: bool = Field(
        False,
        description="the experts' cross-entropy trains the backbone too; held-out sources did worse (paper: yes)",
    )


class Parts(NamedTuple):
    """The maps of one forward pass, named as in the paper."""

    F: Tensor
    A: Tensor
    R: Tensor
    R_plus: Tensor

    @property
    def R_minus(self) -> Tensor:
        """(1 - FR(R)) R, as the rest of R."""
        return self.R - self.R_plus


class Seen(NamedTuple):
    """What the network makes of images: pool(F), A's mean over positions, f+, and C's scores of f+, f and f-."""

    whole: Tensor
    aligned_mean: Tensor
    f_plus: Tensor
    enhanced: Tensor
    reference: Tensor
    contaminated: Tensor

    def first(self, count: int) -> "Seen":
        """Of the first images only."""
        return Seen(*(values[:count] for values in self))


@register_method("far", summary="feature alignment and restoration", reference="Jin et al. 2020")
class FAR(Method):
    """Backbone, FA, FR, the shared classifier C and, in training, one expert per source."""

    Options: ClassVar[type[MethodOptions]] = FAROptions
    min_sources = 2
    ramped = frozenset({"align", "dre", "consistency"})
    training_only = frozenset({"experts"})
    options: FAROptions
    pooling: Tensor | None

    def __init__(self, shape: Shape, options: FAROptions) -> None:
        super().__init__(shape, options)
        channels = self.map_shape[0]
        kind = "both" if options.gate == "conv" else options.gate
        self.fa: ConvolutionSelection | GatedSelection = (
            ConvolutionSelection(channels)
            if options.gate == "conv"
            else GatedSelection(Gate(channels, kind, options.reduction, options.normalised_gate, self.map_shape[1:]))
        )
        # FR stays a plain sigmoid, as in the paper: R- = (1 - FR) R means nothing for a gate above 1.
        self.fr = Gate(channels, kind, options.reduction, size=self.map_shape[1:])
        weights = pooling_weights(self.pool) if options.gate != "conv" and can_pool(self.map_shape) else None
        self.register_buffer("pooling", weights, persistent=False)
        self.experts = Experts(shape.num_sources, self.pool.width, shape.num_classes) if options.experts else None

    def parts(self, F: Tensor) -> Parts:
        """F, A, R and R+ from a map F."""
        A = self.fa(F)
        R = F - A
        return Parts(F, A, R, weighted(R, self.fr(R)))

    def scores_of(self, F: Tensor) -> Tensor:
        """C(pool(A + R+))."""
        parts = self.parts(F)
        scores: Tensor = self.classifier(self.pool(parts.A + parts.R_plus))
        return scores

    def pooled(self, F: Tensor) -> Pooled:
        """pool(F), pool(A) and pool(R+), by way of the maps or, for gates on small maps, without making them."""
        if self.pooling is not None and isinstance(self.fa, GatedSelection):
            return select_and_pool(F, self.fa.gate, self.fr, self.pooling)
        parts = self.parts(F)
        return Pooled(self.pool(parts.F), self.pool(parts.A), self.pool(parts.R_plus), exact_mean(parts.A, (2, 3)))

    def see(self, F: Tensor) -> Seen:
        """All that the losses need. Pooling is linear: f+ = f + pool(R+), and f- = pool(A + R - R+) = pool(F - R+)."""
        whole, f, r_plus, aligned_mean = self.pooled(F)
        f_plus, f_minus = f + r_plus, whole - r_plus
        return Seen(whole, aligned_mean, f_plus, *classify_all(self.classifier, f_plus, f, f_minus))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Classification on the sources; alignment and ranking entropy on all domains; consistency on the sources."""
        return self.losses_seen(self.see(F), F, batch)

    def losses_seen(self, seen: Seen, F: Tensor, batch: Batch) -> Losses:
        """The losses of what was seen of a batch."""
        options, labelled = self.options, batch.num_labelled
        enhanced = seen.enhanced[:labelled]
        losses = {"classification": cross_entropy(enhanced, batch.labels)}
        if options.aligned_classification_weight:
            aligned = cross_entropy(seen.reference[:labelled], batch.labels)
            losses["aligned"] = options.aligned_classification_weight * aligned
        losses["align"] = options.align_weight * self._alignment(seen, F, batch)
        if options.dre != "none":
            losses["dre"] = options.dre_weight * self._ranking_entropy(seen, F, batch)
        if self.experts is not None:
            taught = self.teach(batch, seen.whole)
            losses["experts"] = cross_entropy(taught, batch.labels)
            if options.routing == "selective":  # into C only
                enhanced = run_aside(self.classifier, seen.f_plus.detach())[:labelled]
            losses["consistency"] = options.consistency_weight * expert_consistency(enhanced, taught)
        return losses

    def teach(self, batch: Batch, whole: Tensor) -> Tensor:
        """Each expert's scores on its own source, (n_sources * b, classes)."""
        assert self.experts is not None
        whole = whole if self.options.experts_shape_backbone else whole.detach()
        scores: Tensor = self.experts(batch.by_domain(whole[: batch.num_labelled]))
        return scores.flatten(0, 1)

    def _alignment(self, seen: Seen, F: Tensor, batch: Batch) -> Tensor:
        """L_align of A averaged over all positions, whatever grid C reads; selective: into FA only."""
        selective = self.options.routing == "selective"
        aligned_mean = exact_mean(self.fa(F.detach()), (2, 3)) if selective else seen.aligned_mean
        return moment_distance(batch.by_domain(aligned_mean), batch.has_target)

    def _ranking_entropy(self, seen: Seen, F: Tensor, batch: Batch) -> Tensor:
        """L_DRE, or the part of it an ablation keeps, with its guard against collapse; selective: into FR only."""
        options = self.options
        scores: tuple[Tensor, ...] = (seen.enhanced, seen.reference, seen.contaminated)
        if options.routing == "selective":
            with torch.no_grad():
                A = self.fa(F)
            R = F.detach() - A
            f, r, r_plus = self.pool(A), self.pool(R), self.pool(weighted(R, self.fr(R)))
            vectors = (f + r_plus, f, f + (r - r_plus))
            scores = tuple(run_aside(self.classifier, v, frozen=True) for v in vectors)
        enhanced, reference, contaminated = scores
        if options.dre_reference == "detached":
            reference = reference.detach()
        match options.dre:
            case "plus":
                ranking = ranking_entropy_plus(enhanced, reference)
            case "minus":
                ranking = ranking_entropy_minus(reference, contaminated)
            case "unranked":
                ranking = unranked_entropy(enhanced, contaminated)
            case _:
                ranking = dual_ranking_entropy(enhanced, reference, contaminated)
        if options.dre_balance and batch.has_target:
            ranking = ranking + options.dre_balance * class_imbalance(enhanced[batch.num_labelled :])
        return ranking

    def inspect(self, images: Tensor) -> Inspection:
        """Scores of C on F, A, A + R+ and A + R-, and what the two gates let through."""
        parts = self.parts(self.backbone(images))
        F, A, R, R_plus = parts
        maps = {"F": F, "A": A, "A+R+": A + R_plus, "A+R-": A + parts.R_minus}
        views = {name: self.classifier(self.pool(features)) for name, features in maps.items()}
        return Inspection(views["A+R+"], views, {"kept": relative_size(A, F), "restored": relative_size(R_plus, R)})
