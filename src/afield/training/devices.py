"""On what a run trains, and in which precision, where the config leaves that to the machine."""

from typing import Literal

import torch
from lightning.fabric import Fabric

from afield.config.training import TrainingOptions
from afield.errors import AfieldError

Precision = Literal["fp32", "bf16"]
PRECISIONS: dict[Precision, Literal["32-true", "bf16-mixed"]] = {"fp32": "32-true", "bf16": "bf16-mixed"}


def make_fabric(options: TrainingOptions) -> Fabric:
    """What runs a loop: in this process or, once launched, in as many as there are devices."""
    kind, count = accelerator(options), options.devices
    if kind == "cuda" and count > (there := torch.cuda.device_count()):
        raise AfieldError(f"config key 'training.devices': {count} are asked for, and this machine has {there}")
    strategy = "ddp_spawn" if count > 1 else "auto"
    return Fabric(accelerator=kind, devices=count, strategy=strategy, precision=PRECISIONS[precision_of(options)])


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
