"""Steps of a method in the processes that share a batch, beside the same steps in one process."""

from functools import partial

import torch
from lightning_fabric import Fabric

from afield.config.layers import resolve
from afield.data.batches import BatchStream
from afield.networks.rows import from_all
from afield.training.assemble import make_setup
from afield.training.backend import backend_settings
from afield.training.step import TrainingStep
from conftest import toy_data

STEPS = 3


def as_layer(method, task="uda", **sections):
    """A config of a few steps on the toy data."""
    layer = {
        "data": {"name": "toy", "preset": "digits", "image_size": 16, "augmentation": "digits"},
        "task": {"kind": task, "target": "night"},
        "method": {"name": method},
        "network": {"width": 8},
        "training": {"batch_size": 4, "steps": STEPS + 1, "ramp": "constant", "lr": 0.01, "device": "cpu"},
    }
    for section, values in sections.items():
        layer[section] = layer[section] | values
    return layer


class Watched(TrainingStep):
    """Keeps the gradients of all updates of the first step of each phase.

    Later on, where a maximum or a ReLU turns over by the last bit of a weight, gradients of one process differ too.
    """

    def __init__(self, *given):
        self.seen, self.first, self.update = {}, 0, 0
        super().__init__(*given)

    def _enter_phase(self, step):
        before = self.method.phase
        super()._enter_phase(step)
        if self.method.phase != before:
            self.first = step

    def _descend(self):
        optimisers, plain = self.optimisers, self.optimisers.step
        optimisers.step = lambda: (self._keep(), plain())
        super()._descend()
        del optimisers.step

    def _keep(self):
        self.update += 1
        if self.taken - 1 == self.first:
            gradients = {name: p.grad.clone() for name, p in self.method.named_parameters() if p.grad is not None}
            self.seen |= {f"gradient {self.update} of {name}": value for name, value in gradients.items()}


def take_steps(layer, fabric, steps=STEPS):
    """Losses and gradients of some steps, and all tensors of the method after each.

    On a backbone of timm's in float64: so deep a network, which has learned nothing, makes much of the last bit.
    """
    config = resolve(layer)
    deep = "backbone" in layer["network"]
    with torch.random.fork_rng(), backend_settings(config.training):
        torch.manual_seed(0)
        setup = make_setup(config, toy_data())
        method = setup.method.to(torch.float64 if deep else torch.float32).to(memory_format=torch.channels_last)
        stream = BatchStream(
            setup.task, config.training.batch_size, setup.preprocessing, torch.device("cpu"), 0,
            config.data.augmentation, config.data.placement, (fabric.global_rank, fabric.world_size),
            partial(from_all, processes=fabric.world_size), setup.target_batches,
        )  # fmt: skip
        if deep:
            plain = stream._batch
            stream._batch = lambda images, labels: plain(images.double(), labels)
        training = Watched(method, stream, config.training, fabric)
        for step in range(steps):
            training()
            training.seen |= {f"loss {name} {step}": value for name, value in training.losses.items()}
            training.seen |= {f"{name} after {step}": value.clone() for name, value in method.state_dict().items()}
        stream.close()
        training.seen["drawn"] = torch.cat((torch.rand(4), torch.rand(4, generator=stream.noise)))
    return training.seen


def off_by(value, other):
    """How far two tensors are apart, as a share of the largest value where that is above 1."""
    if not value.numel():
        return 0.0
    value, other = value.double(), other.double()
    return float((value - other).abs().max() / value.abs().max().clamp_min(1))


def differences(layers, fabric):
    """For each config what differs most from one process, and by how much. All processes must agree to the bit."""
    alone = Fabric(accelerator="cpu", devices=1)
    found = []
    for number, layer in enumerate(layers):
        shared = take_steps(layer, fabric)
        expected = take_steps(layer, alone) if number % fabric.world_size == fabric.global_rank else None
        everyones = [None] * fabric.world_size
        torch.distributed.all_gather_object(everyones, (expected, shared))
        expected = next(given for given, _ in everyones if given)
        assert all(torch.equal(value, other[name]) for _, other in everyones for name, value in shared.items())
        assert shared.keys() == expected.keys()
        off = {name: off_by(value, shared[name]) for name, value in expected.items()}
        name = max(off, key=off.get)
        found.append((off[name], name))  # little, or the pipe to the parent would be full
    torch.distributed.destroy_process_group()  # in good order: threads of it at Python's end may abort the process
    return found
