"""t-SNE: the features' vectors as points in a plane, near ones near."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afield.analysis.features import Features, Floats

MOST_POINTS = 600
PERPLEXITY = 30
LEAST_POINTS = 5


@dataclass(frozen=True)
class Embedding:
    """Some of the images drawn as points in a plane, by map."""

    features: Features
    rows: NDArray[np.int64]
    """Which of the images drawn have a point."""
    points: dict[str, Floats]
    """By map: (points, 2)."""

    @property
    def domain(self) -> NDArray[np.int64]:
        """Of each point."""
        return self.features.domain[self.rows]

    @property
    def label(self) -> NDArray[np.int64]:
        """The true class of each point, or UNKNOWN."""
        return self.features.label[self.rows]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The class predicted for each point."""
        return self.features.predicted[self.rows]


def embedding_of(features: Features) -> Embedding | None:
    """The points of at most MOST_POINTS images, equally many of each domain; None where there are too few images."""
    most = max(1, MOST_POINTS // len(features.domains))
    rows = np.concatenate([np.flatnonzero(features.domain == number)[:most] for number in range(len(features.domains))])
    if len(rows) < LEAST_POINTS:
        return None
    return Embedding(features, rows, {name: flattened(vectors[rows]) for name, vectors in features.pooled.items()})


def flattened(vectors: Floats) -> Floats:
    """Vectors as points in a plane, by scikit-learn's t-SNE; always the same for the same vectors."""
    from sklearn.manifold import TSNE

    if not vectors.std(axis=0).any():
        return np.zeros((len(vectors), 2))  # all are one point, of which t-SNE makes NaN
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    points: Floats = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(vectors)
    return points
