"""FAR: Feature Alignment and Restoration (Jin, Lan, Zeng, Chen: arXiv 2006.12009, 2020).

    x -> backbone -> F
    A  = FA(F)                            the part of F that is aligned across domains
    R  = F - A                            what alignment leaves out
    R+ = FR(R) R,  R- = (1 - FR(R)) R     its task-relevant and its task-irrelevant part
    inference: C(pool(A + R+))

    L = L_cls + L_align(A) + L_DRE + w L_consist

and, beyond the paper, L_prototypes: f+ is of the class whose mean direction in the other domains is nearest.

Two routings, since the paper says two things. `end-to-end` backpropagates the sum into everything (section 3.2).
`selective` follows the supplementary's Algorithm 1: L_cls updates the whole network (and so does L_prototypes), L_align
only FA, L_DRE only FR, L_consist only C. It costs one forward and one backward of the network: each loss reads its
inputs detached, and C with detached parameters, so that the single backward pass stops where the algorithm says. Only
the gates, which are small, run a second time.

Differences from the paper: each has an option, whose description says why; the preset `far-paper` sets them all back.
"""

from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.losses import (
    class_confusion,
    class_shortage,
    dual_ranking_entropy,
    entropy,
    expert_consistency,
    prototype_loss,
    ranking_entropy_minus,
    ranking_entropy_plus,
    unranked_entropy,
)
from afield.methods.alignment import Alignment, AlignmentOptions, select_by_gate
from afield.methods.method import Inspection, relative_size
from afield.networks import ConvolutionSelection, Experts, Gate, GatedSelection, classify_all, run_aside
from afield.precision import at_least_float32, exact_mean


class FAROptions(AlignmentOptions):
    """Options of FAR. The weights multiply losses whose own weight in L is 1."""

    dre_weight: float = Field(
        2.0, ge=0, description="weight of the dual ranking entropy; the paper's has hardly any effect (paper: 0.1)"
    )
    consistency_weight: float = Field(
        0.1, ge=0, description="weight of learning from the experts (paper: 100, which swamps the other losses)"
    )
    aligned_classification_weight: float = Field(
        0.1, ge=0, description="weight of C's cross-entropy on A alone; it keeps A useful (paper: 0)"
    )
    gate: Literal["both", "channel", "spatial", "conv"] = Field(
        "both", description="branches of both gates; 'conv' makes A by a 1x1 convolution and ReLU instead"
    )
    routing: Literal["end-to-end", "selective"] = Field(
        "end-to-end", description="which parameters each loss updates: all, or those of the paper's Algorithm 1"
    )
    dre: Literal["dual", "plus", "minus", "unranked", "none"] = Field(
        "dual", description="which halves of the ranking entropy; 'unranked' compares with no reference"
    )
    dre_measure: Literal["entropy", "confusion"] = Field(
        "confusion",
        description="what the ranking compares: the entropy of each image's prediction, or the class confusion of the "
        "target's, which sees what classes an image hesitates between (paper: entropy)",
    )
    dre_reference: Literal["live", "detached"] = Field(
        "detached",
        description="'live': the ranking also trains its reference E(C(f)), which rewards blurring A (paper: live)",
    )
    minus_trains: Literal["all", "FR"] = Field(
        "FR",
        description="what L- trains: all, or FR alone, as in the paper's Algorithm 1; with 'all', F learns features "
        "that make f- wrong and that A leaves out (paper's text: all)",
    )
    dre_balance: float = Field(
        0.3,
        ge=0,
        description="if dre_measure is entropy: weight of a guard by which no class may have less than half of an "
        "equal share on the target; without it one class may take all (paper: 0)",
    )
    prototypes_weight: float = Field(
        0.3,
        ge=0,
        description="weight of classifying f+ by the mean directions of the classes in the other domains (paper: 0)",
    )
    prototypes_threshold: float = Field(
        0.9, ge=0, lt=1, description="least probability at which C's prediction counts as a target image's class"
    )
    experts: bool = Field(True, description="one classifier per source reads pool(F) and teaches C")
    experts_shape_backbone: bool = Field(
        False,
        description="the experts' cross-entropy trains the backbone too; held-out sources then do worse (paper: yes)",
    )


