"""Copies of modules on the meta device, which have shapes but no values."""

from copy import deepcopy
from typing import Any

from torch import nn


def on_meta(network: nn.Module) -> nn.Module:
    """A copy that has shapes and no values: however large, it takes no memory, and what it notes of a pass is its own.

    >>> import torch
    >>> on_meta(nn.Linear(10**6, 10**6, device="meta"))(torch.zeros(2, 10**6, device="meta")).shape
    torch.Size([2, 1000000])
    """
    shapes: dict[int, Any] = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in network.parameters()}
    shapes |= {id(buffer): buffer.to("meta") for buffer in network.buffers()}
    return deepcopy(network, shapes)
