"""MMD-AAE: a domain-generalizing adversarial autoencoder (Li, Pan, Wang, Kot: CVPR 2018).

    h = Q(x), the code;  P(h) its reconstruction of x;  D tells codes from draws of a Laplace prior;  C classifies codes

    min over Q, P, C and max over D of   L_err + w0 L_ae + w1 R_mmd + w2 J_gan
    L_ae  = |P(Q(x)) - x|^2
    R_mmd = 1 / K^2 sum_{i,j} MMD^2(H_i, H_j) over the K sources' codes
    J_gan = E log D(prior) + E log(1 - D(h))

Differences from the paper:
- The paper encodes fixed features or pixels. Here x are the pooled features, and all losses but D's train the backbone
  too. As what P is to give back, x is a constant: otherwise it would shrink to please P.
- C has as many layers as every method's here.
- MMDs are squared, so that their gradients are finite at 0, and the kernels' widths follow the data: five about the
  mean squared distance, where the paper has 1, 5 and 10. The kernel is their mean, as in the re-implementations that w1
  comes from, not their sum, as in DAN's code.
- L_ae is a mean over the values of x, as there, where the paper has their sum.
- D and the others step at once, each at weight w2, where the paper takes turns. Q lowers -log D(h) instead of
  log(1 - D(h)), whose gradient vanishes while D is sure. The loop raises w1, and w2 where Q reads it, from 0.
- A target's images are not looked at.
- No code by the authors is known to us; the weights are those of public re-implementations.
"""

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.losses import squared_mmd_among
from afield.networks import Discriminator, run_aside
from afield.precision import in_float32


class MMDAAEOptions(MethodOptions):
    """Options of MMD-AAE."""

    reconstruction_weight: float = Field(0.1, ge=0, description="w0, weight of the mean squared error of P(h)")
    mmd_weight: float = Field(2.0, ge=0, description="w1, weight of the squared MMD among the sources' codes")
    prior_weight: float = Field(0.1, ge=0, description="w2, weight of matching the prior")
    code_share: float = Field(
        0.5, gt=0, description="width of the code, as a share of that of the features (paper: 2000 for 4096)"
    )


@register_method("mmd-aae", summary="adversarial autoencoder, MMD among sources", reference="Li et al. 2018")
class MMDAAE(Method):
    """Backbone, encoder Q, classifier C and, in training, decoder P and discriminator D."""

    Options = MMDAAEOptions
    options: MMDAAEOptions
    sees_target = False
    min_sources = 2
    ramped = frozenset({"mmd", "prior"})
    training_only = frozenset({"decoder", "discriminator"})

    def __init__(self, shape: Shape, options: MMDAAEOptions) -> None:
        super().__init__(shape, options)
        code, width = self.code, self.pool.width
        self.encoder = nn.Linear(width, code)
        self.decoder = nn.Linear(code, width)
        self.discriminator = Discriminator(code)

    def head(self, inputs: int) -> nn.Module:
        """C reads codes."""
        self.code = max(1, round(self.options.code_share * inputs))
        return super().head(self.code)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """The four terms, J_gan in two: what D lowers, and how far codes are from passing for draws of the prior."""
        options, features = self.options, self.pool(F)
        code = in_float32(self.encoder, features)
        reconstruction = in_float32(self.decoder, code)
        # D's score is the logit of "drawn": -log D = softplus(-score), -log(1 - D) = softplus(score).
        drawn, coded = self.discriminator(torch.cat((laplace_like(code), code.detach()))).chunk(2)
        taken = run_aside(self.discriminator, code, frozen=True)
        return {
            "classification": cross_entropy(self.classifier(code), batch.labels),
            "reconstruction": options.reconstruction_weight * mse_loss(reconstruction, features.detach()),
            "mmd": options.mmd_weight * squared_mmd_among(batch.by_domain(code)),
            "discriminator": options.prior_weight * (softplus(-drawn).mean() + softplus(coded).mean()),
            "prior": options.prior_weight * softplus(-taken).mean(),
        }

    def scores_of(self, F: Tensor) -> Tensor:
        """Class scores of the code."""
        scores: Tensor = self.classifier(in_float32(self.encoder, self.pool(F)))
        return scores


def laplace_like(code: Tensor) -> Tensor:
    """Draws of Laplace(0, 1 / sqrt 2), whose variance is 1: a difference of two exponential draws, scaled."""
    draws = code.new_empty((2, *code.shape)).exponential_()
    return (draws[0] - draws[1]) / math.sqrt(2)