class Seen(NamedTuple):
    """What the losses read: pool(F), A's mean over positions, f+, and C's scores of f+, f and f-."""

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
    training_only = frozenset({"experts", "alignment"})
    options: FAROptions

    def __init__(self, shape: Shape, options: FAROptions) -> None:
        super().__init__(shape, options)
        channels = self.map_shape[0]
        kind = "both" if options.gate == "conv" else options.gate
        self.fa: ConvolutionSelection | GatedSelection = (
            ConvolutionSelection(channels) if options.gate == "conv" else select_by_gate(self.map_shape, options, kind)
        )
        # FR stays a plain sigmoid, as in the paper: R- = (1 - FR) R means nothing for a gate above 1.
        self.fr = Gate(channels, kind, options.reduction, self.map_shape[1:])
        self.alignment = Alignment(options, channels, shape)
        self.experts = Experts(shape.num_sources, self.pool.width, shape.num_classes) if options.experts else None

    def restored(self, F: Tensor, A: Tensor) -> Tensor:
        """R+ = FR(R) R, with R = F - A."""
        R = F - A
        gate: Tensor = self.fr(R)
        return gate * R

    def vectors(self, F: Tensor, A: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f+ = pool(A + R+), f = pool(A) and f- = pool(A + R-), which is pool(F - R+); pooling is linear."""
        f, r_plus = self.pool(A), self.pool(self.restored(F, A))
        return f + r_plus, f, whole - r_plus

    def scores_of(self, F: Tensor) -> Tensor:
        """C(pool(A + R+))."""
        A = self.fa(F)
        return super().scores_of(A + self.restored(F, A))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Classification on the sources; alignment and ranking entropy on all domains; consistency on the sources."""
        return self.losses_seen(self.see(F), F, batch)

    def see(self, F: Tensor) -> Seen:
        """All that the losses read."""
        A, whole = self.fa(F), self.pool(F)
        f_plus, f, f_minus = self.vectors(F, A, whole)
        f_plus, aligned_mean = self.alignment.watch(f_plus, self.pool), exact_mean(A, 2, 3)
        if self.options.minus_trains == "all":
            return Seen(whole, aligned_mean, f_plus, *classify_all(self.classifier, f_plus, f, f_minus))
        _, _, f_minus = self.vectors(F.detach(), A.detach(), whole.detach())
        enhanced, reference = classify_all(self.classifier, f_plus, f)
        contaminated = run_aside(self.classifier, f_minus, frozen=True)
        return Seen(whole, aligned_mean, f_plus, enhanced, reference, contaminated)

    def losses_seen(self, seen: Seen, F: Tensor, batch: Batch) -> Losses:
        """The losses of what was seen of a batch, each from what its routing lets it train."""
        options, labels = self.options, batch.labels
        enhanced, reference = batch.split(seen.enhanced)[0], batch.split(seen.reference)[0]
        aligned_mean, student, ranked = seen.aligned_mean, enhanced, (seen.enhanced, seen.reference, seen.contaminated)
        if options.routing == "selective":
            still, A, whole = F.detach(), self.fa(F.detach()), seen.whole.detach()
            aligned_mean = exact_mean(A, 2, 3)  # into FA only
            f_plus, f, f_minus = self.vectors(still, A.detach(), whole)
            judge = partial(run_aside, self.classifier, frozen=True)
            ranked = judge(f_plus), judge(f), judge(f_minus)  # into FR only
            student = batch.split(run_aside(self.classifier, seen.f_plus.detach()))[0]  # into C only

        losses = {"classification": cross_entropy(enhanced, labels)}
        if options.aligned_classification_weight:
            losses["aligned"] = options.aligned_classification_weight * cross_entropy(reference, labels)
        losses |= self.alignment(aligned_mean, seen.enhanced, batch)
        if options.dre != "none":
            losses["dre"] = options.dre_weight * self.ranking_entropy(*ranked, batch)
        if options.prototypes_weight:
            losses["prototypes"] = options.prototypes_weight * self.prototypes(seen, batch)
        if self.experts is not None:
            taught = self.teach(batch, seen.whole)
            losses["experts"] = cross_entropy(taught, labels)
            losses["consistency"] = options.consistency_weight * expert_consistency(student, taught)
        return losses

    def ranking_entropy(self, enhanced: Tensor, reference: Tensor, contaminated: Tensor, batch: Batch) -> Tensor:
        """L_DRE, or the part of it that an ablation keeps, with its guard against collapse."""
        options, measure = self.options, entropy if self.options.dre_measure == "entropy" else class_confusion
        if options.dre_reference == "detached":
            reference = reference.detach()
        if measure is class_confusion and batch.has_target:  # on the sources, cross-entropy already acts on confusion
            enhanced, reference, contaminated = (batch.split(each)[1] for each in (enhanced, reference, contaminated))
        match options.dre:
            case "plus":
                ranking = ranking_entropy_plus(enhanced, reference, measure)
            case "minus":
                ranking = ranking_entropy_minus(reference, contaminated, measure)
            case "unranked":
                ranking = unranked_entropy(enhanced, contaminated, measure)
            case _:
                ranking = dual_ranking_entropy(enhanced, reference, contaminated, measure)
        if options.dre_balance and batch.has_target and measure is entropy:
            ranking = ranking + options.dre_balance * class_shortage(batch.split(enhanced)[1])
        return ranking

    def prototypes(self, seen: Seen, batch: Batch) -> Tensor:
        """The prototype loss of f+; where C is sure of a target image's class, that is its class."""
        said = at_least_float32(seen.enhanced.detach()).softmax(dim=1)
        labels, target = one_hot(batch.labels, said.shape[1]).to(said.dtype), batch.split(said)[1]
        confidence, guessed = target.max(dim=1)
        sure = (confidence >= self.options.prototypes_threshold).to(said.dtype)
        guesses = sure[:, None] * one_hot(guessed, said.shape[1])
        return prototype_loss(batch.by_domain(seen.f_plus), batch.by_domain(torch.cat((labels, guesses))))

    def teach(self, batch: Batch, whole: Tensor) -> Tensor:
        """Each expert's scores on its own source, (n_sources * b, classes)."""
        assert self.experts is not None
        whole = whole if self.options.experts_shape_backbone else whole.detach()
        scores: Tensor = self.experts(batch.by_domain(batch.split(whole)[0]))
        return scores.flatten(0, 1)

    def maps_of(self, F: Tensor) -> dict[str, Tensor]:
        """F, A and A + R+."""
        A = self.fa(F)
        return {"F": F, "A": A, "A+R+": A + self.restored(F, A)}

    def inspect(self, images: Tensor) -> Inspection:
        """Scores of C on F, A, A + R+ and A + R-, and what the two gates let through."""
        F = self.backbone(images)
        A = self.fa(F)
        R_plus = self.restored(F, A)
        maps = {"F": F, "A": A, "A+R+": A + R_plus, "A+R-": F - R_plus}
        views = {name: super(FAR, self).scores_of(features) for name, features in maps.items()}
        return Inspection(views["A+R+"], views, {"kept": relative_size(A, F), "restored": relative_size(R_plus, F - A)})
