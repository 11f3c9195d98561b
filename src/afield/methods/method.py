"""What a method is: its parts, its losses on a batch, and its class scores at inference."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from afield.config.network import NetworkOptions
from afield.config.options import MethodOptions
from afield.data.batches import Batch
from afield.networks import Classifier, Pool, build_backbone, map_shape

Losses = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """What a method is built for: a network, the size of its images, the number of classes and of sources."""

    network: NetworkOptions
    image_size: int
    num_classes: int
    num_sources: int


@dataclass(frozen=True)
class Inspection:
    """What an evaluation looks at: the scores that count, scores from other features, and gate statistics (B,)."""

    scores: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)
    gates: dict[str, Tensor] = field(default_factory=dict)


class Method(nn.Module):
    """Base of all methods. A subclass builds its parts in `__init__` and overrides `losses_of` (or `losses`) and
    `forward`.

    The base builds what every method has: `backbone` (image to map F), `pool` (map to vector) and `classifier`.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    needs_target: ClassVar[bool] = False
    """True: works in UDA only, where target images are seen in training."""
    min_sources: ClassVar[int] = 1
    ramped: ClassVar[frozenset[str]] = frozenset()
    """Names of the losses whose weight the loop ramps up from 0."""
    training_only: ClassVar[frozenset[str]] = frozenset()
    """Names of the parts that inference does without."""
    phases: ClassVar[tuple[float, ...]] = ()
    """Shares of training, such as (0.5,), at which the method's step begins to be another one; see `phase`. Each phase
    has the learning rate's schedule and the ramp to itself, and begins without momentum."""
    phase: int = 0
    """How many of the `phases` have begun. The loop sets it, before each step. A step may branch on nothing else that
    changes from step to step, since it may have been recorded."""

    def __init__(self, shape: Shape, options: MethodOptions) -> None:
        super().__init__()
        self.options = options
        self.passes_apart = shape.network.batch_norm == "apart"
        self.backbone = build_backbone(shape.network)
        self.map_shape = map_shape(self.backbone, shape.image_size, shape.network.backbone)
        self.pool = Pool(shape.network.pool, self.map_shape)
        self.classifier = Classifier(self.pool.width, shape.num_classes, shape.network)

    def losses(self, batch: Batch) -> Losses:
        """Every loss by name, weighted; the loop sums them, and ramps up those that `ramped` names."""
        return self.losses_of(self.maps(batch), batch)

    def maps(self, batch: Batch, backbone: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """What the backbone, or a stand-in for it, makes of those images in training.

        In one pass or, if so asked (`network.batch_norm`), the sources first and whatever follows them in another.
        """
        images, backbone = self.images(batch), backbone or self.backbone
        if not (self.passes_apart and len(images) > batch.num_labelled):
            return backbone(images)
        return torch.cat([backbone(part) for part in images.tensor_split([batch.num_labelled])])

    def images(self, batch: Batch) -> Tensor:
        """The images of a batch that the method looks at: all of them."""
        return batch.images

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """The losses from the maps F of those images. Apart from the backbone, so that it can be compiled."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (B, classes): the path of inference."""
        scores: Tensor = self.classifier(self.pool(self.backbone(images)))
        return scores

    def update(self, batch: Batch, descend: Callable[[Losses], None]) -> Losses:
        """One training step. `descend` sums the losses, backpropagates and steps; override to descend several times."""
        losses = self.losses(batch)
        descend(losses)
        return losses

    @property
    def images_to_fit(self) -> int:
        """How many images of each domain `fit` sees before every evaluation; 0: there is nothing to fit."""
        return 0

    def fit(self, batch: Batch) -> None:
        """Solve for what descent does not learn, from images as they are, of the sources and the target."""
        raise NotImplementedError

    def inspect(self, images: Tensor) -> Inspection:
        """Scores and diagnostics of one evaluation batch."""
        return Inspection(self(images))

    def drop_training_parts(self) -> None:
        """Remove what only training needs."""
        for name in self.training_only:
            setattr(self, name, None)


def relative_size(part: Tensor, whole: Tensor) -> Tensor:
    """Mean absolute value of one map divided by that of another, one value per image: 0 for a closed gate."""
    return part.abs().mean(dim=(1, 2, 3)) / whole.abs().mean(dim=(1, 2, 3)).clamp_min(1e-12)
