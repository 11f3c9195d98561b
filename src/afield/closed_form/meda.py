r"""MEDA: manifold embedded distribution alignment, in closed form on features (Wang, Feng, Chen, Yu, Huang, Yu: ACM
Multimedia 2018, arXiv 1807.07258).

Manifold features z = G^(1/2) x, with G the geodesic flow kernel between the principal subspaces of source and target,
scaled to length 1; x are the features, with mean 0 and variance 1 in either domain. Then a classifier
f(z) = sum_i beta_i K(z_i, z) over the n labelled and m unlabelled features:

    min over beta    |(Y - K beta)|_A^2 + eta tr(beta^T K beta) + tr(beta^T K (lambda M + rho L) K beta)
    solution         ((A + lambda M + rho L) K + eta I) beta = A Y

A counts the labelled ones only; L is the Laplacian of the graph of nearest neighbours; M compares the mean of f on the
source with that on the target, over all (marginal, M_0) and class by class (conditional, M_c), with mu weighing both:

    M = (1 - mu) M_0 + mu sum_c M_c,     mu = 1 - d_M / (d_M + sum_c d_c)

d are A-distances: of the features, and of those of each class. The target's classes are those that f gave it, at first
those given or those of the nearest source features; mu, M and beta follow from them, and they from beta, T times.

Differences from the paper:
- As in the authors' code, the features of source and target are standardised, each coordinate by the domain's own mean
  and deviation (their histograms are divided by their sums before that, which features of a network are not); M is
  divided by its Frobenius norm, without which lambda would mean less the more features there are; L is the normalised
  Laplacian, with cosines as weights; and the kernel has bandwidth 1, the mean length of z.
- Unlike in the authors' code too, the domain classifiers of d see z scaled to length 1, are tested on features they
  were not trained on, and count both domains alike however many features they have; a class that the target does not
  have, or hardly has, is left out of M and mu.

The authors' code takes means where the paper's mu has a sum, and multiplies M_0 by the number of classes; ours is the
paper's.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lu_factor, lu_solve
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from afield.closed_form.geodesic_flow import Array, geodesic_flow_kernel, principal_subspace

Labels = NDArray[np.int64]
ENOUGH = 2  # features of a class in either domain, for a class to be compared


@dataclass(frozen=True)
class Solution:
    """A classifier of the target's features: `scores`, and what it is made of."""

    centre: Array
    """(D,), the mean of the target's features."""
    projection: Array
    """(D, r), from the target's features less their mean to z before it is scaled, in as few coordinates as G has
    dimensions: G^(1/2), and the division by the target's deviations in the same matrix."""
    anchors: Array
    """(n + m, r), the z of the features it was solved for."""
    coefficients: Array
    """(n + m, classes), beta."""
    target_labels: Labels
    """(m,), the classes of the target's features."""
    mu: float
    """The last iteration's weight of the conditional distributions, in 0..1."""

    def scores(self, features: Array) -> Array:
        """f of any features (N, D) of the target: (N, classes), near 1 for the class and 0 for the others."""
        return kernel(embed(features - self.centre, self.projection), self.anchors) @ self.coefficients


def solve_meda(
    source: Array,
    labels: Labels,
    target: Array,
    num_classes: int,
    *,
    first: Labels | None = None,
    dimension: int = 20,
    neighbours: int = 10,
    ridge: float = 0.1,
    alignment: float = 10.0,
    smoothness: float = 1.0,
    iterations: int = 10,
) -> Solution:
    """Solve for the classifier of labelled source features (n, D) and unlabelled target features (m, D).

    `first` are the target's classes to begin with, by default those of the nearest source features; `ridge`,
    `alignment` and `smoothness` are eta, lambda and rho. The cost is that of one n + m by n + m system.
    """
    source, target = source.astype(np.float64), target.astype(np.float64)
    of_source, of_target = StandardScaler().fit(source), StandardScaler().fit(target)
    n, x = len(source), np.concatenate((of_source.transform(source), of_target.transform(target)))
    projection = manifold(x[:n], x[n:], dimension)
    anchors = embed(x, projection)
    K, counted = kernel(anchors, anchors), np.arange(len(anchors)) < n
    Y = np.zeros((len(anchors), num_classes))
    Y[np.arange(n), labels] = 1

    # Only M changes from one iteration to the next, and has a rank of at most classes + 1: the rest is factored once.
    rest = smoothness * (laplacian(anchors, neighbours) @ K) + counted[:, None] * K
    rest[np.diag_indices_from(rest)] += ridge
    factored = lu_factor(rest, overwrite_a=True)
    unaligned = lu_solve(factored, Y)
    apart = a_distance(anchors[:n], anchors[n:])

    classes = KNeighborsClassifier(1).fit(anchors[:n], labels).predict(anchors[n:]) if first is None else first
    mu, coefficients = 0.0, unaligned
    for _ in range(iterations):
        mu = balance(apart, anchors[:n], labels, anchors[n:], classes)
        E = contrasts(labels, classes, mu)
        # (rest + weight E E^T K) beta = Y, by the Woodbury identity.
        weight = alignment / np.linalg.norm(E.T @ E)
        columns, rows = lu_solve(factored, E), E.T @ K
        inner = np.eye(E.shape[1]) + weight * rows @ columns
        coefficients = unaligned - weight * columns @ np.linalg.solve(inner, rows @ unaligned)
        before, classes = classes, (K[n:] @ coefficients).argmax(axis=1)
        if (classes == before).all():  # further iterations would repeat this one
            break
    return Solution(of_target.mean_, projection / of_target.scale_[:, None], anchors, coefficients, classes, mu)


