"""Variants of FAR that were tried on the way to its present form; docs/research-log.md says what each gave.

    afield train --data digit5 --target sv --out runs/joint \
        --method ./benchmarks/ideas/far_ideas.py:FARIdeas --set method.another=joint

They are methods from outside the package, as any user may add them, and take part in plans by the same name.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from afield import Batch, Losses, Shape, register_method
from afield.losses import class_confusion, class_shortage, direction_distance, entropy, squared_mmd_among
from afield.losses.moments import distance_of_domains
from afield.methods.alignment import Alignment
from afield.methods.dann import domain_loss
from afield.methods.far import FAR, FAROptions, Seen
from afield.methods.far_plus import FARPlus, FARPlusOptions
from afield.networks import Discriminator, GatedSelection, Pool, reverse_gradient, run_aside
from afield.precision import at_least_float32

Another = Literal["", "joint", "directions+joint", "joint adversary", "all domains", "kernels", "balanced"]


class IdeasOptions(FAROptions):
    """What the variants add to FAR's options."""

    another: Another = Field("", description="an alignment that FAR does not have, in place of its own")
    memory: float = Field(0.0, ge=0, lt=1, description="decay of running joint moments; 0: those of the batch")
    two_adversaries: bool = Field(False, description="half of the adversary reads features alone, half predictions too")
    aligned_feature: Literal["A", "f+"] = Field("A", description="the feature that is aligned")
    mean_gate: bool = Field(False, description="FA's gate is divided by its mean, and not projected")
    share: float = Field(1.0, gt=0, le=1, description="the projection of A on F, as a share of F")
    confusion_weight: float = Field(0.0, ge=0, description="weight of minimum class confusion on the target")
    temperature: float = Field(0.0, ge=0, description="C compares directions and divides by this; 0: C is linear")
    guard: Literal["half", "equal"] = Field(
        "half", description="classes' shares: at least half of an equal one; or equal"
    )
    ranked: Literal["all", "agreed", "target"] = Field(
        "all",
        description="images with an entropy loss; 'agreed': prototypes agree with C; 'target': no ranking",
    )


class MeanSelection(GatedSelection):
    """The gate divided by its mean over the map."""

    def forward(self, features: Tensor) -> Tensor:
        """A."""
        gate = at_least_float32(self.gate(features))
        return (gate / gate.mean(dim=(1, 2, 3), keepdim=True)).to(features.dtype) * features


class Shared(nn.Module):
    """A share of what another selection selects."""

    def __init__(self, selection: nn.Module, share: float) -> None:
        super().__init__()
        self.selection, self.share = selection, share

    def forward(self, features: Tensor) -> Tensor:
        """A."""
        selected: Tensor = self.share * self.selection(features)
        return selected


class Cosine(nn.Module):
    """Directions of vectors against those of the classes."""

    def __init__(self, inputs: int, classes: int, temperature: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, inputs) * inputs**-0.5)
        self.temperature = temperature

    def forward(self, vectors: Tensor) -> Tensor:
        """Scores."""
        with torch.autocast(vectors.device.type, enabled=False):
            return normalize(at_least_float32(vectors)) @ normalize(self.weight).T / self.temperature


class Parts(nn.Module):
    """The parts of another alignment, whose losses `Ideas` computes."""

    def __init__(self, discriminator: nn.Module | None) -> None:
        super().__init__()
        self.discriminator = discriminator

    def watch(self, f: Tensor, pool: nn.Module) -> Tensor:
        """f: no pull is limited."""
        return f

    def forward(self, vectors: Tensor, scores: Tensor, batch: Batch) -> Losses:
        """Nothing."""
        return {}


