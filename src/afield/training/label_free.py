"""What an evaluation learns about a method from the target's training images, without a label of the target.

The target comes from a `Task`, in which there is no field for its labels; its test images are not looked at. Of large
data a sample, so that an evaluation costs little: every n-th image, the same ones each time.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield.data.images import Images, Indices
from afield.data.normalise import Normalise
from afield.data.task import LabelledView, Task, UnlabelledView
from afield.methods import Method
from afield.training.chunks import filled_up, streamed
from afield.training.scores import (
    deep_embedded_validation,
    density_ratios,
    nuclear_norm,
    prediction_entropy,
    soft_neighbourhood_density,
)

MOST_OF_TARGET, MOST_OF_SOURCES, MOST_HELD_OUT = 1000, 500, 1000
DECIMALS = 6
"""Scores are rounded to so many: the last bits of a sum may depend on where in memory it is computed."""
Scores = dict[str, float | int | str]
View = TypeVar("View", LabelledView, UnlabelledView)


class LabelFreeScores:
    """Holds which images it looks at: some of the target's, the sources' training images and their held-out ones."""

    def __init__(
        self, task: Task, held_out: Sequence[LabelledView], normalise: Normalise, device: torch.device, chunk: int
    ) -> None:
        self.target, self.training, self.held_out = task.target, task.sources, tuple(held_out)
        self.normalise, self.device, self.chunk = normalise, device, chunk

    def __call__(self, method: Method) -> dict[str, Scores]:
        """By name of the target; empty where training sees no target. The method is in evaluation mode."""
        if self.target is None:
            return {}
        vectors, scores = self._passed(method, [self.target], MOST_OF_TARGET)
        if not scores.isfinite().all() or not vectors.isfinite().all():
            return {self.target.name: dict.fromkeys(("entropy", "diversity"), float("nan"))}
        P = scores.double().softmax(dim=1)
        found: dict[str, Tensor | float] = {
            "entropy": prediction_entropy(P).mean(),
            "diversity": prediction_entropy(P.mean(dim=0)),
            "snd": soft_neighbourhood_density(P),
            "nuclear": nuclear_norm(P),
            "dev": self._dev(method, vectors),
        }
        rounded = {name: round(float(value), DECIMALS) for name, value in found.items()}
        return {self.target.name: {"images": "train", "n": len(P), **rounded}}

    def _dev(self, method: Method, target: Tensor) -> float:
        source, _ = self._passed(method, self.training, MOST_OF_SOURCES)
        wanted, scores = self._passed(method, self.held_out, MOST_HELD_OUT)
        labels = [torch.from_numpy(view.labels[chosen]) for view, chosen in sampled(self.held_out, MOST_HELD_OUT)]
        losses = cross_entropy(scores.double(), torch.cat(labels).to(self.device), reduction="none")
        if not (source.isfinite().all() and wanted.isfinite().all() and losses.isfinite().all()):
            return float("nan")
        weights = density_ratios(*(each.double().cpu().numpy() for each in (source, target, wanted)))
        return deep_embedded_validation(losses.cpu().numpy(), weights)

    def _passed(self, method: Method, views: Sequence[View], most: int) -> tuple[Tensor, Tensor]:
        """Pooled vectors of F and class scores of the views' images, at most so many in all."""
        results = [
            (method.pool(F)[:count], method.scores_of(F)[:count])
            for view, chosen in sampled(views, most)
            for F, count in self._maps(method, view.images, chosen)
        ]
        vectors, scores = zip(*results, strict=True)
        return torch.cat(vectors), torch.cat(scores)

    def _maps(self, method: Method, images: Images, chosen: Indices) -> Iterator[tuple[Tensor, int]]:
        """Chunk by chunk, and how many of a chunk's maps, from the front, are of these images."""
        for pixels in streamed(images, chosen, self.chunk, self.device):
            whole = filled_up(pixels, self.chunk)
            yield method.backbone(self.normalise(whole.permute(0, 3, 1, 2))), len(pixels)


def sampled(views: Sequence[View], most: int) -> list[tuple[View, Indices]]:
    """Of each view which images are looked at: at most so many of all views together, evenly spaced."""
    share = max(1, most // len(views))
    return [(view, spaced(len(view.images), share)) for view in views]


def spaced(count: int, most: int) -> Indices:
    """At most so many of the numbers below `count`, evenly spaced; a split may be sorted by class.

    >>> spaced(10, 4).tolist(), spaced(3, 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    wanted = min(count, most)
    return np.arange(wanted, dtype=np.int64) * count // max(1, wanted)
