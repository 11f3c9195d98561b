"""MCD: maximum classifier discrepancy (Saito, Watanabe, Ushiku, Harada: CVPR 2018, arXiv 1712.02560).

A generator G and two classifiers F1, F2, with d the mean L1 distance of their softmaxes (section 3.2). A step is three
kinds of update (section 3.3):

    A    min over G, F1, F2    L(F1) + L(F2)                      on the sources
    B    min over F1, F2       L(F1) + L(F2) - d on the target    G stands still
    C    min over G            d on the target                    F1 and F2 stand still; n = 4 times
    inference                  mean of both predictions

Target images far from the sources are where F1 and F2 can differ (B); G moves them away from there (C).

Differences from the paper:
- Several sources are pooled. A batch has as many images of the target as of each; `training.target_batches` gives more.
- The optimiser is the loop's (authors: Adam at 0.0002). That one does all updates changes nothing: what an update does
  not train has no gradient, and keeps its momentum.
- In all updates sources and target pass G together, normalised by the same statistics, and only A's pass moves the
  running ones. In the authors' code each domain passes alone, for which there is `network.batch_norm`, and the target,
  which passes in B and C, moves them most. Where no sources' image changes what the target's become, C passes the
  target alone, and B passes the sources without a gradient: the same losses and gradients with less work.
- Classifiers are those of the network options, for the digits one linear layer (authors: two or three). Fully connected
  layers within G, which the authors have too, are `network.neck`.
- Predictions are averaged; the authors add scores, and DASSL keeps F1 alone.

The weight of d is constant in the paper and is not ramped here.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import classifier_discrepancy
from afield.networks import Ensemble, mean_prediction, norms_of, run_aside


class MCDOptions(MethodOptions):
    """Options of MCD."""

    discrepancy_weight: float = Field(1.0, ge=0, description="weight of d in steps B and C (paper: 1)")
    generator_updates: int = Field(4, ge=1, description="n, how often step C is taken (paper: 2 to 4; code: 4)")


@register_method("mcd", summary="two classifiers disagree, features reconcile them", reference="Saito et al. 2018")
class MCD(Method):
    """Backbone G and a pair of classifiers, both of which inference keeps."""

    Options: ClassVar[type[MethodOptions]] = MCDOptions
    options: MCDOptions
    needs_target = True
    pools_target = True

    def head(self, inputs: int) -> nn.Module:
        """F1 and F2."""
        return Ensemble(2, inputs, self.shape.num_classes, self.shape.network)

    def scores_of(self, F: Tensor) -> Tensor:
        """Log-probabilities of the mean prediction."""
        return mean_prediction(self.classifier(self.pool(F)))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Step A."""
        return {"classification": self.classification(self.classifier(self.pool(F)), batch)}

    def updates(self, batch: Batch) -> Iterator[Losses]:
        """Steps A, B and n times C."""
        weight = self.options.discrepancy_weight
        yield self.losses(batch)

        images, rows = self.images(batch), self.layout.stretches  # what C passes, too
        sources = images[:0]
        if self.target_is_alone():
            sources, images = batch.split(images)
            rows = [(len(images), True)]
        with self.layout.of(*rows):
            vectors = self.features_aside(images)
        with torch.no_grad():  # afterwards, or autocast might keep weights that have no gradient for the pass above
            others = [self.features_aside(sources)] if len(sources) else []
        scores = run_aside(self.classifier, torch.cat((*others, vectors.detach())))
        apart = self.discrepancy(scores[:, batch.num_labelled :])
        yield {"kept": self.classification(scores, batch), "apart": -weight * apart}

        for turn in range(self.options.generator_updates):
            with self.layout.of(*rows):
                if turn:  # G is still as step B saw it in the first
                    vectors = self.features_aside(images)
                scores = run_aside(self.classifier, vectors, frozen=True)
            yield {"together": weight * self.discrepancy(scores[:, batch.num_labelled - len(sources) :])}

    def target_is_alone(self) -> bool:
        """Whether what the network makes of the target's images depends on theirs alone."""
        return self.layout.kind in ("apart", "each") or not any(norm.training for norm in norms_of(self))

    def features_aside(self, images: Tensor) -> Tensor:
        """What G makes of images now; the running statistics stay as they are."""
        vectors: Tensor = self.pool(run_aside(self.backbone, images))
        return vectors

    def classification(self, scores: Tensor, batch: Batch) -> Tensor:
        """L(F1) + L(F2) from scores (2, B, classes)."""
        first, second = scores[:, : batch.num_labelled]
        return cross_entropy(first, batch.labels) + cross_entropy(second, batch.labels)

    def discrepancy(self, scores: Tensor) -> Tensor:
        """d, from the target's scores."""
        first, second = scores
        return classifier_discrepancy(first, second)
