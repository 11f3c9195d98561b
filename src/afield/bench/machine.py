"""This machine divided among workers: its GPUs and its processors."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

import torch

from afield.bench.engines import Assignment

MachinePart = dict[str, str]  # the GPU and the threads that a worker may use, as environment variables


def machine_parts(count: int) -> list[MachinePart]:
    """The machine divided among workers: the GPUs in turn, and an equal number of processors each."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // count))
    if not has_gpu():
        return [{"OMP_NUM_THREADS": threads}] * count
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    return [{"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": gpu} for gpu, _ in zip(cycle(gpus), range(count))]


def usual_workers(assignments: Sequence[Assignment]) -> int:
    """Two per GPU, because one run alone leaves it idle at times; without a GPU one, which uses all processors."""
    on_gpu = has_gpu() and any(wants_gpu(assignment) for assignment in assignments)
    return 2 * torch.cuda.device_count() if on_gpu else 1


def wants_gpu(assignment: Assignment) -> bool:
    """Whether a job trains on a GPU where there is one."""
    return assignment[0].config.training.device != "cpu"


def has_gpu() -> bool:
    """Whether there is a GPU to train on."""
    return torch.cuda.is_available()


@contextmanager
def inherited(part: MachinePart) -> Iterator[None]:
    """A process started inside has these environment variables from the start, before it imports torch."""
    before = {name: os.environ.get(name) for name in part}
    os.environ.update(part)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
