"""What the tests of several processes run in each of them; a module of its own, which those processes import."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from afield.config.layers import resolve
from afield.data.registry import load_data
from afield.training.assemble import opened
from support.resuming import Killed, kill_before_step


def train(fabric, config, out, resume=False, killed_before=None):
    """A process's part of a run, up to a step that no process takes; the weights at its end."""
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, killed_before)
        try:
            data = load_data(config.data.name)
            with opened(config, data, Path(out), resume=resume, progress=False, fabric=fabric) as loop:
                loop.run()
                return {name: value.clone() for name, value in loop.method.state_dict().items()}
        except Killed:
            return None


@contextmanager
def group():
    """Leave the group of processes in good order: threads of it that live on at Python's end may abort the process."""
    yield
    torch.distributed.destroy_process_group()


def unbroken_killed_and_resumed(layers, folder, fabric):
    """For each config two runs, one of them killed and resumed. Whether all processes ended with the same weights."""
    equal = []
    with group():
        for number, layer in enumerate(layers):
            config = resolve(layer)
            own = train(fabric, config, f"{folder}/{number}/unbroken")
            train(fabric, config, f"{folder}/{number}/killed", killed_before=3)
            train(fabric, config, f"{folder}/{number}/killed", resume=True)
            everyones = [None] * fabric.world_size
            torch.distributed.all_gather_object(everyones, own)
            first, *others = everyones
            equal.append(all(torch.equal(first[name], other[name]) for other in others for name in first))
    return equal


def killed(layer, folder, fabric):
    """A run that is killed before its fourth step."""
    with group():
        train(fabric, resolve(layer), folder, killed_before=3)
