"""What the tests of optimisers and of accumulation share: a small smooth method, and steps on given batches."""

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy

from afield.config.network import NetworkOptions
from afield.config.options import MethodOptions
from afield.config.training import TrainingOptions
from afield.data.batches import Batch
from afield.methods import Method, Shape
from afield.networks import Pool
from afield.training.step import TrainingStep

SOURCES, CLASSES, SIDE = 2, 3, 8


class Small(Method):
    """No batch norm, and nothing with an edge: rounding stays rounding."""

    def __init__(self, shape, options):
        super().__init__(shape, options)
        self.declared = {}
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh())
        self.pool = Pool("average2x2", (4, 6, 6))
        self.classifier = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def learning(self):
        return self.declared

    def losses_of(self, F, batch):
        scores, spread = self.classifier(self.pool(F)), 0.1 * F.square().mean()
        return {"classification": cross_entropy(scores[: batch.num_labelled], batch.labels), "spread": spread}


def build(method=Small, declared=None, seed=0):
    """A method for these batches; `declared` is how its parts learn."""
    torch.manual_seed(seed)
    made = method(Shape(NetworkOptions(width=8), SIDE, CLASSES, SOURCES), MethodOptions())
    made.declared = declared or {}
    return made


def make_batches(count, per_domain=4, seed=1):
    """Batches of noise from two sources and a target."""
    generator = torch.Generator().manual_seed(seed)
    shape = ((SOURCES + 1) * per_domain, 3, SIDE, SIDE)
    return [
        Batch(
            torch.randn(shape, generator=generator),
            torch.randint(CLASSES, (SOURCES * per_domain,), generator=generator),
            SOURCES,
        )
        for _ in range(count)
    ]


class GivenStream:
    """As `BatchStream`, with batches that lie there."""

    def __init__(self, batches):
        self.batches, self.step, self.drawn = batches, 0, 0

    def prepare(self, batches=1):
        self.step += batches

    def draw(self):
        self.drawn += 1
        return self.batches[self.drawn - 1]


def make_step(method, batches, pretrained=False, **options):
    """A training step of a method over given batches, on the CPU."""
    options = {"steps": len(batches) // options.get("accumulate", 1), **options}
    fabric = Fabric(accelerator="cpu", devices=1)
    return TrainingStep(method, GivenStream(batches), TrainingOptions(**options), fabric, pretrained)


def weights(method):
    """Copies of a method's parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in method.named_parameters()}
