"""How far the features of two domains lie apart: the paper's measure of feature divergence."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from afield.analysis.features import Features, Floats

FLOOR = 1e-3


@dataclass(frozen=True)
class Divergence:
    """The divergence between every two domains, of each map."""

    domains: tuple[str, ...]
    between: dict[str, NDArray[np.float64]]
    """By map, symmetric: one row and one column per domain."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every two domains once."""
        return list(combinations(range(len(self.domains)), 2))

    def values(self, name: str, domain: str | None = None) -> list[float]:
        """Of a map, the divergence of every pair of domains, or of the pairs with one of them."""
        return [
            float(self.between[name][i, j])
            for i, j in self.pairs
            if domain is None or domain in (self.domains[i], self.domains[j])
        ]

    def mean(self, name: str, domain: str | None = None) -> float:
        """The mean of these."""
        return float(np.mean(self.values(name, domain)))


def divergence_of(features: Features) -> Divergence | None:
    """Of the images drawn; None where there is only one domain, or a domain has a single image."""
    counts = np.bincount(features.domain, minlength=len(features.domains))
    if len(counts) < 2 or counts.min() < 2:
        return None
    between = {name: domain_divergences(means, features.domain) for name, means in features.means.items()}
    return Divergence(features.domains, between)


def domain_divergences(means: Floats, domain: NDArray[np.int64]) -> NDArray[np.float64]:
    """The symmetric KL divergence between the features of every two domains, averaged over the channels.

    In each domain a channel's mean over positions is taken to be Gaussian, N(m, v), m and v over the domain's images.
    For one channel and the domains p and q

        KL(p || q) = (log(v_q / v_p) + (v_p + (m_p - m_q)^2) / v_q - 1) / 2
        D(p, q)    = (KL(p || q) + KL(q || p)) / 2

    and the divergence is the mean of D over the channels (FAR's paper, section 4.4, after Pan et al. 2018, "Two at
    Once", who add the two directions where FAR's paper averages them). It does not change when all features are
    multiplied by one number. A channel that hardly varies in a domain would make it infinite: no variance counts as
    less than a thousandth of the mean variance of all channels.

    >>> two = domain_divergences(np.array([[-1.0], [1.0], [1.0], [3.0]]), np.array([0, 0, 1, 1]))
    >>> two.tolist()  # both of variance 1, two apart
    [[0.0, 2.0], [2.0, 0.0]]
    """
    values = means.astype(np.float64)
    numbers = range(int(domain.max()) + 1)
    mean = np.stack([values[domain == number].mean(axis=0) for number in numbers])
    variance = np.stack([values[domain == number].var(axis=0) for number in numbers])
    variance = np.maximum(variance, max(FLOOR * float(values.var(axis=0).mean()), 1e-30))
    v_p, v_q = variance[:, None], variance[None]
    square = (mean[:, None] - mean[None]) ** 2
    # The logarithms of the two directions cancel.
    both = ((v_p + square) / v_q + (v_q + square) / v_p - 2) / 4
    result: NDArray[np.float64] = both.mean(axis=2)
    return result
