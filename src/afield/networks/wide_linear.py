"""A fully connected layer whose weight gradient a GPU writes once.

Under autocast, torch's own layer writes the gradient of its weight in bf16 and then again in float32. Of a layer with
tens of millions of weights, that second pass over memory takes longer than the product itself.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, half = x.to(torch.bfloat16), weight.to(torch.bfloat16)
        ctx.save_for_backward(x, half)
        return torch.addmm(bias.to(torch.bfloat16), x, half.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, half = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        return (
            g @ half if by_x else None,
            torch.mm(g.T, x, out_dtype=torch.float32) if by_weight else None,
            g.sum(dim=0, dtype=torch.float32) if by_bias else None,
        )


class WideLinear(nn.Linear):
    """`nn.Linear`, with its state; under autocast to bf16 on a GPU its weight has a gradient that was never bf16."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs)."""
        if not self._wide(input):
            return super().forward(input)
        with torch.autocast("cuda", enabled=False):
            y: Tensor = _Wide.apply(input, self.weight, self.bias)
        return y

    def _wide(self, input: Tensor) -> bool:
        return (
            input.is_cuda
            and input.ndim == 2
            and self.weight.dtype == torch.float32
            and torch.is_autocast_enabled("cuda")
            and torch.get_autocast_dtype("cuda") == torch.bfloat16
            and not torch.compiler.is_compiling()
        )
