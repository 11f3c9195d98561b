"""What a method costs at inference: parameters, multiply-adds, and time on this machine."""

import platform
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from afield.analysis.subject import Subject

REPEATS = 20
MOST_SECONDS = 2.0
BATCH = 64


@dataclass(frozen=True)
class Part:
    """A part of the network, such as the backbone or a gate."""

    name: str
    parameters: int
    multiply_adds: int


@dataclass(frozen=True)
class Complexity:
    """The costs of classifying one image."""

    parameters: int
    multiply_adds: int
    """Of one image: half of the floating-point operations that torch counts in products and convolutions."""
    parts: list[Part]
    milliseconds: float
    """Per image, one at a time: the fastest of several measurements, since other programs only make it slower."""
    milliseconds_in_batches: float
    """Per image, in batches of `batch`."""
    batch: int
    device: str
    image_size: int


def complexity_of(subject: Subject) -> Complexity:
    """Counted and measured now, without the parts that only training needs."""
    method, side = subject.method, subject.preprocessing.image_size
    batch = min(BATCH, subject.measure.chunk)
    one = torch.rand(1, 3, side, side, device=subject.device)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        method(one)
    counts = {name: sum(of_operations.values()) for name, of_operations in counter.get_flop_counts().items()}
    whole = type(method).__name__
    parts = [
        Part(name, size_of(child), counts.get(f"{whole}.{name}", 0) // 2)
        for name, child in method.named_children()
        if size_of(child)
    ]
    return Complexity(
        parameters=size_of(method),
        multiply_adds=counter.get_total_flops() // 2,
        parts=parts,
        milliseconds=_milliseconds(subject, 1),
        milliseconds_in_batches=_milliseconds(subject, batch),
        batch=batch,
        device=device_in_words(subject.device),
        image_size=side,
    )


def size_of(module: nn.Module) -> int:
    """The number of its parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def device_in_words(device: torch.device) -> str:
    """The GPU's name, or the processor's kind and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}), {threads} thread{'s' * (threads > 1)}"


def _milliseconds(subject: Subject, batch: int) -> float:
    """Per image, in batches of this size, the images lying on the device."""
    side = subject.preprocessing.image_size
    images = torch.rand(batch, 3, side, side, device=subject.device)
    taken: list[float] = []
    with torch.inference_mode():
        subject.method(images)  # the first is slower
        while len(taken) < REPEATS and sum(taken) < MOST_SECONDS:
            _wait(subject.device)
            started = time.perf_counter()
            subject.method(images)
            _wait(subject.device)
            taken.append(time.perf_counter() - started)
    return 1000 * min(taken) / batch


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
