"""One optimiser step: draw a batch, compute the losses, backpropagate, update.

After the host has prepared the batch stream, a step is operations on the device alone; its learning rate and its
adaptation weight come from tables there. So it can run in three ways that give the same losses: `eager`; as a `graph`,
recorded once on a GPU and replayed without the host; or `compiled`, where torch.compile fuses the small operations of
the losses and a GPU then records the result as a graph.
"""

from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from afield.config.training import TrainingOptions
from afield.data.batches import BatchStream
from afield.methods import Losses, Method
from afield.training.schedules import adaptation_weight, check_warmup, learning_rate, within_phase

# Real steps, run eagerly: libraries choose their kernels and the optimiser makes its state before a graph is recorded.
STEPS_BEFORE_RECORDING = 3


class TrainingStep:
    """Everything a step changes: the method's weights, the optimiser, the stream, the sums of the losses."""

    def __init__(self, method: Method, stream: BatchStream, options: TrainingOptions, fabric: Fabric) -> None:
        self.method, self.stream, self.options, self.fabric = method, stream, options, fabric
        self.device = fabric.device
        alone = fabric.world_size == 1  # what is averaged among processes is not recorded
        on_gpu = self.device.type == "cuda" and alone
        kind = ("graph" if on_gpu else "eager") if options.execution == "auto" else options.execution
        self.recorded = on_gpu and kind != "eager"
        # Batches have one shape: worth trying which convolution kernels are fastest for it.
        torch.backends.cudnn.benchmark = True
        # In a bf16 run the few products that stay in float32 need no more than the 10 bits of TF32, which convolutions
        # of a float32 run have as well.
        torch.set_float32_matmul_precision("high" if options.precision == "bf16" else "highest")
        if kind == "compiled":
            compile_losses(method)
        check_warmup(options, method.phases)
        rates = [
            [of(options, s, method.phases) for of in (learning_rate, adaptation_weight)] for s in range(options.steps)
        ]
        self.rates = torch.tensor(rates, device=self.device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.lr, self.weight = (torch.zeros((), device=self.device) for _ in range(2))
        self.optimiser = torch.optim.SGD(
            method.parameters(),
            lr=self.lr,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            fused=True,
        )
        if options.momentum:
            # The fused update takes no mixture of parameters with and without: a method's parts may join late.
            for parameter in method.parameters():
                if parameter.requires_grad:
                    self.optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.names: list[str] = []
        self.values = torch.zeros(0, device=self.device)
        self.sums = torch.zeros(1, dtype=torch.float64, device=self.device)
        """Of each loss and, last, of the steps since they were taken, or since the losses became other ones."""
        self.healthy = torch.ones((), dtype=torch.bool, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def __call__(self) -> None:
        """Take one step. The losses are then in `losses`, until the next one."""
        phase, done, _ = within_phase(self.options, self.stream.step, self.method.phases)
        if phase != self.method.phase:
            self.method.phase, self.graph, self.calls = phase, None, 0
            if not done:  # it begins, and is not gone on with
                self._forget()
        self.stream.prepare()
        if self.recorded and self.graph is None and self.calls == STEPS_BEFORE_RECORDING:
            self._record()
        if self.graph is not None:
            self.graph.replay()
        elif self.recorded:
            self._warm_up()
        else:
            self._step()
        self.calls += 1

    @property
    def losses(self) -> Losses:
        """The losses of the last step."""
        return dict(zip(self.names, self.values, strict=True))

    def take_mean_losses(self) -> dict[str, float]:
        """The losses averaged since the last time, over all processes."""
        total = self.fabric.all_reduce(self.sums, reduce_op="mean")
        assert isinstance(total, Tensor)
        *sums, steps = total.tolist()
        self.sums.zero_()  # in place: a recorded graph adds to this very tensor
        return {name: value / steps for name, value in zip(self.names, sums, strict=True)}

    def restore(self, step: int, optimiser: dict[str, Any], names: list[str], sums: Tensor) -> None:
        """Go on at a step. The method's and the stream's states are restored by their own means."""
        self.optimiser.load_state_dict(optimiser)
        for parameter, state in self.optimiser.state.items():
            # The fused update walks memory: its buffers must lie as their parameters do.
            state["momentum_buffer"] = torch.empty_like(parameter).copy_(state["momentum_buffer"])
        self.clock.fill_(step)
        self.names, self.sums = names, sums.to(self.device)
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr

    def _forget(self) -> None:
        """Let a new phase begin without the momentum of the one before, whose losses were others."""
        if self.options.momentum:
            for state in self.optimiser.state.values():
                state["momentum_buffer"].zero_()

    def _step(self) -> None:
        rates = self.rates.index_select(0, self.clock).squeeze(0)
        self.clock += 1
        self.lr.copy_(rates[0])
        self.weight.copy_(rates[1])
        self.method.train()
        with self.fabric.autocast():
            losses = self.method.update(self.stream.draw(), self._descend)
        if list(losses) != self.names:
            self.names = list(losses)
            self.sums = torch.zeros(len(losses) + 1, dtype=torch.float64, device=self.device)
        self.values = torch.stack([value.detach().float() for value in losses.values()])
        self.sums[:-1] += self.values
        self.sums[-1] += 1
        # Statistics of batch norm are of a process's own images; so all processes stay equal.
        self._average([buffer for buffer in self.method.buffers() if buffer.is_floating_point()])

    def _descend(self, losses: Losses) -> None:
        """Sum, with the ramped losses at this step's weight; backpropagate; clip; update."""
        terms: list[Tensor] = []
        for ramped in (False, True):
            values = [value for name, value in losses.items() if (name in self.method.ramped) == ramped]
            if values:
                terms.append(torch.stack(values).sum() * (self.weight if ramped else 1))
        total = torch.stack(terms).sum()
        self.healthy &= total.detach().isfinite()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, enabled=False):
            self.fabric.backward(total)
        self._average([parameter.grad for parameter in self.method.parameters() if parameter.grad is not None])
        if self.options.clip_norm:
            clip_grad_norm_(self.method.parameters(), self.options.clip_norm)
        self.optimiser.step()
        # Autocast keeps the weights it has cast; a second forward pass of this step must not see the old ones.
        torch.clear_autocast_cache()

    def _average(self, tensors: list[Tensor]) -> None:
        """Make tensors the mean of all processes'. Not DDP's hooks: a step may go back several times, through parts."""
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
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream(self.device).wait_stream(side)

    def _record(self) -> None:
        """Record the step; recording runs nothing."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.stream.noise)
        with torch.cuda.graph(graph):
            self._step()
        self.graph = graph


def compile_losses(method: Method) -> None:
    """Let torch.compile fuse what follows the backbone; all of it, where a method has its own way to its losses."""
    # Every method and set of options is a version of the same function; after so many, none would be compiled any more.
    torch._dynamo.config.recompile_limit = 1000
    name = "losses_of" if type(method).losses is Method.losses else "losses"
    # The instance's attribute hides the class's function.
    setattr(method, name, torch.compile(getattr(method, name), dynamic=False))
