"""The geodesic flow kernel: inner products over all subspaces on the way from one to another (Gong et al. 2012)."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def principal_subspace(features: Array, dimension: int) -> Array:
    """The first principal directions of features (n, D) as orthonormal columns (D, dimension)."""
    centred = features - features.mean(axis=0)
    # Of the scatter matrix, which has D rows however many features there are; its last eigenvectors are the first.
    return np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :dimension]


def geodesic_flow_kernel(source: Array, target: Array) -> Array:
    r"""G, the mean of Phi(t) Phi(t)^T over the shortest way Phi(t) from one subspace (t = 0) to another (t = 1).

    .. math::
        G = \int_0^1 \Phi(t) \Phi(t)^T dt, \quad
        \Phi(t) = A \cos(t \Theta) + B \sin(t \Theta)

    Theta are the principal angles between the subspaces, A the principal vectors of the first, and B the directions,
    orthogonal to it, in which the second lies. x^T G y compares x and y as both subspaces and all between them see
    them. G is symmetric and positive semi-definite; of equal subspaces it is the projection onto them.

    Args:
        source: orthonormal columns (D, d).
        target: orthonormal columns (D, d).
    """
    left, cosines, right = np.linalg.svd(source.T @ target)
    A = source @ left
    outside = target @ right.T - A * cosines  # B sin(Theta)
    sines = np.linalg.norm(outside, axis=0)
    # A direction that both share has no B, and needs none: its weights below are 0.
    B = np.divide(outside, sines, out=np.zeros_like(outside), where=sines > 1e-12)
    angles = np.arctan2(sines, cosines)
    wave = np.sinc(2 * angles / np.pi)  # sin(2 theta) / (2 theta), and 1 for theta = 0
    crossed = np.sin(angles) * np.sinc(angles / np.pi) / 2  # the integral of sin(t theta) cos(t theta)
    mixed = (A * crossed) @ B.T
    G: Array = (A * (1 + wave) / 2) @ A.T + mixed + mixed.T + (B * (1 - wave) / 2) @ B.T
    return G
