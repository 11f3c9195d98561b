"""Epi-FCR: episodic training for domain generalization (Li et al. 2019, arXiv 1902.00113).

    theta, psi        feature extractor and classifier of the aggregate, which inference keeps
    theta_j, psi_j    the same of source j alone; psi_r: a random classifier that is never trained

    L_agg   psi(theta(x_i))       trains theta and psi              equation 1
    L_ds    psi_i(theta_i(x_i))   trains theta_i and psi_i          equation 2
    L_epif  psi_j(theta(x_i))     trains theta alone, j not i       equation 3
    L_epic  psi(theta_j(x_i))     trains psi alone, j not i         equation 4
    L_epir  psi_r(theta(x_i))     trains theta alone                equation 5

    L = L_agg + lambda_1 L_epif + lambda_2 L_epic + lambda_3 L_epir      equation 6, and L_ds beside it

Differences from the paper:
- One step trains everything; a partner that a loss must not train is read with detached parameters. The authors first
  train 500 of 3000 steps without episodes; here the loop ramps their losses up from 0.
- Every source has its episode in every step: source i meets the partner of source i - s, with s drawn anew. The
  authors' code draws one pair (i, j) per step, and sums L_agg and L_epir over the sources. We take means, so that
  classification weighs as much as in other methods. Hence L_epif and L_epic, ours the mean over N pairs, are divided
  by the number N of sources, and L_epir is not.
- The authors freeze batch norm at its ImageNet statistics, and all networks start from the same weights. Ours learns:
  theta_j starts as a copy of theta, and meets another source's images as at inference, with its own statistics.
"""

from copy import deepcopy

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.networks import Classifier, run_aside


class EpiFCROptions(MethodOptions):
    """Options of Epi-FCR. The weights are the authors' for PACS with ResNet-18."""

    feature_weight: float = Field(
        2.0, ge=0, description="lambda_1, weight of L_epif times the number of sources (authors: 2)"
    )
    classifier_weight: float = Field(
        0.05, ge=0, description="lambda_2, weight of L_epic times the number of sources (authors: 0.05)"
    )
    random_weight: float = Field(0.1, ge=0, description="lambda_3, weight of L_epir (authors: 0.1)")


@register_method("epi-fcr", summary="training with partners of other sources", reference="Li et al. 2019")
class EpiFCR(Method):
    """The aggregate, and in training a network for each source and a random classifier. A target is not looked at."""

    Options = EpiFCROptions
    sees_target = False
    min_sources = 2
    ramped = frozenset({"epif", "epic", "epir"})
    training_only = frozenset({"source_backbones", "source_classifiers", "random_classifier"})
    options: EpiFCROptions

    def __init__(self, shape: Shape, options: EpiFCROptions) -> None:
        super().__init__(shape, options)
        heads = [Classifier(self.pool.width, shape.num_classes, shape.network) for _ in range(shape.num_sources + 1)]
        self.random_classifier = heads.pop().requires_grad_(False)
        self.source_classifiers = nn.ModuleList(heads)
        self.source_backbones = nn.ModuleList(deepcopy(self.backbone) for _ in heads)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """All five. Slices of images, features and labels lie in the order of the sources; rolled, for the episodes."""
        options, labels, f = self.options, batch.labels, self.pool(F)
        images = batch.by_domain(self.images(batch))
        own = [self.pool(backbone(x)) for backbone, x in zip(self.source_backbones, images, strict=True)]
        specific = [classifier(v) for classifier, v in zip(self.source_classifiers, own, strict=True)]
        met, foreign = self.episodes(images)
        rolled_f, rolled_labels = batch.by_domain(f)[met], batch.by_domain(labels)[met].flatten()
        epif = [run_aside(c, v, frozen=True) for c, v in zip(self.source_classifiers, rolled_f, strict=True)]
        epic = run_aside(self.classifier, foreign)
        epir = run_aside(self.random_classifier, f, frozen=True)
        one_pair = 1 / len(own)  # beside L_agg of all sources
        return {
            "classification": cross_entropy(self.classifier(f), labels),
            # A sum over the sources, whose parts are their own.
            "specific": len(own) * cross_entropy(torch.cat(specific), labels),
            "epif": one_pair * options.feature_weight * cross_entropy(torch.cat(epif), rolled_labels),
            "epic": one_pair * options.classifier_weight * cross_entropy(epic, rolled_labels),
            "epir": options.random_weight * cross_entropy(epir, labels),
        }

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it would draw other numbers
    @torch.no_grad()
    def episodes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The source that each network j meets, never j and each other as likely; and its features by theta_j."""
        sources = torch.arange(len(images), device=images.device)
        met = (sources + torch.randint(1, len(images), (1,), device=images.device)) % len(images)
        self.source_backbones.eval()  # and so nothing in them moves
        features = [self.pool(backbone(x)) for backbone, x in zip(self.source_backbones, images[met], strict=True)]
        self.source_backbones.train(self.training)
        return met, torch.cat(features)
