"""Accuracy of a method on test images, domain by domain. The only reader of the target's labels."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from afield.config.data import Placement
from afield.data.images import Images
from afield.data.normalise import Normalise
from afield.data.preprocessing import Preprocessing
from afield.data.residence import make_resident, stays_resident
from afield.data.task import EvaluationViews, LabelledView, Task, UnlabelledView
from afield.methods import Method
from afield.training.chunks import filled_up, streamed
from afield.training.label_free import LabelFreeScores, spaced
from afield.training.scores import prediction_entropy

MOST_IMAGES, LEAST_IMAGES = 500, 64
Result = dict[str, Any]
View = LabelledView | UnlabelledView
Watch = Callable[[View, int, Tensor], None]
"""A function that is given the class probabilities of some images of a view, and the index of the first."""


class Evaluator:
    """Measures a method on the evaluation views of a task, and keeps what looks at the target's labels apart."""

    def __init__(
        self,
        task: Task,
        views: EvaluationViews,
        preprocessing: Preprocessing,
        device: torch.device,
        placement: Placement = "auto",
    ) -> None:
        self.views = views
        targets = [views.target] if views.target else []
        self.measure = Measure((*views.sources, *targets), preprocessing, device, placement)
        self.label_free = LabelFreeScores(task, views.sources, self.measure.normalise, device, self.measure.chunk)

    def __call__(self, method: Method) -> dict[str, Any]:
        """`sources`; `target`, kept apart because it uses labels that training never sees; and `unlabelled`.

        The last has scores that need no labels, which selectors may use: of the predictions on the target's training
        images. In DG, where there are none, it is empty.
        """
        results = self.measure(method)
        for result in results.values():
            del result["unlabelled"]  # of test images, which nothing is chosen by
        names = {self.views.target.name} if self.views.target else set()
        with inference(method):
            unlabelled = self.label_free(method)
        return {
            "sources": {name: result for name, result in results.items() if name not in names},
            "target": {name: results[name] for name in names},
            "unlabelled": unlabelled,
        }


class Measure:
    """Holds views, on the device where they fit, and measures a method on each of them."""

    def __init__(
        self,
        views: Sequence[View],
        preprocessing: Preprocessing,
        device: torch.device,
        placement: Placement = "auto",
    ) -> None:
        self.normalise = Normalise(preprocessing).to(device)
        self.device, self.views = device, tuple(views)
        # So many pixels at a time as 500 images of 32 x 32 have, as far as that is possible.
        wanted = MOST_IMAGES * 32**2 // preprocessing.image_size**2
        self.chunk = min(max(wanted, LEAST_IMAGES), MOST_IMAGES)
        splits = [view.images for view in views]
        self.held = make_resident(splits, device) if stays_resident(splits, device, placement) else None

    def __call__(self, method: Method, watch: Watch | None = None) -> dict[str, Result]:
        """By name of the view: `accuracy`, which is None without labels, `n`, `unlabelled` and a method's diagnostics.

        `unlabelled` says how sure (`entropy`) and how varied (`diversity`, the entropy of their mean) the predictions
        are, in nats.
        Always in float32, whatever training ran in, so that a record says what its checkpoint does.
        """
        with inference(method):
            return {view.name: self._measure(method, view, watch) for view in self.views}

    def _measure(self, method: Method, view: View, watch: Watch | None) -> Result:
        correct: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.int64, device=self.device))
        gates: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64, device=self.device))
        mean, entropies = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        labels = torch.from_numpy(view.labels) if isinstance(view, LabelledView) else None
        for start, pixels in self.chunks(view.images):
            whole = filled_up(pixels, self.chunk)
            inspection = method.inspect(self.normalise(whole.permute(0, 3, 1, 2))).first(len(pixels))
            if labels is not None:
                truth = labels[start : start + len(pixels)].to(self.device)
                for name, scores in {"": inspection.scores, **inspection.views}.items():
                    correct[name] += (scores.argmax(dim=1) == truth).sum()
            probabilities = inspection.scores.double().softmax(dim=1)
            mean, entropies = mean + probabilities.sum(dim=0), entropies + prediction_entropy(probabilities).sum()
            if watch:
                watch(view, start, probabilities)
            for name, values in inspection.gates.items():
                gates[name] += values.double().sum()
        n = len(view.images)
        counts = {name: int(value) for name, value in correct.items()}
        result: Result = {"accuracy": counts.pop("") / n if counts else None, "n": n}
        result["unlabelled"] = {"entropy": float(entropies) / n, "diversity": float(prediction_entropy(mean / n))}
        if counts:
            result["views"] = {name: value / n for name, value in counts.items()}
        if gates:
            result["gates"] = {name: float(value) / n for name, value in gates.items()}
        return result

    def chunks(self, images: Images) -> Iterator[tuple[int, Tensor]]:
        """Images (n, side, side, 3) on the device, and where in their split they begin."""
        starts = range(0, len(images), self.chunk)
        if self.held:
            part, first = self.held.homes[id(images)]
            whole = self.held.parts[part][first : first + len(images)]
            yield from ((start, whole[start : start + self.chunk]) for start in starts)
            return
        chunks = streamed(images, spaced(len(images), len(images)), self.chunk, self.device)
        yield from zip(starts, chunks, strict=True)


@contextmanager
def inference(method: Method) -> Iterator[None]:
    """Inside, the method is in evaluation mode and no gradients are kept."""
    training = method.training
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        method.train(training)
