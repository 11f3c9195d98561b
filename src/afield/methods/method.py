"""What a method is: its parts, its losses on a batch, and its class scores at inference."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from afield.config.network import NetworkOptions
from afield.config.options import MethodOptions
from afield.config.training import OptimiserName
from afield.data.batches import Batch
from afield.networks import Classifier, Layout, Pool, build_backbone, map_shape

Losses = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """What a method is built for: a network, the size of its images, the number of classes and of sources."""

    network: NetworkOptions
    image_size: int
    num_classes: int
    num_sources: int


@dataclass(frozen=True)
class Learning:
    """How a part of a method learns, where that differs from the rest. None: as the config says."""

    rate: float = 1.0
    """A multiple of `training.lr`, whatever the optimiser; 0: the part stands still, as in evaluation."""
    weight_decay: float | None = None
    optimiser: OptimiserName | None = None
    betas: tuple[float, float] | None = None
    """Of adam and adamw."""


@dataclass(frozen=True)
class Inspection:
    """What an evaluation looks at: the scores that count, scores from other features, and gate statistics (B,)."""

    scores: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)
    gates: dict[str, Tensor] = field(default_factory=dict)

    def first(self, count: int) -> "Inspection":
        """The inspection of the first images only."""
        views, gates = ({name: each[:count] for name, each in of.items()} for of in (self.views, self.gates))
        return Inspection(self.scores[:count], views, gates)


class Method(nn.Module):
    """Base of all methods. A subclass declares what it needs and overrides `losses_of`; most need nothing else.

    The base builds what every method has: `backbone` (image to map F, its neck included), `pool` (map to vector) and
    `classifier`, which is what `head` makes.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    needs_target: ClassVar[bool] = False
    """True: works in UDA only, where target images are seen in training."""
    sees_target: ClassVar[bool] = True
    """False: the target's images do not pass the backbone in training, even where there are any."""
    pools_target: ClassVar[bool] = False
    """True: the target's rows are read as one, by `batch.split` alone, so that a batch may have more of them than of a
    source (`training.target_batches`)."""
    min_sources: ClassVar[int] = 1
    ramped: ClassVar[frozenset[str]] = frozenset()
    """Names of the losses whose weight the loop ramps up from 0."""
    training_only: ClassVar[frozenset[str]] = frozenset()
    """Names of the parts that inference does without."""
    phases: ClassVar[tuple[float, ...]] = ()
    """Shares of training, such as (0.5,), at which the method's step begins to be another one; see `phase`. Each phase
    has the learning rate's schedule and the ramp to itself, may learn otherwise (`learning`), and begins without
    momentum."""
    phase: int = 0
    """How many of the `phases` have begun. The loop sets it, before each step. A step may branch on nothing else that
    changes from step to step, since it may have been recorded."""

    def __init__(self, shape: Shape, options: MethodOptions) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        self.layout = Layout(shape.network.batch_norm)
        self.backbone = build_backbone(shape.network, shape.image_size)
        self.map_shape = map_shape(self.backbone, shape.image_size, shape.network.backbone)
        self.pool = Pool(shape.network.pool, self.map_shape)
        self.classifier = self.head(self.pool.width)

    # What a method is made of

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Every loss by name, weighted, from the maps F of a batch. The loop sums them and ramps up the `ramped`."""
        raise NotImplementedError

    def head(self, inputs: int) -> nn.Module:
        """The classifier of pooled vectors: `network.hidden` layers and a linear one."""
        return Classifier(inputs, self.shape.num_classes, self.shape.network)

    def scores_of(self, F: Tensor) -> Tensor:
        """Class scores (B, classes) from maps F: the path of inference."""
        scores: Tensor = self.classifier(self.pool(F))
        return scores

    def learning(self) -> Mapping[str, Learning]:
        """How parts learn that do not learn as the config says, by a part's name, such as "discriminator".

        Of parts within parts the smallest counts: "classifier.2" before "classifier". The loop asks at the start of
        every phase, of which `phase` is then the number, and before training for all of them. A parameter whose
        `requires_grad` the method itself has set to False never learns.
        """
        return {}

    # What few methods change

    def images(self, batch: Batch) -> Tensor:
        """The images of a batch that pass the backbone."""
        return batch.images if self.sees_target else batch.images[: batch.num_labelled]

    def losses(self, batch: Batch) -> Losses:
        """The losses of a batch. Override where the network sees other images than `images` can give."""
        return self.losses_of(self.backbone(self.images(batch)), batch)

    def updates(self, batch: Batch) -> Iterator[Losses]:
        """One training step: the losses of each of its updates. When it is asked for the next, the last is done."""
        yield self.losses(batch)

    def before_evaluation(self, sample: Callable[[int], Batch]) -> None:
        """Solve for what descent does not learn; `sample(n)` gives n images per domain, as they are."""

    def maps_of(self, F: Tensor) -> dict[str, Tensor]:
        """The maps by name that a person may want to look at, F first; the last is what the classifier reads."""
        return {"F": F}

    def inspect(self, images: Tensor) -> Inspection:
        """Scores and diagnostics of one evaluation batch."""
        return Inspection(self(images))

    # What no method changes

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (B, classes)."""
        return self.scores_of(self.backbone(images))

    def training_step(self, batch: Batch) -> Iterator[Losses]:
        """`updates`, with batch norm told which rows belong to which domain."""
        self.layout.note(batch.num_sources, batch.per_domain, batch.target_batches)
        return self.updates(batch)

    def drop_training_parts(self) -> None:
        """Remove what only training needs."""
        for name in self.training_only:
            setattr(self, name, None)


def relative_size(part: Tensor, whole: Tensor) -> Tensor:
    """Mean absolute value of one map divided by that of another, one value per image: 0 for a closed gate."""
    return part.abs().mean(dim=(1, 2, 3)) / whole.abs().mean(dim=(1, 2, 3)).clamp_min(1e-12)
