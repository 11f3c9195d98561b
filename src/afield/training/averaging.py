"""An average of the weights over the steps, beside those that are trained; evaluations and predictions use it.

    moving     sum_i d^(n-i) w_i / sum_i d^(n-i)     w_i the weights after step i of n, d the decay
    uniform    sum_i w_i / n                         SWA (Izmailov et al. 2018, arXiv 1803.05407)

After the first averaged step both equal that step's weights; the weights before it are never included. Steps count from
`training.average_from` on; until then the weights are those that are trained. Izmailov et al. average at a constant or
cyclical rate: under a schedule that falls to 0, such as half a cosine, averaged weights differ little from the last.

Batch norm's running statistics are averaged as the weights are. They are themselves means over the last few batches, of
networks that change little from step to step. Where averaging begins late, their mean over the same steps is near what
the averaged network would see. From the first step on it is not: early networks differ much, and early evaluations of
the average suffer by it. Measuring the statistics would take a pass over training images before each evaluation. All
other buffers belong to a method, which alone knows what they are: the averaged network has them as they stand.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.swa_utils import get_ema_multi_avg_fn

from afield.config.training import TrainingOptions


class WeightAverage:
    """The averaged tensors of a method. An update is operations on the device, after a step that may be recorded."""

    def __init__(self, method: nn.Module, options: TrainingOptions) -> None:
        self.options = options
        self.first = round(options.average_from * options.steps)
        """The number of steps before averaging begins, which are not part of the average."""
        self.count = 0
        """The number of steps in the average."""
        self.live = averaged_tensors(method) if options.average != "none" else {}
        self.held = {name: tensor.detach().clone() for name, tensor in self.live.items()}
        """The average; while it is in place, the weights that are trained."""

    def update(self, step: int) -> None:
        """Take in the weights after so many steps."""
        self.count = max(0, step - self.first) if self.live else 0
        if self.count:
            average_into = get_ema_multi_avg_fn(share_kept(self.options, self.count))  # type: ignore[no-untyped-call]
            average_into(list(self.held.values()), list(self.live.values()), None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the method has the averaged weights; in the same memory, where a recorded step looks for its own."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The trained weights: beside a method that is saved with the average in place, what a checkpoint needs."""
        return {"trained": self.held} if self.count else {}

    def load_state_dict(self, stored: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """Go on where `state_dict` stood after so many steps, with a method that has the average."""
        self.count = max(0, step - self.first) if self.live else 0
        if not self.count:
            return
        trained = stored["trained"]
        if {n: t.shape for n, t in trained.items()} != {n: t.shape for n, t in self.held.items()}:
            raise ValueError("the trained weights are of another method")
        for name, held in self.held.items():
            held.copy_(trained[name])
        self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        if self.count:
            for name, live in self.live.items():
                held = live.clone()
                live.copy_(self.held[name])
                self.held[name].copy_(held)


def averaged_tensors(method: nn.Module) -> dict[str, Tensor]:
    """A method's parameters and its batch norm's running statistics, by name."""
    norms = [(name, part) for name, part in method.named_modules() if isinstance(part, _NormBase)]
    statistics = {
        f"{name}.{key}": buffer
        for name, part in norms
        for key, buffer in part.named_buffers(recurse=False)
        if buffer.is_floating_point()
    }
    return {**dict(method.named_parameters()), **statistics}


def share_kept(options: TrainingOptions, count: int) -> float:
    """How much of the average over all steps but the last, of so many, remains in that over all of them.

    >>> share_kept(TrainingOptions(average="uniform"), 4)
    0.75
    >>> moving = TrainingOptions(average="moving", average_decay=0.5)
    >>> [share_kept(moving, count) for count in (1, 2)]  # then 3/7, 7/15 and so on, to 1/2
    [0.0, 0.3333333333333333]
    """
    if options.average == "uniform":
        return (count - 1) / count
    decay = options.average_decay
    return decay * (1 - decay ** (count - 1)) / (1 - decay**count)
