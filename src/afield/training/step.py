"""One optimiser step: draw a batch or several, compute the losses, backpropagate, update.

A step has two parts. First the host prepares the batches and, now and then, a table of learning rates and adaptation
weights. Everything after that is operations on the device. So a step can run in three ways that give the same losses:
`eager`; as a `graph`, recorded once on a GPU and replayed without the host; or `compiled`, where torch.compile fuses
the small operations of the losses and a GPU then records the result as a graph. Run it inside `backend_settings`.
"""

import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from afield.config.training import TrainingOptions
from afield.data.batches import BatchStream
from afield.errors import AfieldError
from afield.kernels import kernels_in_networks
from afield.methods import Losses, Method
from afield.networks import Sharing
from afield.training.optimisers import Optimisers, State
from afield.training.rates import RateTable
from afield.training.schedules import check_schedule, within_phase

# Real steps, run eagerly: libraries choose their kernels before a graph is recorded.
STEPS_BEFORE_RECORDING = 3


class TrainingStep:
    """Everything a step changes: the method's weights, the optimisers, the stream, the sums of the losses."""

    def __init__(
        self,
        method: Method,
        stream: BatchStream,
        options: TrainingOptions,
        fabric: Fabric,
        pretrained: bool = False,
    ) -> None:
        self.method, self.stream, self.options, self.fabric = method, stream, options, fabric
        self.device = fabric.device
        alone = fabric.world_size == 1  # what processes say to each other no graph records
        self.sharing = (
            None
            if alone
            else Sharing(
                method, method.layout, fabric.global_rank, fabric.world_size, synchronised=options.sync_batch_norm
            )
        )
        on_gpu = self.device.type == "cuda" and alone
        kind = ("graph" if on_gpu else "eager") if options.execution == "auto" else options.execution
        self.recorded = on_gpu and kind != "eager"
        check_schedule(options, method.phases)
        self.rates = RateTable(options, method.phases, self.device)
        self.weight = torch.zeros((), device=self.device)
        self.pretrained = pretrained
        for phase in reversed(range(1 + len(method.phases))):  # all of them, so that what cannot be is found at once
            method.phase = phase
            self.optimisers = self._make_optimisers()
            if phase:
                self.optimisers.let_go()
        if kind == "compiled":
            compile_losses(method)
        self.names: list[str] = []
        self.values = torch.zeros(0, device=self.device)
        self.sums = torch.zeros(1, dtype=torch.float64, device=self.device)
        """Each loss summed over steps and, as the last entry, the number of these steps.

        They start at 0 whenever the means are taken, and whenever a step has other losses than the step before.
        """
        self.healthy = torch.ones((), dtype=torch.bool, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_from: int | None = None
        """The step since which this process runs the phase's steps; a graph is recorded a few steps later."""

    def __call__(self) -> None:
        """Take the next step. Afterwards `losses` holds its losses, until the one after it."""
        step = self.taken
        self._enter_phase(step)
        if self.eager_from is None:
            self.eager_from = step
        self.rates.prepare(step)
        self.stream.prepare(self.options.accumulate)
        if self.recorded and self.graph is None and step >= self.eager_from + STEPS_BEFORE_RECORDING:
            self._record()
        if self.graph is not None:
            self.graph.replay()
        elif self.recorded:
            self._warm_up()
        else:
            self._step()

    @property
    def taken(self) -> int:
        """How many steps have been taken. The stream counts its batches: it must know which comes next."""
        return self.stream.step // self.options.accumulate

    @property
    def losses(self) -> Losses:
        """The losses of the last step, each a mean over its batches."""
        return dict(zip(self.names, self.values, strict=True))

    def take_mean_losses(self) -> dict[str, float]:
        """The losses averaged since the last time. They are the same in all processes."""
        *sums, steps = self.sums.tolist()
        self.sums.zero_()  # in place: a recorded graph adds to this very tensor
        return {name: value / steps for name, value in zip(self.names, sums, strict=True)}

    def restore(self, optimisers: State, names: list[str], sums: Tensor) -> None:
        """Go on where these stood. The method and the stream, which counts the steps, have restored their own states.

        If the next step begins a phase, these are still the optimisers of the phase before.
        """
        self._enter_phase(max(self.taken - 1, 0))
        self.optimisers.load_state_dict(optimisers)
        self.rates.restart()
        if sums.shape != (len(names) + 1,):
            raise ValueError(f"{len(names)} losses need as many sums and a count, not {tuple(sums.shape)}")
        self.names, self.sums = names, sums.to(self.device)

    def _make_optimisers(self) -> Optimisers:
        return Optimisers(self.method, self.options, self.device, pretrained=self.pretrained, recorded=self.recorded)

    def _enter_phase(self, step: int) -> None:
        """If a step is of another phase: what learns, and how, is asked anew, and nothing of the last is remembered."""
        phase, _, _ = within_phase(self.options, step, self.method.phases)
        if phase != self.method.phase:
            self.optimisers.let_go()
            self.method.phase, self.graph, self.eager_from = phase, None, None
            self.optimisers = self._make_optimisers()

    def _step(self) -> None:
        rates = self.rates.take()
        self.optimisers.set_rates(rates[0])
        self.weight.copy_(rates[1])
        self.method.train()
        losses: list[Losses] = [{} for _ in range(self.options.accumulate)]
        sharing = self.sharing.under_way() if self.sharing else nullcontext()
        with self.fabric.autocast(), kernels_in_networks(self.recorded), sharing:
            runs = [self._backpropagated(self.method.training_step(self.stream.draw())) for _ in losses]
            for updates in zip(*runs, strict=True):
                self._descend()
                for of_batch, update in zip(losses, updates, strict=True):
                    of_batch |= update
        if list(losses[0]) != self.names:
            self.names = list(losses[0])
            self.sums = torch.zeros(len(self.names) + 1, dtype=torch.float64, device=self.device)
        values = [torch.stack([value.float() for value in of_batch.values()]) for of_batch in losses]
        self.values = torch.stack(values).mean(dim=0) if len(values) > 1 else values[0]
        self.sums[:-1] += self.values
        self.sums[-1] += 1
        if self.sharing:  # whose statistics were taken of a process's own images: so all processes stay equal
            self._average(self.sharing.apart)

    def _backpropagated(self, updates: Iterator[Losses]) -> Iterator[Losses]:
        """The updates of one batch, each as soon as its gradients are added to those of the step's other batches.

        So a batch's activations, but for those that a later update needs, are gone before the next batch has any.
        """
        for losses in updates:
            check_losses(self.method, losses)
            terms: list[Tensor] = []
            for ramped in (False, True):
                values = [value for name, value in losses.items() if (name in self.method.ramped) == ramped]
                if values:
                    terms.append(torch.stack(values).sum() * (self.weight if ramped else 1))
            total = torch.stack(terms).sum()
            self.healthy &= total.detach().isfinite()
            if self.options.accumulate > 1:
                total = total / self.options.accumulate
            # An update of nothing but parts that stand still has no gradient; of any other, that is an error.
            if total.requires_grad or not self.optimisers.still:
                with torch.autocast(self.device.type, enabled=False):
                    self.fabric.backward(total)
            # Autocast keeps the weights it has cast; what comes after the update must not see the old ones.
            torch.clear_autocast_cache()
            yield {name: value.detach() for name, value in losses.items()}

    def _descend(self) -> None:
        """Clip and update, with the gradients that have been added up; then let go of them."""
        self._average([parameter.grad for parameter in self.method.parameters() if parameter.grad is not None])
        if self.options.clip_norm:
            clip_grad_norm_(self.method.parameters(), self.options.clip_norm)
        self.optimisers.step()
        self.method.zero_grad()

    def _average(self, tensors: list[Tensor]) -> None:
        """Replace tensors by their mean over all processes.

        DDP's hooks cannot do it: they expect one backward pass per step, through all parameters.
        """
        if self.fabric.world_size == 1 or not tensors:
            return
        ends = torch.tensor([tensor.numel() for tensor in tensors[:-1]]).cumsum(0)
        mean = self.fabric.all_reduce(torch.cat([tensor.flatten() for tensor in tensors]), reduce_op="mean")
        assert isinstance(mean, Tensor)
        for tensor, part in zip(tensors, mean.tensor_split(ends), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def _warm_up(self) -> None:
        """A step on a stream of its own, as PyTorch asks for before recording."""
        side: torch.cuda.Stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side), warnings.catch_warnings():
            # Adam is told that its steps will be recorded, and warns of those that are not.
            warnings.filterwarnings("ignore", message=".*capturable=True")
            self._step()
        torch.cuda.current_stream(self.device).wait_stream(side)

    def _record(self) -> None:
        """Record the step; recording runs nothing."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.stream.noise)
        # The threads that read images ahead go on, and what they ask of the GPU is not part of the step.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._step()
        self.graph = graph


def check_losses(method: Method, losses: Losses) -> None:
    """Raise, in words that name the method, unless its losses are scalar tensors by name."""
    name = type(method).__name__
    if not isinstance(losses, dict) or not losses:
        raise AfieldError(f"the losses of method {name} must be a dict of scalar tensors by name, not {losses!r:.40}")
    for key, value in losses.items():
        if not isinstance(value, Tensor) or value.ndim:
            found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise AfieldError(f"loss '{key}' of method {name} must be a scalar tensor, not {found}")


def compile_losses(method: Method) -> None:
    """Let torch.compile fuse what follows the backbone; or all of `losses`, where a method overrides that."""
    name = "losses_of" if type(method).losses is Method.losses else "losses"
    # The instance's attribute hides the class's function.
    setattr(method, name, torch.compile(getattr(method, name), dynamic=False))
