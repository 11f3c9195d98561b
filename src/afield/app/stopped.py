"""A command that is stopped by Ctrl-C or SIGTERM: one line, and the exit codes that shells know."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from afield.config.torchrun import leads

INTERRUPTED = 130
TERMINATED = 143
HINTS = {
    "train": "--resume continues a run that has begun",
    "compare": "the same command continues",
    "bench": "finished runs are recorded, and the same command continues with the others",
}


class Terminated(SystemExit):
    """SIGTERM has come."""


@contextmanager
def termination_raised() -> Iterator[None]:
    """While the context lasts, SIGTERM is an exception, as Ctrl-C is, so that everything under way is left in order."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_stopped(how: str) -> None:
    """One line about a command that was stopped, and how to go on."""
    if not leads():
        return
    hints = [hint for command, hint in HINTS.items() if sys.argv[1:2] == [command]]
    print("; ".join([f"afield: {how}", *hints]), file=sys.stderr)
