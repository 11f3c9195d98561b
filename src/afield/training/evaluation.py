"""Accuracy of a method on labelled test images, domain by domain. The only reader of the target's labels."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from afield.batches import Normalise, Preprocessing, fits, place
from afield.domains import EvaluationViews, LabelledView
from afield.methods import Method

CHUNK = 500
Result = dict[str, Any]


class Evaluator:
    """Holds the evaluation views, on the device where they fit, and measures a method on them."""

    def __init__(self, views: EvaluationViews, preprocessing: Preprocessing, device: torch.device) -> None:
        self.normalise = Normalise(preprocessing).to(device)
        self.device = device
        everything = [*views.sources, *([views.target] if views.target else [])]
        size = sum(view.images.nbytes for view in everything)
        self.home = device if fits(size, device) else torch.device("cpu")
        self.sources = [self._place(view) for view in views.sources]
        self.target = self._place(views.target) if views.target else None

    def _place(self, view: LabelledView) -> tuple[str, Tensor, Tensor]:
        return view.name, place(view.images, self.home).permute(0, 3, 1, 2), place(view.labels, self.home)

    def __call__(self, method: Method) -> dict[str, Any]:
        """`sources`; apart from them and marked as looking at labels training never sees, `oracle`; and `unlabelled`.

        The last says of the target's predictions how sure (`entropy`) and how varied (`diversity`, the entropy of
        their mean) they are, in nats: what may be known, and chosen by, without labels.
        Always in float32, whatever training ran in, so that a record says what its checkpoint does.
        """
        training = method.training
        method.eval()
        with torch.no_grad():
            sources = {name: self._measure(method, images, labels) for name, images, labels in self.sources}
            oracle, unlabelled = {}, {}
            if self.target:
                name, images, labels = self.target
                oracle[name] = self._measure(method, images, labels)
                unlabelled[name] = oracle[name].pop("unlabelled")
        method.train(training)
        for result in sources.values():
            del result["unlabelled"]
        return {"sources": sources, "oracle": oracle, "unlabelled": unlabelled}

    def _measure(self, method: Method, images: Tensor, labels: Tensor) -> Result:
        correct: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.int64, device=self.device))
        gates: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64, device=self.device))
        mean, entropies = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for start in range(0, len(images), CHUNK):
            truth = labels[start : start + CHUNK].to(self.device)
            inspection = method.inspect(self.normalise(images[start : start + CHUNK].to(self.device)))
            for name, scores in {"": inspection.scores, **inspection.views}.items():
                correct[name] += (scores.argmax(dim=1) == truth).sum()
            probabilities = inspection.scores.double().softmax(dim=1)
            mean, entropies = mean + probabilities.sum(dim=0), entropies + _entropy(probabilities).sum()
            for name, values in inspection.gates.items():
                gates[name] += values.double().sum()
        n = len(labels)
        counts = {name: int(value) for name, value in correct.items()}
        result: Result = {"accuracy": counts.pop("") / n, "n": n}
        result["unlabelled"] = {"entropy": float(entropies) / n, "diversity": float(_entropy(mean / n))}
        if counts:
            result["views"] = {name: value / n for name, value in counts.items()}
        if gates:
            result["gates"] = {name: float(value) / n for name, value in gates.items()}
        return result


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return entropy
