"""Maximum mean discrepancy (MMD): how far apart two samples are, seen through Gaussian kernels.

All estimates here are the biased ones of quadratic time, in which a sample is also paired with itself: they are never
negative, but for rounding, and two samples of b values from one distribution are expected at (k(x, x) - E k) 2 / b, not
at 0.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from afield.precision import in_float32

KERNELS = 5
STEP = 2.0


def gaussian_kernel(samples: Tensor, kernels: int = KERNELS, step: float = STEP, width: float | None = None) -> Tensor:
    r"""k(x_i, x_j) of all pairs of samples: the sum of m Gaussian kernels of several widths.

    .. math::
        k(x, y) = \sum_{u=1}^m \exp\frac{-\|x-y\|^2}{\gamma_u},
        \quad \gamma_u = \gamma\,s^{u-\frac{m+1}2}

    The width gamma, unless given, is the mean squared distance between two of the samples. Gradients take it for a
    constant: it says at which scale to look, and is not to be learned.

    Args:
        samples: (n, d).
        kernels: m.
        step: s, the ratio of the widths of two neighbouring kernels.
        width: gamma.

    Returns:
        (n, n).

    >>> gaussian_kernel(torch.tensor([[0.0], [3.0]]), kernels=1)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    >>> gaussian_kernel(torch.tensor([[0.0], [3.0]]))  # five of them
    tensor([[5.0000, 1.9069],
            [1.9069, 5.0000]])
    """
    distances, count = in_float32(squared_distances, samples), len(samples)
    if width is None:
        scaled = distances / (distances.detach().sum() / (count * (count - 1))).clamp_min(1e-12)
    else:
        scaled = distances / width
    values = [torch.exp(-scaled * step ** ((kernels - 1) / 2 - number)) for number in range(kernels)]
    return torch.stack(values).sum(dim=0)


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
        kernels: number of Gaussian kernels, which are summed.
        step: ratio of the widths of two neighbouring kernels; see `gaussian_kernel`.

    >>> squared_mmd(torch.tensor([[0.0]]), torch.tensor([[3.0]]), kernels=1)  # 2 - 2 / e
    tensor(1.2642)
    """
    return joint_squared_mmd((gaussian_kernel(torch.cat((source, target)), kernels, step),), len(source))


def joint_squared_mmd(kernels: Sequence[Tensor], count: int) -> Tensor:
    r"""Squared joint MMD of what several layers make of two samples: `squared_mmd` with the layers' kernels multiplied.

    .. math::
        k(x, y) = \prod_l k^l(x^l, y^l)

    Args:
        kernels: of each layer, k^l of all pairs, (n + m, n + m): one sample's n values come before the other's m.
        count: n.

    >>> kernel = gaussian_kernel(torch.tensor([[0.0], [3.0]]), kernels=1)
    >>> joint_squared_mmd((kernel, kernel), 1)  # 2 - 2 / e^2
    tensor(1.7293)
    """
    kernel = reduce(torch.mul, kernels)  # torch.prod asks the host, on its way back, whether there are zeros
    return kernel[:count, :count].mean() + kernel[count:, count:].mean() - 2 * kernel[:count, count:].mean()


def squared_mmd_among(domains: Tensor, kernels: int = KERNELS, step: float = STEP) -> Tensor:
    r"""Mean of the squared MMD over all K^2 ordered pairs of domains.

    .. math::
        \frac1{K^2}\sum_{i,j}\mathrm{MMD}^2(H_i, H_j) = \frac2K\sum_i\|\mu_i-\bar\mu\|^2

    where mu_i is a domain's mean in the kernel's space: twice the domains' variance there. The kernel is the mean of
    the Gaussian ones, as in MMD-AAE, not their sum.

    Args:
        domains: (K, b, d).
        kernels: number of Gaussian kernels.
        step: ratio of the widths of two neighbouring kernels; see `gaussian_kernel`.

    >>> squared_mmd_among(torch.tensor([[[0.0]], [[3.0]]]), kernels=1)  # two of the four pairs are equal domains
    tensor(0.6321)
    """
    count, size, _ = domains.shape
    kernel = gaussian_kernel(domains.flatten(0, 1), kernels, step) / kernels
    products = kernel.reshape(count, size, count, size).mean(dim=(1, 3))  # of the mu_i
    return 2 * (products.diagonal().mean() - products.mean())