class TwoAdversaries(nn.Module):
    """FAR's alignment twice at half of its weight, once with an adversary that reads predictions too."""

    def __init__(self, options: FAROptions, channels: int, shape: Shape) -> None:
        super().__init__()
        halves = [{"align_weight": options.align_weight / 2, "conditional": read} for read in (False, True)]
        self.halves = nn.ModuleList(Alignment(options.model_copy(update=of), channels, shape) for of in halves)

    def watch(self, f: Tensor, pool: Pool) -> Tensor:
        """f; both will know how hard C's losses pull at it."""
        for half in self.halves:
            f = half.watch(f, pool)
        return f

    def forward(self, vectors: Tensor, scores: Tensor, batch: Batch) -> Losses:
        """The losses of both, summed by name."""
        first, second = (half(vectors, scores, batch) for half in self.halves)
        return {name: first[name] + second[name] for name in first}


class Ideas(FAR):
    """FAR with the options above."""

    options: IdeasOptions

    def __init__(self, shape: Shape, options: IdeasOptions) -> None:
        super().__init__(shape, options)
        channels, classes, another = self.map_shape[0], shape.num_classes, options.another
        if options.mean_gate:
            self.fa = MeanSelection(self.fa.gate)
        elif options.share < 1:
            self.fa = Shared(self.fa, options.share)
        if options.two_adversaries:
            self.alignment = TwoAdversaries(options, channels, shape)
        if another:
            adversary = another in ("joint adversary", "all domains")
            inputs = channels * (classes if another == "joint adversary" else 1)
            self.alignment = Parts(Discriminator(inputs, 1024, shape.num_sources + 1) if adversary else None)
            if options.memory:
                running = torch.zeros(1, shape.num_sources + 1, channels * classes)
                self.alignment.register_buffer("running", running)

    def head(self, inputs: int) -> nn.Module:
        """C."""
        temperature = self.options.temperature
        return Cosine(inputs, self.shape.num_classes, temperature) if temperature else super().head(inputs)

    def losses_seen(self, seen: Seen, F: Tensor, batch: Batch) -> Losses:
        """FAR's losses, of which some are replaced, and others."""
        options = self.options
        p = at_least_float32(seen.enhanced.detach()).softmax(dim=1)
        p = torch.cat((one_hot(batch.labels, p.shape[1]).to(p.dtype), batch.split(p)[1]))
        losses = super().losses_seen(seen, F, batch)
        if options.another:
            vectors = seen.aligned_mean if options.aligned_feature == "A" else seen.f_plus
            losses |= self.align_otherwise(vectors, p, batch)
        if "dre" in losses:
            losses["dre"] = options.dre_weight * self.rank_otherwise(seen, F, p, batch)
        if options.confusion_weight and batch.has_target:
            losses["confusion"] = options.confusion_weight * class_confusion(batch.split(seen.enhanced)[1])
        return losses

    def rank_otherwise(self, seen: Seen, F: Tensor, p: Tensor, batch: Batch) -> Tensor:
        """L_DRE, of fewer images or for fewer parts."""
        options = self.options
        enhanced, reference, contaminated = seen.enhanced, seen.reference, seen.contaminated
        target = batch.split(enhanced)[1]
        if options.ranked == "target":
            return entropy(target).mean() + options.dre_balance * class_shortage(target)
        if options.ranked == "agreed":
            agreed = agreement(seen.f_plus.detach(), p, batch)
            E = entropy(torch.stack((enhanced, reference.detach(), contaminated)))
            ranking = (torch.nn.functional.softplus(E[:2] - E[1:]).sum(dim=0) * agreed).mean()
            return ranking + options.dre_balance * class_shortage(target)
        ranking = self.ranking_entropy(enhanced, reference, contaminated, batch)
        if options.guard == "equal" and batch.has_target:
            ranking = ranking + options.dre_balance * (class_imbalance(target) - class_shortage(target))
        return ranking

    def align_otherwise(self, vectors: Tensor, p: Tensor, batch: Batch) -> Losses:
        """Another L_align, and the loss of its discriminator."""
        weight, another, by_domain = self.options.align_weight, self.options.another, batch.by_domain
        unit = normalize(at_least_float32(vectors))
        if another == "kernels":
            return {"align": weight * squared_mmd_among(by_domain(vectors))}
        distance = vectors.new_zeros((), dtype=unit.dtype)
        if another in ("directions+joint"):
            distance = distance + direction_distance(by_domain(vectors), batch.has_target)
        if another in ("joint", "directions+joint"):
            distance = distance + self.joint_distance(by_domain(unit), by_domain(p), batch.has_target)
        losses = {"align": weight * distance}
        if (D := self.alignment.discriminator) is not None:
            losses["align"] = losses["align"] + self.domains(
                run_aside(D, self.judged(reverse_gradient(unit, weight), p), frozen=True), batch
            )
            losses["domain"] = self.domains(D(self.judged(unit, p).detach()), batch)
        return losses

    def judged(self, unit: Tensor, p: Tensor) -> Tensor:
        """What the discriminator reads."""
        read = (unit[:, :, None] * p[:, None]).flatten(1) if self.options.another == "joint adversary" else unit
        return unit.shape[1] ** 0.5 * read

    def domains(self, scores: Tensor, batch: Batch) -> Tensor:
        """The discriminator's loss."""
        if self.options.another != "all domains" or not batch.has_target:
            return domain_loss(scores, batch)
        return cross_entropy(scores, torch.arange(len(scores), device=scores.device) // batch.per_domain)

    def joint_distance(self, unit: Tensor, p: Tensor, has_target: bool) -> Tensor:
        """Between the domains' means of unit vectors times predictions."""
        means = p.shape[2] ** 0.5 * torch.einsum("nbc,nbk->nck", unit, p).flatten(1)[None] / p.shape[1]
        if self.options.memory:
            running = self.alignment.running[:, : means.shape[1]]
            mixed = torch.lerp(means.detach(), running, self.options.memory)
            running.copy_(mixed)
            means = means + (mixed - means).detach()
        return distance_of_domains(means, has_target)


@register_method("far-ideas", summary="variants of FAR that were tried", reference="this project")
class FARIdeas(Ideas):
    """Variants of FAR."""

    Options = IdeasOptions
    ramped = FAR.ramped | {"confusion"}


class PlusIdeasOptions(IdeasOptions, FARPlusOptions):
    """What the variants add to the options of FAR+."""

    views_weight: float = Field(0.0, ge=0, description="weight of classifying strong views of the sources' images")


@register_method("far-plus-ideas", summary="variants of FAR+ that were tried", reference="this project")
class FARPlusIdeas(FARPlus, Ideas):
    """Variants of FAR+."""

    Options = PlusIdeasOptions
    ramped = FARPlus.ramped | {"confusion"}
    options: PlusIdeasOptions

    def images(self, batch: Batch) -> Tensor:
        """All images, and strong views of the target's or of all."""
        if not self.options.views_weight:
            return super().images(batch)
        return torch.cat((batch.images, batch.strong_view(batch.images)))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """The losses of FAR+, and cross-entropy of the sources' views."""
        if not self.options.views_weight:
            return super().losses_of(F, batch)
        plain, views = F.chunk(2)
        source, target = batch.split(views)
        losses = super().losses_of(torch.cat((plain, target)), batch)
        return losses | {"views": self.options.views_weight * cross_entropy(self.scores_of(source), batch.labels)}


def agreement(f_plus: Tensor, p: Tensor, batch: Batch) -> Tensor:
    """1 where the nearest mean direction of the sources' classes is the class that C says."""
    unit = normalize(at_least_float32(f_plus))
    source, _ = batch.split(unit)
    means = normalize(batch.split(p)[0].T @ source)
    return ((unit @ means.T).argmax(dim=1) == p.argmax(dim=1)).to(p.dtype)


def class_imbalance(scores: Tensor) -> Tensor:
    """How far the entropy of the mean prediction is from that of equal shares."""
    mean = at_least_float32(scores).softmax(dim=1).mean(dim=0)
    imbalance: Tensor = math.log(len(mean)) - torch.special.entr(mean).sum()
    return imbalance
