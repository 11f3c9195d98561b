"""One batch in several processes: each passes its share of every domain's images through the backbones.

    images of the whole batch -> own rows -> backbone -> rows of all processes -> losses of the whole batch

Images and labels, and everything after a backbone, are those of the whole batch in every process, and all processes
draw the same random numbers. So losses that compare images with each other (moments, kernels, pairs, shares of classes)
are those of one process, and a method does not know how many there are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from afield.networks.backbones import NeckedBackbone
from afield.networks.bare import bare_backbones
from afield.networks.batch_norm import Layout, norms_of, replace_pass
from afield.networks.rows import Part, all_rows, own_rows, part_under_way, passing, whole_count
from afield.networks.synchronised import SynchronisedNorm


class Sharing:
    """The backbones of a network, divided among processes while a step is `under_way`: not in an evaluation."""

    def __init__(
        self, network: nn.Module, layout: Layout, number: int, count: int, *, synchronised: bool = True
    ) -> None:
        self.layout, self.number, self.count = layout, number, count
        self.active = False
        self.apart: list[Tensor] = []
        """Running statistics of batch norm that a process takes of its own rows."""
        for backbone in whole_backbones(network):
            setattr(backbone, "forward", _Divided(self, backbone.forward))  # noqa: B010
            drops = tuple(kind for bare in bare_backbones(backbone) for kind in bare.drops)
            for module in backbone.modules():
                if isinstance(module, (_DropoutNd, *drops)):
                    setattr(module, "forward", _DrawnForAll(module, module.forward))  # noqa: B010
            for norm in norms_of(backbone):
                if synchronised:
                    replace_pass(norm, partial(SynchronisedNorm, norm))
                else:
                    self.apart += [b for b in (norm.running_mean, norm.running_var) if b is not None]

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Inside, all processes take the same step, and a backbone passes its process's rows only."""
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def part_of(self, rows: int) -> Part | None:
        """This process's part of so many rows; None where they cannot be divided: then each process passes them all."""
        block = self.layout.stretches[0][0] if self.layout.stretches else rows
        block = rows if rows % block else block
        return Part(self.number, self.count, block) if self.active and block % self.count == 0 else None


class _Divided:
    """The forward pass of a backbone, of which each process does a part."""

    def __init__(self, sharing: Sharing, whole: Callable[[Tensor], Tensor]) -> None:
        self.sharing, self.whole = sharing, whole

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it does not know processes
    def __call__(self, images: Tensor) -> Tensor:
        part, layout = self.sharing.part_of(len(images)), self.sharing.layout
        if part is None:
            return self.whole(images)
        stretches = [(rows // part.count, of_target) for rows, of_target in layout.stretches]
        with passing(part), layout.of(*stretches):
            return all_rows(self.whole(own_rows(images)))


class _DrawnForAll:
    """The forward pass of dropout: what it drops is drawn for the whole batch, as one process would."""

    def __init__(self, layer: nn.Module, whole: Callable[[Tensor], Tensor]) -> None:
        self.layer, self.whole = layer, whole

    def __call__(self, values: Tensor) -> Tensor:
        part = part_under_way()
        if part is None or not self.layer.training:
            return self.whole(values)
        # It fills its mask in the order of memory.
        format_ = torch.channels_last if values.ndim == 4 and _is_channels_last(values) else torch.contiguous_format
        ones = values.new_ones(whole_count(values), *values.shape[1:]).contiguous(memory_format=format_)
        return values * part.own(self.whole(ones))


def _is_channels_last(values: Tensor) -> bool:
    return not values.is_contiguous() and values.is_contiguous(memory_format=torch.channels_last)


def whole_backbones(network: nn.Module) -> list[nn.Module]:
    """All backbones inside a network, copies of them too, each with its neck if it has one."""
    necked = [module for module in network.modules() if isinstance(module, NeckedBackbone)]
    inside = {bare for one in necked for bare in bare_backbones(one)}
    return [*necked, *(bare for bare in bare_backbones(network) if bare not in inside)]
