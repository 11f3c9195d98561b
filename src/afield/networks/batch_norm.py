"""Whose statistics batch norm takes in training: of all domains together, of sources and target apart, of each alone.

A batch lies in memory domain by domain, so that a layer of batch norm can treat every stretch of rows on its own while
the layers between them see all rows at once. That gives what separate passes of the domains through the whole network
give, running statistics included, in a fraction of the time; and it reaches backbones, necks and heads alike.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from afield.config.network import BatchNorm

Pass = Callable[[Tensor], Tensor]
Stretch = tuple[int, bool]
"""How many rows, and whether they are the target's."""


class Layout:
    """Which rows of what passes the network belong to which domain."""

    def __init__(self, kind: BatchNorm = "together") -> None:
        self.kind = kind
        self.stretches: list[Stretch] = []

    def note(self, num_sources: int, per_domain: int, target_batches: int = 1) -> None:
        """From here on rows are those of such a batch: sources, target, further views of the target's, of the sources'.

        What passes may end after any domain of these.
        """
        sources = [(per_domain, False)] * num_sources
        target = [(target_batches * per_domain, True)] * (target_batches > 0)
        self.stretches = [*sources, *target, *target, *sources]

    @contextmanager
    def of(self, *stretches: Stretch) -> Iterator[None]:
        """Inside, rows are those of these stretches."""
        before, self.stretches = self.stretches, list(stretches)
        try:
            yield
        finally:
            self.stretches = before

    def divide(self, count: int) -> list[int]:
        """The lengths of the parts that so many rows are normalised in; none where they do not fit the layout.

        >>> layout = Layout("each")
        >>> layout.note(num_sources=2, per_domain=8)
        >>> layout.divide(24), layout.divide(16), layout.divide(9)
        ([8, 8, 8], [8, 8], [])
        """
        parts: list[int] = []
        of_target: list[bool] = []
        for rows, target in self.stretches:
            if sum(parts) == count:
                break
            if self.kind == "apart" and of_target and of_target[-1] == target:
                parts[-1] += rows
            else:
                parts.append(rows)
                of_target.append(target)
        return parts if sum(parts) == count else []


def arrange_batch_norm(network: nn.Module, layout: Layout, *pretrained: nn.Module) -> None:
    """Make all batch norm of a network take its statistics as the layout's kind says.

    `frozen` concerns the `pretrained` parts, which have statistics to keep; other layers take those of the batch.
    """
    if layout.kind == "frozen":
        for norm in (norm for part in pretrained for norm in norms_of(part)):
            hold_still(norm)
    elif layout.kind in ("apart", "each"):
        for norm in norms_of(network):
            setattr(norm, "forward", _Divided(norm, layout))  # noqa: B010


def replace_pass(norm: _BatchNorm, by: Callable[[Pass], Pass]) -> None:
    """Let a layer of batch norm do its forward pass otherwise; where domains are divided, that of every part."""
    given = norm.forward
    if isinstance(given, _Divided):
        given.whole, given.by_parts = by(given.whole), None
    else:
        setattr(norm, "forward", by(given))  # noqa: B010


def hold_still(part: nn.Module) -> None:
    """Keep a part as in evaluation, whatever is set to training later: no dropout, no statistics of batches."""
    part.eval()
    setattr(part, "train", _Still(part))  # noqa: B010


def stands_still(part: nn.Module) -> bool:
    """Whether a part is held still."""
    return "train" in vars(part)


def let_go(part: nn.Module) -> None:
    """Undo `hold_still`: the part follows again when the network is set to training."""
    delattr(part, "train")


class _Still:
    """The `train` method of a part that stands still: it stays in evaluation mode."""

    def __init__(self, part: nn.Module) -> None:
        self.part = part

    def __call__(self, mode: bool = True) -> nn.Module:
        return self.part


class _Divided:
    """The forward pass of a layer of batch norm, part by part in training."""

    def __init__(self, norm: _BatchNorm, layout: Layout) -> None:
        self.norm, self.layout = norm, layout
        self.whole: Pass = norm.forward
        self.by_parts: Callable[[Tensor, list[int]], Tensor] | None = getattr(norm, "forward_parts", None)
        """The layer's own forward pass over all parts at once, if it has one; else parts pass one after the other."""

    def __call__(self, x: Tensor) -> Tensor:
        sizes = self.layout.divide(len(x)) if self.norm.training else []
        if len(sizes) > 1 and self.by_parts:
            return self.by_parts(x, sizes)
        if len(sizes) > 1:
            return torch.cat([self.whole(part) for part in torch.split(x, sizes)])
        if self.norm.training and not sizes:
            kind, rows = self.layout.kind, sum(rows for rows, _ in self.layout.stretches)
            why = f"sees {len(x)} rows of a batch of at most {rows}" if rows else "is used outside of `training_step`"
            warnings.warn(
                f"network.batch_norm = '{kind}' has no effect on a layer that {why}: it takes the statistics of all "
                "rows together",
                stacklevel=2,
            )
        return self.whole(x)


def norms_of(network: nn.Module) -> list[_BatchNorm]:
    """All batch norm inside a network."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]
