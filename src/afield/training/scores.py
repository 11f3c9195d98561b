"""Scores of a network on a target that need no label of it, as functions over its predictions and features.

P is a matrix of predicted probabilities (n, classes). docs/choosing.md says when each of them fails.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

SND_TEMPERATURE = 0.05  # as Saito et al. have it
# Of the domain classifier: features that tell the domains apart perfectly would give weights without bound.
REGULARISATION, LEAST_PROBABILITY = 0.01, 1e-4
Vectors = NDArray[np.float64]


def prediction_entropy(P: Tensor) -> Tensor:
    """H(p) of each row, in nats."""
    result: Tensor = torch.special.entr(P).sum(dim=-1)
    return result


def soft_neighbourhood_density(P: Tensor) -> Tensor:
    """Mean entropy of each image's similarities to all others (Saito et al.: ICCV 2021, arXiv 2108.10860).

        S_i = softmax over j != i of <p_i, p_j> / 0.05      p of length 1
        SND = mean_i H(S_i)

    High where each image has many others close to it. Of one image alone it is 0.
    """
    p = normalize(P)
    similarities = (p @ p.T / SND_TEMPERATURE).fill_diagonal_(-torch.inf)
    return prediction_entropy(similarities.softmax(dim=1)).mean() if len(P) > 1 else P.new_zeros(())


def nuclear_norm(P: Tensor) -> Tensor:
    """Sum of P's singular values over the greatest it can be (Cui et al.: CVPR 2020, arXiv 2003.12237).

    ||P||_* / sqrt(n min(n, classes))      between 0 and 1
    """
    greatest = (len(P) * min(P.shape)) ** 0.5
    norm: Tensor = torch.linalg.matrix_norm(P, "nuc") / greatest
    return norm


def density_ratios(source: Vectors, target: Vectors, wanted: Vectors) -> Vectors:
    """w(x) = p_target(x) / p_source(x) at `wanted`, by a logistic regression that tells features (n, d) apart."""
    # These take a moment, and what only predicts, or trains without a target, needs none of them.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    domains = np.repeat([0, 1], [len(source), len(target)])
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=REGULARISATION))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # need not converge further: it is regularised
        regression.fit(np.concatenate((source, target)), domains)
    is_target = regression.predict_proba(wanted)[:, 1].clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    ratios: Vectors = len(source) / len(target) * is_target / (1 - is_target)
    return ratios


def deep_embedded_validation(losses: Vectors, weights: Vectors) -> float:
    """Held-out source loss as it would be on the target (You, Wang, Long, Jordan: ICML 2019).

        L = w l,    eta = -Cov(L, w) / Var(w),    DEV = mean(L) + eta mean(w) - eta

    The control variate w, whose mean is 1 if the ratios are right, takes variance out of mean(L).
    """
    weighted = losses * weights
    covariance = np.cov(weighted, weights)
    eta = -covariance[0, 1] / covariance[1, 1] if len(losses) > 1 and covariance[1, 1] > 0 else 0.0
    return float(weighted.mean() + eta * weights.mean() - eta)
