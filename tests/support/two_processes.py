"""The command that trains in two processes of this machine, for longer than any test waits."""

import subprocess

from support.benching import saved_step, wait_for
from support.children import descendants
from support.command import COMMAND

STEPS = 100_000
TWO = {
    "training.devices": 2, "training.device": "cpu", "training.batch_size": 4, "training.evaluate_every": STEPS,
    "training.checkpoint_every": 20, "training.steps": STEPS, "network.width": 8,
}  # fmt: skip


def start_two(out, resume=False):
    """Begin a run or go on with it, in a group of processes of its own, as a shell starts a command."""
    settings = [word for key, value in TWO.items() for word in ("--set", f"{key}={value}")]
    words = ["--resume"] if resume else ["--target", "uci", "--method", "baseline", *settings]
    words = [*COMMAND, "train", *words, "--out", str(out)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_until_further(out, reached):
    """Wait until the run has saved a later step than one."""
    wait_for(lambda: saved_step(out) > reached)


def ranks_of(process):
    """The two processes that it has started."""
    ranks = descendants(process.pid, "spawn_main")
    assert len(ranks) == 2
    return ranks
