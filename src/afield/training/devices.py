"""On what a run trains, and in which precision, where the config leaves that to the machine."""

import atexit
import os
from typing import Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from afield.config.torchrun import torchrun
from afield.config.training import TrainingOptions
from afield.errors import AfieldError

Precision = Literal["fp32", "bf16"]
PRECISIONS: dict[Precision, Literal["32-true", "bf16-mixed"]] = {"fp32": "32-true", "bf16": "bf16-mixed"}
LEAST_OF_CPU = 2
"""So many processes can be tried on any machine."""


def make_fabric(options: TrainingOptions) -> Fabric:
    """What runs a loop: in this process or, once launched, in as many as there are devices.

    Those that torchrun has started are there already, and launching joins them.
    """
    check_devices(options)
    kind, precision = accelerator(options), PRECISIONS[precision_of(options)]
    if options.devices * options.nodes == 1:
        return Fabric(accelerator=kind, devices=1, precision=precision)
    strategy, environment = ("ddp", TorchElasticEnvironment()) if torchrun() else ("ddp_spawn", LightningEnvironment())
    return Fabric(
        accelerator=kind, devices=options.devices, num_nodes=options.nodes, strategy=strategy, precision=precision,
        plugins=[environment],  # not what a cluster's variables say: by them a job of Slurm would be all its tasks
    )  # fmt: skip


def meet_anew(options: TrainingOptions) -> None:
    """Let processes that torchrun has started anew find each other; Fabric joins the group that is there already.

    torchrun's store keeps the addresses of those that are gone, to which they would try to connect; so they use names
    of their own in it. Not on several machines, each of which counts for itself how often it has started its processes.
    """
    world = torchrun()
    if world is None or not world.restarts or world.nodes > 1 or world.processes == 1:
        return
    kind = "nccl" if accelerator(options) == "cuda" else "gloo"
    store, rank, processes = next(rendezvous("env://", world.rank, world.processes))
    names = distributed.PrefixStore(f"restart {world.restarts}", store)  # type: ignore[attr-defined]
    distributed.init_process_group(kind, store=names, rank=rank, world_size=processes)
    atexit.register(distributed.destroy_process_group)


def check_devices(options: TrainingOptions) -> None:
    """Raise unless so many processes can be had."""
    count, nodes = options.devices, options.nodes
    if nodes > 1 and not torchrun():
        raise AfieldError(
            f"config key 'training.nodes': to train on {nodes} machines, call on each of them "
            f"torchrun --nnodes={nodes} --nproc-per-node={count} -m afield train (docs/guide.md has an example)"
        )
    kind = accelerator(options)
    there = torch.cuda.device_count() if kind == "cuda" else max(processors(), LEAST_OF_CPU)
    if count > there:
        things = "GPUs" if kind == "cuda" else "processors"
        raise AfieldError(f"config key 'training.devices': {count} are asked for, and there are {there} {things}")


def processors() -> int:
    """How many processors this process may use; where the system does not say, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerator(options: TrainingOptions) -> str:
    """The device kind to train on."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise AfieldError("config key 'training.device': this machine has no CUDA device")
    return best_device().type if options.device == "auto" else options.device


def best_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def precision_of(options: TrainingOptions) -> Precision:
    """The precision to train in; where the config says `auto`, bf16 on a GPU that computes in it, else fp32.

    >>> precision_of(TrainingOptions(precision="auto", device="cpu"))
    'fp32'
    """
    if options.precision != "auto":
        return options.precision
    # Not by emulation, which older GPUs offer and which is slower than fp32.
    fast = accelerator(options) == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if fast else "fp32"
