"""ADDA: adversarial discriminative domain adaptation (Tzeng, Hoffman, Saenko, Darrell: CVPR 2017, arXiv 1702.05464).

    phase 0    min over M_s, C    L_cls(C(M_s(x_s)))                                  as the baseline
    phase 1    min over D         -E log D(M_s(x_s)) - E log(1 - D(M_t(x_t)))         eq. 9
               min over M_t       -E log D(M_t(x_t))                                  inverted labels
    inference  C(M_t(x))

M_t begins as M_s and is untied from it; M_s and C stand still in phase 1. As in the authors' code, D reads the class
scores C(M(x)), and M_t and D learn at one rate, by Adam without weight decay. Here M_t is the `backbone`, which phase 0
trains on the sources, and M_s is the copy of it that phase 0 leaves behind: taken anew after every step, so that the
two are equal whenever phase 1 begins, in a recorded step and in a resumed run too. A step of phase 1 is two updates on
one forward pass of M_t: first of D, then of M_t against that D.

Differences from the paper:
- Phase 1 is the second half of the loop's steps, so that all methods train equally long. The loop's schedule lowers its
  rate, which the authors keep.
- In the authors' code, unlike in the paper, the target's copy of C learns with M_t.
- A pretrained backbone learns more slowly than D, by `training.pretrained_rate`.
- Several sources are pooled.
- The paper's LeNet has no batch norm. Here M_t uses the target's statistics, and M_s and C the running ones of phase 0.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from afield import Batch, Learning, Losses, Method, MethodOptions, Shape, register_method
from afield.networks import Discriminator, run_aside


class ADDAOptions(MethodOptions):
    """Options of ADDA."""

    adversary_rate: float = Field(
        0.004,
        gt=0,
        description="learning rate of M_t and D in phase 1, as a multiple of training.lr; at 0.05, the authors' 0.0002",
    )
    discriminator_width: int = Field(500, ge=1, description="units of D's two hidden layers (paper: 500)")


@register_method("adda", summary="a target encoder that fools a discriminator", reference="Tzeng et al. 2017")
class ADDA(Method):
    """First a source model, then its encoder adapted to the target under a classifier that stands still."""

    Options = ADDAOptions
    options: ADDAOptions
    needs_target = True
    pools_target = True
    phases = (0.5,)
    training_only = frozenset({"source_backbone", "discriminator"})

    def __init__(self, shape: Shape, options: ADDAOptions) -> None:
        super().__init__(shape, options)
        self.source_backbone = deepcopy(self.backbone).requires_grad_(False)
        self.discriminator = Discriminator(shape.num_classes, options.discriminator_width)

    def learning(self) -> Mapping[str, Learning]:
        """Phase 1: M_t and D as equals, and C not at all."""
        if self.phase == 0:
            return {}
        equal = Learning(self.options.adversary_rate, weight_decay=0.0, optimiser="adam", betas=(0.5, 0.999))
        return {"backbone": equal, "discriminator": equal, "classifier": Learning(rate=0.0)}

    def train(self, mode: bool = True) -> Self:
        """M_s stands still: its batch norm keeps the statistics it has."""
        super().train(mode)
        if self.source_backbone is not None:  # dropped for inference
            self.source_backbone.eval()
        return self

    def images(self, batch: Batch) -> Tensor:
        """What the backbone learns from: the sources, then the target."""
        return batch.split(batch.images)[self.phase]

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Phase 0: cross-entropy. Phase 1: D's loss, which is not M_t's to lower."""
        if self.phase == 0:
            return {"classification": cross_entropy(self.scores_of(F), batch.labels)}
        with torch.no_grad():
            sources = self.scores_of(self.source_backbone(batch.split(batch.images)[0]))
            target = self.scores_of(F)
        # D's score is the logit of "source": -log D = softplus(-score), -log(1 - D) = softplus(score).
        told = self.discriminator(torch.cat((sources, target)))
        loss = softplus(-told[: len(sources)]).mean() + softplus(told[len(sources) :]).mean()
        return {"discriminator": loss}

    def encoder_loss(self, F: Tensor) -> Tensor:
        """How far the target's maps are from being taken for a source's: -log D, into M_t alone."""
        scores = run_aside(self.classifier, self.pool(F), frozen=True)
        return softplus(-run_aside(self.discriminator, scores, frozen=True)).mean()

    def updates(self, batch: Batch) -> Iterator[Losses]:
        """Phase 0: a step, and M_s made equal to the backbone. Phase 1: D learns, then M_t against it."""
        if self.phase == 0:
            yield self.losses(batch)
            copies, values = (list(m.state_dict().values()) for m in (self.source_backbone, self.backbone))
            torch._foreach_copy_(copies, values)
            return
        images = self.images(batch)
        with self.layout.of((len(images), True)):  # or batch norm would take them for the first of the sources
            F = self.backbone(images)
        yield self.losses_of(F, batch)
        yield {"encoder": self.encoder_loss(F)}
