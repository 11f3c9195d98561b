"""The quality of predictions beyond their accuracy: class by class, and the calibration of their probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15
LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)
Values = NDArray[np.float64]
Indices = NDArray[np.int64]


class Quality:
    """Sums over the images seen so far, so that memory does not grow with their number.

    p_ik is the predicted probability that image i of n is of class k, y_i the class it is of; c_i = max_k p_ik is the
    confidence, and the prediction is right where argmax_k p_ik = y_i.

    >>> seen = Quality(classes=2)
    >>> seen.add(np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 1]))
    >>> seen.accuracies
    [1.0, 0.0]
    >>> round(seen.calibration_error, 3), round(seen.brier_score, 3), round(seen.negative_log_likelihood, 3)
    (0.4, 0.4, 0.57)
    """

    def __init__(self, classes: int) -> None:
        self.support = np.zeros(classes, np.int64)
        self.right = np.zeros(classes, np.int64)
        self._squares = self._logs = 0.0
        # What each bin of confidences holds: right predictions minus the sum of their confidences.
        self._surplus = np.zeros(BINS)

    def add(self, probabilities: Values, labels: Indices) -> None:
        """Images with probabilities (n, classes), and what they are."""
        confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
        self.support += np.bincount(labels, minlength=len(self.support))
        self.right += np.bincount(labels[right], minlength=len(self.right))
        of_truth = probabilities[np.arange(len(labels)), labels]
        # sum_k (p_k - [k = y])^2 = sum_k p_k^2 - 2 p_y + 1
        self._squares += float((np.square(probabilities).sum(axis=1) - 2 * of_truth + 1).sum())
        self._logs += float(np.log(of_truth.clip(LEAST_PROBABILITY)).sum())
        bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
        self._surplus += np.bincount(bins, weights=right - confidence, minlength=BINS)

    @property
    def n(self) -> int:
        """How many images."""
        return int(self.support.sum())

    @property
    def accuracies(self) -> list[float | None]:
        """Of each class, the share of its images that are predicted to be of it (its recall); None without images."""
        return [int(right) / int(n) if n else None for right, n in zip(self.right, self.support, strict=True)]

    @property
    def calibration_error(self) -> float:
        """ECE = sum_b (n_b / n) |accuracy_b - mean confidence_b|, over 15 bins b: b/15 < c_i <= (b + 1)/15.

        The expected calibration error of Guo et al. 2017. It is 0 if, of the predictions with confidence c, a share of
        c is right.
        """
        return float(np.abs(self._surplus).sum()) / self.n

    @property
    def brier_score(self) -> float:
        """(1/n) sum_i sum_k (p_ik - [k = y_i])^2, the score of Brier 1950, from 0 to 2; 0 is certain and right."""
        return self._squares / self.n

    @property
    def negative_log_likelihood(self) -> float:
        """-(1/n) sum_i log p_iy_i, in nats; probabilities are taken to be at least 1e-38, so that it is finite."""
        return -self._logs / self.n

    def as_values(self, names: tuple[str, ...]) -> dict[str, Any]:
        """For JSON, by the classes' names."""
        each = zip(names, self.accuracies, self.support, strict=True)
        return {
            "calibration": {
                "ece": self.calibration_error,
                "brier": self.brier_score,
                "nll": self.negative_log_likelihood,
            },
            "classes": {name: {"accuracy": accuracy, "n": int(n)} for name, accuracy, n in each},
        }
