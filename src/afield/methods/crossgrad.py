"""CrossGrad: generalizing across domains via cross-gradient training (Shankar et al. 2018, arXiv 1804.10745).

    x_d = x + eps grad_x J_d(x, d)        towards images that the domain network takes for another domain's
    x_l = x + eps grad_x J_l(x, y)        towards images that the label network takes for another class's
    label network:   (1 - alpha) J_l(x, y) + alpha J_l(x_d, y)
    domain network:  (1 - alpha) J_d(x, d) + alpha J_d(x_l, d)      all of it Algorithm 1

Two networks of one architecture, each trained on the images that the other's loss has moved; the moves are constants.

Differences from the paper:
- One step eps and one share alpha serve both networks, as in the authors' code; Algorithm 1 has two of each. In the
  paper the label network may also read the domain network's features, as constants; not in that code, nor here.
- The gradient is that of the sum over images, so that a move does not shrink with the batch. (Batch norm's statistics
  let the losses of other images take part in it.) The authors' code takes it of the mean over 32 images, clips it to
  0.1, and goes 10 times as far. Hence our step of 10 / 32, and no value that moves by more than 1. Where domains are
  easily told apart, as digits are, J_d is nearly 0 and so is the move.
- Moved images do not enter batch norm's running statistics; the authors' networks have none.
"""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.networks import Classifier, build_backbone, run_aside

FURTHEST = 1.0  # that a value of an image moves


class CrossGradOptions(MethodOptions):
    """Options of CrossGrad."""

    epsilon: float = Field(0.3125, ge=0, description="step along an image's gradient (authors: 10, for a mean over 32)")
    alpha: float = Field(0.5, ge=0, le=1, description="share of the moved images in both losses (authors: 0.5)")


@register_method("crossgrad", summary="images moved along the other task's gradient", reference="Shankar et al. 2018")
class CrossGrad(Method):
    """A label network, which inference keeps, and a domain network beside it. A target is not looked at."""

    Options = CrossGradOptions
    sees_target = False
    min_sources = 2
    training_only = frozenset({"domain_network"})
    options: CrossGradOptions

    def __init__(self, shape: Shape, options: CrossGradOptions) -> None:
        super().__init__(shape, options)
        head = Classifier(self.pool.width, shape.num_sources, shape.network)
        self.domain_network = nn.Sequential(build_backbone(shape.network, shape.image_size), self.pool, head)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled graph is walked back only once
    def losses(self, batch: Batch) -> Losses:
        """Both networks on the images as they are, then each on those that the other's loss has moved."""
        alpha, labels = self.options.alpha, batch.labels
        x = self.images(batch).detach().requires_grad_()
        domains = torch.arange(batch.num_sources, device=x.device)[:, None].expand(-1, batch.per_domain).flatten()
        label_network = nn.Sequential(self.backbone, self.pool, self.classifier)
        label_loss = cross_entropy(label_network(x), labels)
        domain_loss = cross_entropy(self.domain_network(x), domains)
        x_d, x_l = self.moved(x, domain_loss), self.moved(x, label_loss)
        return {
            "classification": (1 - alpha) * label_loss,
            "moved_classification": alpha * cross_entropy(run_aside(label_network, x_d), labels),
            "domain": (1 - alpha) * domain_loss,
            "moved_domain": alpha * cross_entropy(run_aside(self.domain_network, x_l), domains),
        }

    def moved(self, x: Tensor, loss: Tensor) -> Tensor:
        """The images, each a step up its own part of a loss that is their mean."""
        with torch.autocast(x.device.type, enabled=False):
            (gradient,) = torch.autograd.grad(loss * len(x), x, retain_graph=True)
        return x.detach() + (self.options.epsilon * gradient).clamp(-FURTHEST, FURTHEST)
