"""What a method predicts on test images: per class, what it takes for what, and where it is least sure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afield.analysis.subject import Subject
from afield.data.images import Pixels
from afield.data.task import LabelledView
from afield.training.evaluation import View, prediction_entropy

MOST_UNSURE = 24


@dataclass(frozen=True)
class DomainPredictions:
    """The predictions on one domain's test images, one entry per image."""

    domain: str
    labels: NDArray[np.int64] | None
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    """The probability of the class predicted."""
    entropy: NDArray[np.float64]
    """Of the probabilities, in nats."""
    num_classes: int

    @property
    def accuracy(self) -> float | None:
        """From 0 to 1; None without labels."""
        return None if self.labels is None else float((self.predicted == self.labels).mean())

    @property
    def confusion(self) -> NDArray[np.int64] | None:
        """Images by true class (row) and predicted class (column); None without labels."""
        if self.labels is None:
            return None
        counts = np.bincount(self.labels * self.num_classes + self.predicted, minlength=self.num_classes**2)
        return counts.reshape(self.num_classes, self.num_classes)

    @property
    def class_accuracy(self) -> list[float | None]:
        """By class; None for a class that the domain has no image of, or without labels."""
        confusion = self.confusion
        if confusion is None:
            return [None] * self.num_classes
        return [float(row[number] / row.sum()) if row.sum() else None for number, row in enumerate(confusion)]


@dataclass(frozen=True)
class Unsure:
    """An image that the method is unsure of."""

    domain: str
    pixels: Pixels
    predicted: str
    confidence: float
    entropy: float
    label: str | None


def predict(subject: Subject) -> list[DomainPredictions]:
    """The predictions on all test images of each domain."""
    with torch.inference_mode():
        return [_predict(subject, view) for view in subject.views]


def _predict(subject: Subject, view: View) -> DomainPredictions:
    found: list[NDArray[Any]] = []
    for inputs in subject.inputs(view):
        probabilities = subject.method(inputs).double().softmax(dim=1)
        best = probabilities.max(dim=1)
        rows = torch.stack((best.indices.double(), best.values, prediction_entropy(probabilities)))
        found.append(rows.cpu().numpy())
    predicted, confidence, entropy = np.concatenate([np.zeros((3, 0)), *found], axis=1)
    labels = view.labels if isinstance(view, LabelledView) else None
    return DomainPredictions(
        view.name, labels, predicted.astype(np.int64), confidence, entropy, len(subject.classes)
    )  # fmt: skip


def least_sure(subject: Subject, predictions: list[DomainPredictions]) -> list[Unsure]:
    """The images whose predictions have the largest entropy: of the target or, without one, of all domains."""
    places = [
        (entropy, number, index)
        for number, of_domain in enumerate(predictions)
        if subject.target is None or of_domain.domain == subject.target
        for index, entropy in enumerate(of_domain.entropy.tolist())
    ]
    found = []
    for entropy, number, index in sorted(places, key=lambda place: -place[0])[:MOST_UNSURE]:
        of_domain, view = predictions[number], subject.views[number]
        label = None if of_domain.labels is None else subject.classes[of_domain.labels[index]]
        predicted, confidence = subject.classes[of_domain.predicted[index]], float(of_domain.confidence[index])
        pixels = view.images.read(np.array([index], np.int64))[0]
        found.append(Unsure(view.name, pixels, predicted, confidence, entropy, label))
    return found


def most_confused(confusion: NDArray[np.int64], count: int) -> list[tuple[int, int, int]]:
    """The pairs of classes that are confused most: the true one, the predicted one, and how many images.

    >>> most_confused(np.array([[5, 1], [3, 4]]), 5)
    [(1, 0, 3), (0, 1, 1)]
    """
    wrong = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    pairs = [divmod(int(place), len(wrong)) for place in order]
    return [(true, taken, int(wrong[true, taken])) for true, taken in pairs if wrong[true, taken]]
