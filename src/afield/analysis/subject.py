"""A trained method with the images it is looked at on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from afield.data.images import Indices, Pixels
from afield.data.preprocessing import Preprocessing
from afield.methods import Method
from afield.training.evaluation import Measure, View

MOST_PER_DOMAIN = 200
"""Images per domain whose features are looked at, as many as in the paper."""
MOST_IN_ALL = 2000
LEAST_PER_DOMAIN = 10


@dataclass(frozen=True)
class Subject:
    """What the analysis looks at: a method in evaluation mode, and the test images of the run's domains."""

    method: Method
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    views: tuple[View, ...]
    """The sources, then the target."""
    target: str | None
    device: torch.device

    @cached_property
    def measure(self) -> Measure:
        """Gives the images in chunks, as evaluation does."""
        return Measure(self.views, self.preprocessing, self.device)

    @property
    def domains(self) -> list[str]:
        """Their names."""
        return [view.name for view in self.views]

    def inputs(self, view: View) -> Iterator[Tensor]:
        """All images of a domain as the network's input, chunk by chunk."""
        for _, pixels in self.measure.chunks(view.images):
            yield self.measure.normalise(pixels.permute(0, 3, 1, 2))

    def inputs_of(self, pixels: Pixels) -> Iterator[Tensor]:
        """The same of images (n, side, side, 3) in memory."""
        for start in range(0, len(pixels), self.measure.chunk):
            part = torch.from_numpy(pixels[start : start + self.measure.chunk]).to(self.device)
            yield self.measure.normalise(part.permute(0, 3, 1, 2))

    def drawn(self) -> list[Indices]:
        """Of each domain, which images' features are looked at: drawn at random, always the same."""
        most = min(MOST_PER_DOMAIN, max(LEAST_PER_DOMAIN, MOST_IN_ALL // len(self.views)))
        rng = np.random.default_rng(0)
        sizes = [len(view.images) for view in self.views]
        return [np.sort(rng.permutation(size)[:most]).astype(np.int64) for size in sizes]
