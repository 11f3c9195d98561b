"""What makes the domains' features alike: the alignment of FAR and of the rungs before it, with a choice of losses.

Each reads one vector per image. An adversary and the moments of directions read its direction alone, so that their
weight means the same whatever the number and the scale of the features, and shrinking a feature gains nothing. Alone,
the moments do little for a deep network, which matches them without being aligned, and the adversary does harm to a
small one, which cannot follow it. So the default has both where there is a target. Without one (DG) an adversary would
tell the sources apart, which costs accuracy on them; there the default has the moments alone.

On a small network an adversary at weight 1 stops all learning within the first steps. So alignment, except the paper's
moments, may pull no harder at a feature than the losses of the classifier C do, and less while C is still unsure of the
labels (`pull_limit`).

An adversary of features alone may align one class with another. A `conditional` one reads features times what C says of
them, as CDAN's does (Long et al. 2018, arXiv 1705.10667), so that classes are aligned with themselves.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from afield import Batch, Losses, MethodOptions, Shape
from afield.losses import direction_distance, directions, entropy, moment_distance
from afield.methods.cdan import entropy_weights
from afield.methods.dann import domain_loss
from afield.networks import Discriminator, Gate, GatedSelection, GateKind, Pool, joint_map, reverse_gradient, run_aside
from afield.networks.pulls import average_into, limit_pull, measure_pull
from afield.precision import at_least_float32

AlignmentName = Literal["both", "adversary", "directions", "moments"]
DISTANCES = {"both": direction_distance, "directions": direction_distance, "moments": moment_distance}
HIDDEN = 1024


class AlignmentOptions(MethodOptions):
    """Options of methods that align a feature which a gate may select."""

    alignment: AlignmentName = Field(
        "both",
        description="what makes domains alike: a discriminator of the features' directions, the moments of these "
        "directions, both (in DG these moments alone), or the moments of the features, whose weight then depends on "
        "the network (paper: moments)",
    )
    directions_weight: float = Field(
        0.2, ge=0, description="with 'both', in UDA: weight of the directions' moments; the discriminator has 1"
    )
    conditional: bool = Field(
        False,
        description="the discriminator reads directions times C's predictions, and sure ones count more (paper: no)",
    )
    align_weight: float = Field(1.0, ge=0, description="weight of the alignment (paper: 0.5, of its moments)")
    pull_limit: float = Field(
        1.0,
        ge=0,
        description="longest gradient of the alignment by a feature, as a multiple of that of C's losses times the "
        "probability that C gives to the labels; 0: no limit; 'moments' has none (paper: none)",
    )
    projected_gate: bool = Field(
        True,
        description="A is scaled so that its projection on F is F; a plain gate may close, as A = 0 is aligned "
        "(paper: plain)",
    )
    reduction: int = Field(8, ge=1, description="the gates' hidden layers have C / reduction units (paper: 8)")


class Alignment(nn.Module):
    """L_align of vectors (images, channels), and the loss of the discriminator where there is one."""

    pull: Tensor
    sureness: Tensor

    def __init__(self, options: AlignmentOptions, channels: int, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("pull", torch.zeros(()))
        self.register_buffer("sureness", torch.zeros(()))
        self.options, classes = options, shape.num_classes
        self.limited = options.pull_limit > 0 and options.alignment != "moments"
        adversary = options.alignment in ("both", "adversary")
        self.joint = joint_map(channels, classes) if adversary and options.conditional else None
        inputs = channels if self.joint is None else self.joint.width
        self.discriminator = Discriminator(inputs, HIDDEN, max(2, shape.num_sources)) if adversary else None

    def forward(self, vectors: Tensor, scores: Tensor, batch: Batch) -> Losses:
        """`align`, weighted, into the vectors alone; `domain` into the discriminator alone. `scores` are C's."""
        options = self.options
        if self.limited:
            vectors = limit_pull(vectors, self.limit(scores.detach(), batch))
        losses: Losses = {}
        both = options.alignment == "both" and batch.has_target
        if (distance := DISTANCES.get(options.alignment)) is not None:
            weight = options.align_weight * (options.directions_weight if both else 1.0)
            losses["align"] = weight * distance(batch.by_domain(vectors), batch.has_target)
        if self.discriminator is None or not (both or options.alignment == "adversary"):
            return losses
        counts = None
        # Of length sqrt(C), so that a single feature is about 1 in any number of them.
        read = vectors.shape[1] ** 0.5 * directions(vectors)
        if self.joint is not None:
            with torch.autocast(read.device.type, enabled=False):
                read = self.joint(read, at_least_float32(scores.detach()).softmax(dim=1))
            counts = entropy_weights(entropy(scores.detach()), batch)
        fooled = run_aside(self.discriminator, reverse_gradient(read), frozen=True)
        losses["align"] = losses.get("align", 0.0) + options.align_weight * domain_loss(fooled, batch, counts)
        losses["domain"] = domain_loss(self.discriminator(read.detach()), batch, counts)
        return losses

    def watch(self, f: Tensor, pool: Pool) -> Tensor:
        """f, the pooled feature that C reads; the backward pass then measures how hard C's losses pull at it."""
        # The gradient by a map is that by the pooled cells, divided by the cells' sizes; that of `forward` is by the
        # mean of the whole map. The factor makes their lengths on the map comparable.
        rows, columns = pool.grid
        return measure_pull(f, self.pull, (rows * columns) ** 0.5) if self.limited else f

    def limit(self, scores: Tensor, batch: Batch) -> Tensor:
        """How long the gradient by the vectors may be: infinite in the first step, before C's pull is known."""
        said = batch.split(at_least_float32(scores).softmax(dim=1))[0]
        right = said.gather(1, batch.labels[:, None]).mean()
        average_into(self.sureness, right)
        limit = self.options.pull_limit * self.sureness * self.pull
        return torch.where(self.pull > 0, limit, math.inf)


def select_by_gate(
    map_shape: tuple[int, int, int], options: AlignmentOptions, kind: GateKind = "both"
) -> GatedSelection:
    """FA, for maps of a shape."""
    channels, height, width = map_shape
    projected = options.projected_gate
    return GatedSelection(Gate(channels, kind, options.reduction, (height, width), relative=projected), projected)
