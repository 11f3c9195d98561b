"""CDAN: conditional adversarial domain adaptation (Long, Cao, Wang, Jordan: NeurIPS 2018, arXiv 1705.10667).

    f = pool(backbone(x)),  g = softmax(C(f)),  h = (f, g)
    T(h) = f (x) g                            multilinear map, where its width d_f d_g is at most 4,096 (section 3.1)
         = (R_f f) (.) (R_g g) / sqrt(d)      randomised map, where it is wider; R_f and R_g stay as they were drawn
    E_D  = -E_s w log D(T(h)) - E_t w log(1 - D(T(h)))
    min_{f, C} L_y - lambda E_D,  min_D E_D   (section 3.2)
    w    = 1 + exp(-H(g)), H the entropy      CDAN+E; CDAN has w = 1

lambda rises from 0 by DANN's schedule, and D learns at full weight from the first step: as in `dann`, E_D stands twice
among the losses, as `domain` for D alone and, ramped, as `adversary` for features and classifier.

As in the authors' code, which the paper does not say:
- In T, g is a constant. Through w it is not: by the reversed gradient the classifier learns to be sure, which is the
  entropy minimisation that the paper ascribes to CDAN+E.
- w is divided by its mean over the sources, and over the target, which are constants.

Differences from the paper:
- E_D is the mean over its two expectations, as in `dann` and in the authors' code.
- D has no dropout; the authors' has 0.5 after both hidden layers.
- Several sources are pooled against the target.
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.losses import entropy
from afield.methods.dann import domain_loss
from afield.networks import Discriminator, joint_map, reverse_gradient, run_aside
from afield.precision import at_least_float32


class CDANOptions(MethodOptions):
    """Options of CDAN."""

    entropy_conditioning: bool = Field(True, description="CDAN+E: images count by how sure their prediction is")
    adversary_weight: float = Field(1.0, ge=0, description="lambda's final value, to which it is ramped up (paper: 1)")
    discriminator_width: int = Field(1024, ge=1, description="units of D's two hidden layers (authors: 1024)")
    widest_product: int = Field(
        4096, ge=0, description="width of features times classes above which the map is randomised (paper: 4096)"
    )
    random_width: int = Field(1024, ge=1, description="d, the randomised map's width (authors: 1024)")


@register_method("cdan", summary="a domain classifier of features times predictions", reference="Long et al. 2018")
class CDAN(Method):
    """Cross-entropy on the sources, and joint features and predictions by which D cannot tell the domains."""

    Options = CDANOptions
    options: CDANOptions
    needs_target = True
    pools_target = True
    ramped = frozenset({"adversary"})
    training_only = frozenset({"joint", "discriminator"})

    def __init__(self, shape: Shape, options: CDANOptions) -> None:
        super().__init__(shape, options)
        features, classes = self.pool.width, shape.num_classes
        self.joint = joint_map(features, classes, options.widest_product, options.random_width)
        self.discriminator = Discriminator(self.joint.width, options.discriminator_width, 2)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """L_y, and E_D: for D, and reversed for features and classifier."""
        f = self.pool(F)
        scores = self.classifier(f)
        with torch.autocast(f.device.type, enabled=False):
            T = self.joint(f, at_least_float32(scores).softmax(dim=1).detach())
        # The reversal stands before T and before H, so that nothing but the parts before them sees it.
        weight = self.options.adversary_weight
        H = entropy(scores)
        judged = run_aside(self.discriminator, reverse_gradient(T, weight), frozen=True)
        return {
            "classification": cross_entropy(batch.split(scores)[0], batch.labels),
            "domain": domain_loss(self.discriminator(T.detach()), batch, self.counts(H.detach(), batch)),
            "adversary": domain_loss(judged, batch, self.counts(reverse_gradient(H, weight), batch)),
        }

    def counts(self, H: Tensor, batch: Batch) -> Tensor | None:
        """w, by which images count, from the entropies of their predictions; None: all count alike."""
        return entropy_weights(H, batch) if self.options.entropy_conditioning else None


def entropy_weights(H: Tensor, batch: Batch) -> Tensor:
    """w = 1 + exp(-H), divided by its mean over the sources, and over the target where there is one."""
    parts = batch.split(1 + torch.exp(-H))
    return torch.cat([w / w.mean().detach() for w in parts if len(w)])
