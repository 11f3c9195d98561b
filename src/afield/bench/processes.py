"""Worker processes of this machine: they are given jobs, give signs of life, and are stopped or given up."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from afield.bench.engines import SECONDS_TO_STOP
from afield.bench.machine import MachinePart, inherited
from afield.bench.outcome import Outcome
from afield.bench.worker import serve
from afield.config.plan import Job
from afield.training.processes import Parcel, pack, without_script

SECONDS_TO_EXIT = 3


@dataclass(frozen=True)
class Died:
    """How a process was lost."""

    reason: str
    by_signal: bool
    """Whether a signal killed it, from the system when memory runs out, or from a person: a new try may succeed."""


class Worker:
    """A process that trains one job after another."""

    def __init__(self, part: MachinePart) -> None:
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.part = part
        self.heard = time.monotonic()
        """When it last gave a sign of life."""
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with inherited(part), interrupts_ignored(), without_script():
            self.process.start()
        theirs.close()

    def give(self, job: Job, folder: Path) -> None:
        """Send it a job. If the process has died, `receive` reports that."""
        self.heard = time.monotonic()
        with suppress(BrokenPipeError):
            self.connection.send(parcel(job, folder))

    def receive(self) -> Outcome | Died | None:
        """Its next message: the outcome of its job, None as a sign of life, or that the process has died."""
        try:
            message: Outcome | None = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            return Died(f"the process that trained it died ({how})", by_signal=code < 0)
        self.heard = time.monotonic()
        return message

    def give_up(self, reason: str) -> Died:
        """End a process that hangs."""
        self.process.kill()
        self.process.join()
        return Died(reason, by_signal=True)


def parcel(job: Job, folder: Path) -> Parcel:
    """A job as another process gets it."""
    return pack((job, folder), job.config.method_name)


def dismiss(workers: Sequence[Worker]) -> None:
    """Let idle processes end by themselves for a few seconds, all at once: those with a GPU take long to exit."""
    for worker in workers:
        worker.connection.close()
    _join(workers, SECONDS_TO_EXIT)


def stop(workers: Sequence[Worker]) -> None:
    """Ask processes to end, which save their runs first, and end those that do not."""
    for worker in workers:
        worker.process.terminate()
    try:
        _join(workers, SECONDS_TO_STOP)
    finally:  # a second Ctrl-C ends the waiting
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _join(workers: Sequence[Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """A process started inside ignores Ctrl-C, which a terminal sends to all; the parent process handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
