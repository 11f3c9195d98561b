"""Maximum mean discrepancy (MMD): how far apart two samples are, seen through Gaussian kernels.

All estimates here are the biased ones of quadratic time, in which a sample is also paired with itself: they are never
negative, but for rounding, and two samples of b values from one distribution are expected at (1 - E k) 2 / b, not at 0.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from afield.precision import in_float32

KERNELS = 5
STEP = 2.0


def gaussian_kernel(samples: Tensor, kernels: int = KERNELS, step: float = STEP) -> Tensor:
    r"""k(x_i, x_j) of all pairs of samples: the mean of m Gaussian kernels of several widths.

    .. math::
        k(x, y) = \frac1m\sum_{u=1}^m \exp\frac{-\|x-y\|^2}{\gamma_u},
        \quad \gamma_u = \gamma\,s^{u-\frac{m+1}2}

    The width gamma is the mean squared distance between two of the samples. Gradients take it for a constant: it says
    at which scale to look, and is not to be learned.

    Args:
        samples: (n, d).
        kernels: m.
        step: s, the ratio of the widths of two neighbouring kernels.

    Returns:
        (n, n).

    >>> gaussian_kernel(torch.tensor([[0.0], [3.0]]), kernels=1)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    distances = in_float32(squared_distances, samples)
    count = len(samples)
    width = (distances.detach().sum() / (count * (count - 1))).clamp_min(1e-12)
    scaled = distances / width
    values = [torch.exp(-scaled * step ** ((kernels - 1) / 2 - number)) for number in range(kernels)]
    return torch.stack(values).mean(dim=0)


def squared_distances(samples: Tensor) -> Tensor:
    """|x_i - x_j|^2 of all pairs of samples, (n, d) to (n, n).

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    # About their mean the samples are short, and little cancels; there is no root, whose gradient at 0 is infinite.
    samples = samples - samples.mean(dim=0)
    squares = samples.square().sum(dim=1)
    return (squares[:, None] + squares - 2 * samples @ samples.T).clamp_min(0)


def squared_mmd(source: Tensor, target: Tensor, kernels: int = KERNELS, step: float = STEP) -> Tensor:
    r"""Squared MMD of two samples.

    .. math::
        \frac1{n^2}\sum_{i,j} k(s_i, s_j) + \frac1{m^2}\sum_{i,j} k(t_i, t_j) - \frac2{nm}\sum_{i,j} k(s_i, t_j)

    Args:
        source: one sample, (n, d).
        target: the other, (m, d).
        kernels: number of Gaussian kernels.
        step: ratio of the widths of two neighbouring kernels; see `gaussian_kernel`.

    >>> squared_mmd(torch.tensor([[0.0]]), torch.tensor([[3.0]]), kernels=1)  # 2 - 2 / e
    tensor(1.2642)
    """
    return joint_squared_mmd((source,), (target,), kernels, step)


def joint_squared_mmd(
    source: Sequence[Tensor], target: Sequence[Tensor], kernels: int = KERNELS, step: float = STEP
) -> Tensor:
    r"""Squared joint MMD of what several layers make of two samples: `squared_mmd` with the layers' kernels multiplied.

    .. math::
        k(x, y) = \prod_l k^l(x^l, y^l)

    Args:
        source: the layers' values of one sample, each (n, d_l).
        target: those of the other, each (m, d_l).
        kernels: number of Gaussian kernels of each layer.
        step: ratio of the widths of two neighbouring kernels; see `gaussian_kernel`.

    >>> same, apart = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> joint_squared_mmd((same, same), (apart, apart), kernels=1)  # 2 - 2 / e^2
    tensor(1.7293)
    """
    count = len(source[0])
    layers = [gaussian_kernel(torch.cat(pair), kernels, step) for pair in zip(source, target, strict=True)]
    kernel = reduce(torch.mul, layers)  # torch.prod asks the host, on its way back, whether there are zeros
    return kernel[:count, :count].mean() + kernel[count:, count:].mean() - 2 * kernel[:count, count:].mean()


def squared_mmd_among(domains: Tensor, kernels: int = KERNELS, step: float = STEP) -> Tensor:
    r"""Mean of the squared MMD over all K^2 ordered pairs of domains.

    .. math::
        \frac1{K^2}\sum_{i,j}\mathrm{MMD}^2(H_i, H_j) = \frac2K\sum_i\|\mu_i-\bar\mu\|^2

    where mu_i is a domain's mean in the kernel's space: twice the domains' variance there.

    Args:
        domains: (K, b, d).
        kernels: number of Gaussian kernels.
        step: ratio of the widths of two neighbouring kernels; see `gaussian_kernel`.

    >>> squared_mmd_among(torch.tensor([[[0.0]], [[3.0]]]), kernels=1)  # two of the four pairs are equal domains
    tensor(0.6321)
    """
    count, size, _ = domains.shape
    kernel = gaussian_kernel(domains.flatten(0, 1), kernels, step)
    products = kernel.reshape(count, size, count, size).mean(dim=(1, 3))  # of the mu_i
    return 2 * (products.diagonal().mean() - products.mean())