def manifold(source: Array, target: Array, dimension: int) -> Array:
    """(D, r): coordinates in which inner products are those of G, between subspaces of this dimension, or D / 2."""
    dimension = min(dimension, source.shape[1] // 2, len(source) - 1, len(target) - 1)
    G = geodesic_flow_kernel(*(principal_subspace(features, dimension) for features in (source, target)))
    values, vectors = np.linalg.eigh(G)
    coordinates: Array = vectors[:, -2 * dimension :] * np.sqrt(values[-2 * dimension :].clip(0))
    return coordinates


def embed(features: Array, projection: Array) -> Array:
    """z: projected, and scaled to length 1."""
    z = features @ projection
    scaled: Array = z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-12)
    return scaled


def kernel(z: Array, others: Array) -> Array:
    """exp(-|z - z'|^2 / 2) of vectors of length 1."""
    return np.exp(z @ others.T - 1)


def laplacian(z: Array, neighbours: int) -> Any:
    """I - D^(-1/2) W D^(-1/2), sparse; W has the cosine of two vectors of which one is among the other's nearest."""
    graph = kneighbors_graph(z, min(neighbours, len(z) - 1))
    graph = graph.maximum(graph.T).tocoo()
    cosines = np.einsum("ij,ij->i", z[graph.row], z[graph.col]).clip(1e-12)
    degrees = np.bincount(graph.row, cosines, len(z)) ** -0.5
    graph.data = -cosines * degrees[graph.row] * degrees[graph.col]
    graph = graph.tolil()
    graph.setdiag(1)
    return graph.tocsr()


def contrasts(labels: Labels, classes: Labels, mu: float) -> Array:
    """E with E E^T = (1 - mu) M_0 + mu sum_c M_c: a column's product with f is a difference of two means of f."""
    columns = [np.sqrt(1 - mu) * contrast(np.ones_like(labels), np.ones_like(classes))]
    columns += [np.sqrt(mu) * contrast(labels == c, classes == c) for c in compared(labels, classes)]
    return np.stack(columns, axis=1)


def contrast(source: NDArray[Any], target: NDArray[Any]) -> Array:
    """1 / count for those meant of the source, -1 / count for those of the target, 0 for the others."""
    return np.concatenate((source / source.sum(), -(target / target.sum())))


def compared(labels: Labels, classes: Labels) -> list[int]:
    """The classes of which there are enough in both domains."""
    return [c for c in np.unique(labels) if min((labels == c).sum(), (classes == c).sum()) >= ENOUGH]


def balance(apart: float, source: Array, labels: Labels, target: Array, classes: Labels) -> float:
    """mu, from d_M and the d_c; 1/2 where nothing can be told apart."""
    by_class = sum(a_distance(source[labels == c], target[classes == c]) for c in compared(labels, classes))
    return by_class / (apart + by_class) if apart + by_class else 0.5


def a_distance(source: Array, target: Array) -> float:
    """2 (1 - 2 error) of a linear classifier that tells two domains apart: 0 where it cannot, 2 where it always can.

    Each half is told by a classifier of the other; the error is the mean of both domains'.
    """
    z, domain = np.concatenate((source, target)), np.repeat((0, 1), (len(source), len(target)))
    half = np.concatenate((np.arange(len(source)), np.arange(len(target)))) % 2
    told = np.empty_like(domain)
    for one in (0, 1):
        classifier = LinearSVC(class_weight="balanced", dual=False).fit(z[half != one], domain[half != one])
        told[half == one] = classifier.predict(z[half == one])
    error = np.mean([(told != domain)[domain == one].mean() for one in (0, 1)])
    return float(2 * (1 - 2 * min(error, 0.5)))
