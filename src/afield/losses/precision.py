"""Losses are computed in float32 or better, whatever precision the network ran in."""

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """bf16 and fp16 to float32; float32 and float64 as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
