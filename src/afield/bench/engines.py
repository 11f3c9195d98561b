"""Engines: the ways to get jobs done on this machine. Each yields every job with its outcome as it comes."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from afield.bench.worker import Failed, Outcome, attempt, serve
from afield.config.plan import Job

Task = tuple[Job, Path]
Share = dict[str, str]  # of the machine, as environment variables
Begun = Callable[[Job], None]
Outcomes = Generator[tuple[Job, Outcome], None, None]
SECONDS_TO_LEAVE = 3


def work_here(tasks: Sequence[Task], begun: Begun) -> Outcomes:
    """One after the other, in this process."""
    for job, folder in tasks:
        begun(job)
        yield job, attempt(job, folder)


def work_in_processes(tasks: Sequence[Task], begun: Begun, count: int) -> Outcomes:
    """Several at a time, in processes that live on from job to job. One that dies fails its job and is replaced."""
    waiting = list(reversed(tasks))
    busy: dict[Connection, tuple[Worker, Job]] = {}
    idle = [Worker(share) for share in shares(min(count, len(tasks)))]
    try:
        while waiting or busy:
            while idle and waiting:
                worker, (job, folder) = idle.pop(0), waiting.pop()
                worker.give(job, folder)
                busy[worker.connection] = worker, job
                begun(job)
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker, job = busy.pop(connection)
                outcome = worker.receive()
                if worker.process.is_alive():
                    idle.append(worker)
                elif waiting:
                    idle.append(Worker(worker.share))
                yield job, outcome
        dismiss(idle)
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.process.kill()
            worker.process.join()


class Worker:
    """A process that trains."""

    def __init__(self, share: Share) -> None:
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.share = share
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with inherited(share), interrupts_ignored():
            self.process.start()
        theirs.close()

    def give(self, job: Job, folder: Path) -> None:
        """Let it train a job. If it has died, `receive` will say so."""
        with suppress(BrokenPipeError):
            self.connection.send((job, folder))

    def receive(self) -> Outcome:
        """What became of the job."""
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Failed(f"the process that trained it died (exit code {self.process.exitcode})")
        return outcome


def dismiss(workers: Sequence[Worker]) -> None:
    """Let the processes end by themselves, all at once and soon: a GPU's are slow to leave, and hold nothing."""
    for worker in workers:
        worker.connection.close()
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))


def shares(count: int) -> list[Share]:
    """The machine, divided among workers: each GPU in turn, and an equal part of the processors."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // count))
    if not has_gpu():
        return [{"OMP_NUM_THREADS": threads}] * count
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    return [{"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": gpu} for gpu, _ in zip(cycle(gpus), range(count))]


def usual_workers(tasks: Sequence[Task]) -> int:
    """Two runs a GPU, since one alone leaves it waiting now and then; else one, which has all processors."""
    on_gpu = has_gpu() and any(job.config.training.device != "cpu" for job, _ in tasks)
    return 2 * torch.cuda.device_count() if on_gpu else 1


def has_gpu() -> bool:
    """Whether there is one to train on."""
    return torch.cuda.is_available()


@contextmanager
def inherited(share: Share) -> Iterator[None]:
    """A process started inside has this in its environment from its first moment on, before torch looks there."""
    before = {name: os.environ.get(name) for name in share}
    os.environ.update(share)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """A process started inside never hears Ctrl-C, which reaches all of a terminal; the one that started it does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
