"""DANN: domain-adversarial training (Ganin, Ustinova, Ajakan, Germain, Larochelle, Laviolette, Marchand, Lempitsky:
JMLR 2016, arXiv 1505.07818).

    f = pool(backbone(x))
    E = L_y(C(f)) - lambda L_d(D(f))               section 4.2
    D lowers L_d, the backbone raises it by a reversed gradient, in one backward pass (eq. 13 to 15)

lambda rises from 0 by 2 / (1 + exp(-10 p)) - 1 (section 5.2), which is the loop's ramp. It weighs only the reversed
gradient: D learns at full weight from the first step, as in the paper. So L_d stands twice among the losses. As
`domain` it reads f detached and trains D alone; as `adversary`, which is ramped, it reads D with detached parameters
through the reversal and trains the backbone alone. Their sum has the gradient of eq. 13 to 15.

Differences from the paper:
- L_d is the mean of two means, over the sources and over the target, as over one balanced batch. The paper's E adds the
  two; at the rates used here, D's reversed gradient then drowned the classes.
- C is that of the network options, for the digits one linear layer. The paper's for SVHN has two hidden layers
  (`network.hidden`), before which its D branches off, as here.
- Rate and schedule are the loop's. The paper's: `training.lr` 0.01 and `training.schedule` "inverse".
- Several sources are pooled against the target. Without a target (DG), D tells the sources apart, as in later work.
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.networks import Discriminator, reverse_gradient, run_aside


class DANNOptions(MethodOptions):
    """Options of DANN."""

    adversary_weight: float = Field(1.0, ge=0, description="lambda's final value, to which it is ramped up (paper: 1)")
    discriminator_width: int = Field(1024, ge=1, description="units of D's two hidden layers (paper: 1024)")


@register_method("dann", summary="a gradient-reversed domain classifier", reference="Ganin et al. 2016")
class DANN(Method):
    """Cross-entropy on the sources, and features by which a discriminator cannot tell the domains."""

    Options = DANNOptions
    pools_target = True
    options: DANNOptions
    ramped = frozenset({"adversary"})
    training_only = frozenset({"discriminator"})

    def __init__(self, shape: Shape, options: DANNOptions) -> None:
        super().__init__(shape, options)
        # One score for the sources and one for the target, or one per source: which of the two, only a batch says.
        outputs = max(2, shape.num_sources)
        self.discriminator = Discriminator(self.pool.width, options.discriminator_width, outputs)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Cross-entropy of the classes, and that of the domains: for D, and reversed for the backbone."""
        vectors = self.pool(F)
        source, _ = batch.split(vectors)
        reversed_ = reverse_gradient(vectors, self.options.adversary_weight)
        return {
            "classification": cross_entropy(self.classifier(source), batch.labels),
            "domain": domain_loss(self.discriminator(vectors.detach()), batch),
            "adversary": domain_loss(run_aside(self.discriminator, reversed_, frozen=True), batch),
        }


def domain_loss(scores: Tensor, batch: Batch, counts: Tensor | None = None) -> Tensor:
    """L_d: sources against target, each averaged; or, without a target, source against source.

    `counts`, (images,), weighs the images; each is 1 otherwise.
    """
    numbers = torch.arange(len(scores), device=scores.device)
    if batch.has_target:
        losses = cross_entropy(scores[:, :2], (numbers >= batch.num_labelled).long(), reduction="none")
    else:
        losses = cross_entropy(scores[:, : batch.num_sources], numbers // batch.per_domain, reduction="none")
    source, target = batch.split(losses if counts is None else counts * losses)
    return (source.mean() + target.mean()) / 2 if batch.has_target else source.mean()
