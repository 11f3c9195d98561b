"""The command, of whose processes under torchrun the second kills itself once, in the middle of a run."""

import os
import signal

from afield.app.cli import main
from afield.training.loop import Loop

KILLED_BEFORE = 3
"""The step that is not taken the first time."""


def dying(plain):
    def train_step(loop):
        if loop.step == KILLED_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(loop)

    return train_step


if __name__ == "__main__":
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        Loop._train_step = dying(Loop._train_step)
    main()
