"""A process that trains in forks of itself, each of which is killed: so twenty kills take little more than one start.

`python killed_often.py OUT DATA SEED MOMENT...` trains into OUT on the toy data or on a folder of images. Each fork
goes on with the run; it is killed by SIGKILL at its moment, and how far that was from the moment's beginning is drawn.
Packs are saved so often that each fork finds some that are partly filled.
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import afield
from afield.data import packed
from afield.training import checkpoint
from afield.training.evaluation import Evaluator
from afield.training.loop import Loop
from conftest import SMALL, register_data, toy_data

OFTEN = SMALL | {"training.evaluate_every": 5, "training.checkpoint_every": 3}
SAVE_EVERY = 4  # images of a pack: the batch of a domain
FILES = OFTEN | {"data.placement": "streamed", "data.workers": 1, "network.backbone": "digit"}


def train_often(out, data, resume=False):
    """The run that is killed, and the one that is not."""
    names = ("toy", "uda", "night") if data == "toy" else (data, "uda", "d2")
    settings, steps = (OFTEN, 100) if data == "toy" else (FILES, 15)
    others = {"settings": settings, "progress": False, "resume": resume}
    return afield.train(*names, "baseline", steps, 0, out, **others)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner, name, number, then):
    """Do something at a call of a function, the so-manieth, instead of it."""
    plain, left = getattr(owner, name), [number]

    def watched(*arguments, **others):
        left[0] -= 1
        return (plain if left[0] else then(plain))(*arguments, **others)

    setattr(owner, name, watched)


def soon(delay):
    """A function as it is, and a kill a moment after it has begun."""

    def then(plain):
        threading.Timer(delay, kill).start()
        return plain

    return then


def half_written(plain):
    def save(tensors, path, metadata):
        plain(tensors, path, metadata=metadata)
        os.truncate(path, Path(path).stat().st_size // 2)
        kill()

    return save


def half_an_image(plain):
    def pwrite(file, content, offset):
        plain(file, content[: len(content) // 2], offset)
        kill()

    return pwrite


def kill_after_saves(number):
    """Packs are saved so often and no more, however many threads fill them."""
    plain, left, one_by_one = packed._save, [number], threading.Lock()

    def save(*arguments):
        with one_by_one:
            plain(*arguments)
            left[0] -= 1
            if not left[0]:
                kill()

    packed._save = save


def lose_power_at_sync(number):
    """The so-manieth time that pixels are to be seen safely to disk, all that are not yet there are lost."""
    write, sync, unsafe, left, one_by_one = os.pwrite, os.fdatasync, [], [number], threading.Lock()

    def pwrite(file, content, offset):
        with one_by_one:
            unsafe.append((file, len(content), offset))
            return write(file, content, offset)

    def fdatasync(file):
        with one_by_one:
            left[0] -= 1
            if not left[0]:
                for other, count, offset in unsafe:
                    write(other, bytes(count), offset)
                kill()
            sync(file)
            unsafe[:] = [each for each in unsafe if each[0] != file]

    packed.os.pwrite, packed.os.fdatasync = pwrite, fdatasync


def arm(moment, rng):
    if moment == "step":
        at_call(Loop, "_train_step", rng.randint(1, 6), soon(rng.uniform(0, 0.01)))
    elif moment == "evaluating":
        at_call(Evaluator, "__call__", 1, soon(rng.uniform(0, 0.003)))
    elif moment == "saving":
        at_call(checkpoint, "save_file", rng.randint(1, 2), half_written)
    elif moment == "packing":
        at_call(packed.os, "pwrite", rng.randint(1, 12), half_an_image)
    elif moment == "syncing":
        lose_power_at_sync(rng.randint(1, 2))
    elif moment == "packed":
        kill_after_saves(rng.randint(1, 2))


def main(out, data, seed, *moments):
    register_data("toy")(toy_data)
    packed.SAVE_EVERY = SAVE_EVERY
    rng = random.Random(int(seed))
    for moment in moments:
        child = os.fork()
        if child == 0:
            arm(moment, rng)
            train_often(out, data, resume=(Path(out) / "config.toml").exists())
            os._exit(1)  # it came to its end
        rng.random()  # or all forks would draw the same
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"killed while {moment}: not killed but ended with status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
