"""DAEL: domain adaptive ensemble learning (Zhou, Yang, Qiao, Xiang: IEEE Transactions on Image Processing 2021,
arXiv 2003.07325).

One feature extractor and an expert E_i, a classifier, for each of K sources. a(x) is an image with the usual
augmentation, A(x) a strong view of the same image; p_i(.) is what expert i predicts.

    L_ce    mean_i  cross-entropy of p_i(a(x_i))                      each expert learns its own source
    L_cr    mean_i  |mean_{j != i} p_j(A(x_i)) - p_i(a(x_i))|^2       the others together learn what expert i says
    L_u     cross-entropy of mean_j p_j(A(x_t)) with the label that the surest expert gives a(x_t),
            where that expert's probability is at least 0.95
    L = L_ce + L_cr + w L_u, w = 0.5;  inference: the mean of all p_j

What teaches (p_i in L_cr, the label in L_u) is a constant.

Differences from the paper:
- All images of a step pass the network together. With `network.batch_norm = "each"` every domain and its strong views
  are normalised alone, as in the authors' code; with "apart", in UDA, the target is together with its strong views,
  and the sources are not.
- Strong views are RandAugment as in the authors' code (`afield.data.strong_views`), for photographs without Cutout.
  They are made of a(x), crop and colours changed, where the augmentation does that. The authors make A(x) of x itself.
  Of a photograph their a(x) is only shifted and mirrored, so that their experts teach what they say of a cleaner image.
- Without a target (DG), L_u is absent, as in the paper.
"""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.networks import Ensemble, mean_prediction
from afield.precision import at_least_float32


class DAELOptions(MethodOptions):
    """Options of DAEL."""

    target_weight: float = Field(
        0.5, ge=0, description="w, weight of learning the target's pseudo-labels (authors: 0.5)"
    )
    threshold: float = Field(
        0.95, ge=0, lt=1, description="probability from which on a label is believed (paper: 0.95)"
    )


@register_method("dael", summary="experts teach each other on strong views", reference="Zhou et al. 2021")
class DAEL(Method):
    """One backbone and an expert for each source, all of which inference keeps."""

    Options = DAELOptions
    options: DAELOptions
    min_sources = 2

    def head(self, inputs: int) -> nn.Module:
        """The experts."""
        return Ensemble(self.shape.num_sources, inputs, self.shape.num_classes, self.shape.network)

    def scores_of(self, F: Tensor) -> Tensor:
        """Log-probabilities of the mean prediction."""
        return mean_prediction(self.classifier(self.pool(F)))

    def images(self, batch: Batch) -> Tensor:
        """All images, then strong views of the target's and of the sources'."""
        sources, target = batch.split(batch.images)
        return torch.cat((batch.images, *(batch.strong_view(part) for part in (target, sources) if len(part))))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """L_ce, L_cr and, where there is a target, L_u."""
        scores = self.classifier(self.pool(F))  # (K, images, classes)
        plain, strong = scores[:, : len(batch.images)], scores[:, len(batch.images) :]
        sources, target = plain[:, : batch.num_labelled], plain[:, batch.num_labelled :]
        views, target_views = strong[:, -batch.num_labelled :], strong[:, : -batch.num_labelled]
        own = batch.own(sources)
        losses = {
            "classification": cross_entropy(own, batch.labels),
            "collaboration": self.collaboration(own, views, batch),
        }
        if batch.has_target:
            losses["pseudo_labels"] = self.options.target_weight * self.pseudo_labels(target, target_views)
        return losses

    def collaboration(self, own: Tensor, views: Tensor, batch: Batch) -> Tensor:
        """L_cr, from each expert's scores of its own source and all experts' scores of all sources' strong views."""
        said = at_least_float32(views).softmax(dim=-1)
        by_itself = batch.own(said)
        others = (said.sum(dim=0) - by_itself) / (len(said) - 1)
        taught = at_least_float32(own.detach()).softmax(dim=-1)
        return (others - taught).square().sum(dim=-1).mean()

    def pseudo_labels(self, target: Tensor, views: Tensor) -> Tensor:
        """L_u, from all experts' scores (K, b, classes) of the target's images and of their strong views."""
        with torch.no_grad():
            confidence, labels = at_least_float32(target).softmax(dim=-1).max(dim=-1)
            surest, expert = confidence.max(dim=0)
            believed = (surest >= self.options.threshold).to(surest.dtype)
            label = labels.gather(0, expert[None]).squeeze(0)
        return (believed * nll_loss(mean_prediction(views), label, reduction="none")).mean()
