"""MixStyle: domain generalization with MixStyle (Zhou, Yang, Qiao, Xiang: ICLR 2021, arXiv 2104.02008).

    mu(x), sigma(x)      mean and deviation of each channel of an image's map x
    x~                   the map of an image of another domain
    mu_mix, sigma_mix    lambda mu(x) + (1 - lambda) mu(x~), and the same of sigma;  lambda ~ Beta(alpha, alpha)
    MixStyle(x)          sigma_mix (x - mu(x)) / sigma(x) + mu_mix               all of it section 3.2

It acts after early stages of the backbone, in training only, in half of the steps and at each stage for itself; mu and
sigma are constants. The rest is cross-entropy on the sources.

Which stages: `networks/stages.py` says. Of a ResNet these are layer1 and layer2, as in the paper for Office-Home; for
PACS it has layer3 too (`method.stages=3`).

Differences from the paper:
- A batch has all domains, where the paper's has two. Each domain is paired with another, by a random shift of their
  order that is the same for all; within the other domain, images are shuffled. With two domains that is the paper's.
- With one source, styles are those of its other images: the paper's shuffle where domains are unknown.
- Whether a step mixes is drawn on the device, and mixed maps are computed in any case: a recorded step does not branch.
"""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Beta

from afield import MethodOptions, Shape, register_method
from afield.methods.baseline import Baseline
from afield.networks import all_rows, early_stages, own_rows, whole_count
from afield.precision import at_least_float32

SMALLEST = 1e-6  # variance


class MixStyleOptions(MethodOptions):
    """Options of MixStyle."""

    probability: float = Field(
        0.5, ge=0, le=1, description="probability of mixing, at each stage in each step (paper: 0.5)"
    )
    alpha: float = Field(0.1, gt=0, description="shares are drawn from Beta(alpha, alpha) (paper: 0.1)")
    stages: int = Field(2, ge=1, le=3, description="early stages of the backbone, each followed by mixing (paper: 2)")


class StyleMixer(nn.Module):
    """Mixes the styles of maps of several domains, which lie one after the other; as a hook, of a part's output."""

    def __init__(self, domains: int, options: MixStyleOptions) -> None:
        super().__init__()
        self.domains, self.options = domains, options

    def hook(self, part: nn.Module, given: tuple[Tensor, ...], maps: Tensor) -> Tensor:
        """What follows a part sees, in training, its maps with mixed styles."""
        mixed: Tensor = self(maps) if self.training else maps
        return mixed

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) to the same, mixed or as they are; all is drawn for the whole batch (`networks/rows.py`)."""
        count, device, alpha = whole_count(maps), maps.device, self.options.alpha
        concentration = torch.full((count, 1, 1, 1), alpha, device=device)
        shares = Beta(concentration, concentration, validate_args=False).sample()
        partners = draw_partners(self.domains, count // self.domains, device)
        mixed = mix_styles(maps, own_rows(partners), own_rows(shares))
        return torch.where(torch.rand((), device=device) < self.options.probability, mixed, maps)


def draw_partners(domains: int, per_domain: int, device: torch.device) -> Tensor:
    """For each image the number of one of another domain: each image is the partner of one."""
    own = torch.arange(domains, device=device)
    shift = torch.randint(1, domains, (1,), device=device) if domains > 1 else 0
    within = torch.rand(domains, per_domain, device=device).argsort(dim=1)
    return (((own + shift) % domains)[:, None] * per_domain + within).flatten()


def mix_styles(maps: Tensor, partners: Tensor, shares: Tensor) -> Tensor:
    """MixStyle(x) of maps (B, C, H, W), with x~ = maps[partners] and lambda = shares (B, 1, 1, 1).

    Where several processes share a batch, partners are numbers of rows of all of them.
    """
    x = at_least_float32(maps)
    variances, mu = torch.var_mean(x.detach(), dim=(2, 3), correction=0, keepdim=True)
    sigma = (variances + SMALLEST).sqrt()
    mu_mix, sigma_mix = (shares * own + (1 - shares) * all_rows(own)[partners] for own in (mu, sigma))
    return (sigma_mix * (x - mu) / sigma + mu_mix).to(maps.dtype)


@register_method("mixstyle", summary="feature statistics of different domains mixed", reference="Zhou et al. 2021")
class MixStyle(Baseline):
    """The baseline, whose backbone is trained with mixed styles. A target is not looked at."""

    Options = MixStyleOptions
    options: MixStyleOptions

    def __init__(self, shape: Shape, options: MixStyleOptions) -> None:
        super().__init__(shape, options)
        # A part of the method, though it has no weights: so it knows whether the method trains.
        self.mixer = StyleMixer(shape.num_sources, options)
        for stage in early_stages(self.backbone, options.stages, shape.image_size):
            stage.register_forward_hook(self.mixer.hook)
