"""What FAR's losses need of its maps, without making them.

The losses read pool(F), pool(A) and pool(R+), where A = a S F and R+ = b T R with R = F - A; a and b are a gate's
values by channel, S and T by position. All three are weighted sums of F over positions,

    pool(A) = a sum_p m_p S_p F_p,    pool(R+) = b (sum_p m_p T_p F_p - a sum_p m_p T_p S_p F_p)

with m the pooling's weights: products of small matrices with F, which is read a few times, where making the maps
and going back through them reads and writes as many again at every operation.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from afield.networks.gates import MOST_POSITIONS, Gate
from afield.networks.heads import Pool
from afield.precision import at_least_float32


class Pooled(NamedTuple):
    """Vectors in float32: pool(F), pool(A) and pool(R+) as `Pool` gives them, and the mean of A over positions."""

    whole: Tensor
    f: Tensor
    r_plus: Tensor
    aligned_mean: Tensor


def can_pool(shape: tuple[int, int, int]) -> bool:
    """Whether maps are small enough for the pooling to be a matrix."""
    return shape[1] * shape[2] <= MOST_POSITIONS


def pooling_weights(pool: Pool) -> Tensor:
    """(cells + 1, positions): how much a position counts in each cell of the grid and, last, in the mean over all."""
    _, height, width = pool.shape
    positions = height * width
    cells = adaptive_avg_pool2d(torch.eye(positions).view(positions, 1, height, width), pool.grid).flatten(1).T
    return torch.cat((cells, torch.full((1, positions), 1 / positions)))


def select_and_pool(F: Tensor, fa: Gate, fr: Gate, weights: Tensor) -> Pooled:
    """The pooled vectors of one forward pass; `weights` are those of `pooling_weights`."""
    maps = at_least_float32(F).permute(0, 2, 3, 1).flatten(1, 2)  # (B, positions, C): a view of channels-last memory
    size, cells = F.shape[2:], weights[:-1]
    with torch.autocast(F.device.type, enabled=False):
        whole = weights @ maps
        mean, channel_mean = whole[:, -1], maps.mean(dim=2)
        a, S = _values(fa, mean, channel_mean, maps.max(dim=2).values, size)
        aligned = a * ((weights * S) @ maps)
        aligned_mean = aligned[:, -1]
        # R's mean over channels is F's less A's; of its maximum, which needs the map, only the place is looked up.
        channel_mean = channel_mean - S.squeeze(1) * (maps @ a.transpose(1, 2)).squeeze(2) / maps.shape[2]
        with torch.no_grad():
            largest = torch.addcmul(maps, maps * S.transpose(1, 2), a, value=-1).argmax(dim=2, keepdim=True)
        chosen_a = a.expand(-1, maps.shape[1], -1).gather(2, largest)
        channel_max = (maps.gather(2, largest) * (1 - chosen_a * S.transpose(1, 2))).squeeze(2)
        b, T = _values(fr, mean - aligned_mean, channel_mean, channel_max, size)
        restored = b * ((cells * T) @ maps - a * ((cells * T * S) @ maps))
    return Pooled(_vector(whole[:, :-1]), _vector(aligned[:, :-1]), _vector(restored), aligned_mean)


def _values(
    gate: Gate, mean: Tensor, channel_mean: Tensor, channel_max: Tensor, size: torch.Size
) -> tuple[Tensor, Tensor]:
    """The gate's values as (B, 1, C) and (B, 1, positions); ones for a branch that is not there."""
    a, S = gate.weights(mean, channel_mean.view(-1, *size), channel_max.view(-1, *size))
    return (
        torch.ones_like(mean)[:, None] if a is None else a[:, None],
        torch.ones_like(channel_mean)[:, None] if S is None else S.flatten(1)[:, None],
    )


def _vector(cells: Tensor) -> Tensor:
    """(B, cells, C) in the order of `Pool`."""
    return cells.transpose(1, 2).flatten(1)
