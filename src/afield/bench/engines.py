"""Engines: ways to run jobs on this machine. Each yields every job with its outcome, as soon as it is known."""

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

from afield.bench.outcome import Failed, Outcome
from afield.bench.worker import attempt, serve
from afield.config.plan import Job
from afield.training.processes import Parcel, pack, without_script

Assignment = tuple[Job, Path]  # a job and the folder it trains in
MachinePart = dict[str, str]  # the GPU and the threads that a worker may use, as environment variables
Begun = Callable[[Job], None]
Outcomes = Generator[tuple[Job, Outcome], None, None]
SECONDS_TO_EXIT = 3


def work_here(assignments: Sequence[Assignment], begun: Begun) -> Outcomes:
    """One after the other, in this process."""
    for job, folder in assignments:
        begun(job)
        yield job, attempt(job, folder)


def work_in_processes(assignments: Sequence[Assignment], begun: Begun, count: int) -> Outcomes:
    """Several at a time, in processes that train job after job. If one dies, its job fails and it is replaced."""
    waiting = list(reversed(assignments))
    busy: dict[Connection, tuple[Worker, Job]] = {}
    idle = [Worker(part) for part in machine_parts(min(count, len(assignments)))]
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
                    idle.append(Worker(worker.part))
                yield job, outcome
        dismiss(idle)
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.process.kill()
            worker.process.join()


class Worker:
    """A process that trains one job after another."""

    def __init__(self, part: MachinePart) -> None:
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.part = part
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with inherited(part), interrupts_ignored(), without_script():
            self.process.start()
        theirs.close()

    def give(self, job: Job, folder: Path) -> None:
        """Send it a job. If the process has died, `receive` reports that."""
        with suppress(BrokenPipeError):
            self.connection.send(parcel(job, folder))

    def receive(self) -> Outcome:
        """The outcome of its job."""
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Failed(f"the process that trained it died (exit code {self.process.exitcode})")
        return outcome


def parcel(job: Job, folder: Path) -> Parcel:
    """A job as another process gets it."""
    return pack((job, folder), job.config.method_name)


def dismiss(workers: Sequence[Worker]) -> None:
    """Let idle processes end by themselves for a few seconds, all at once: those with a GPU take long to exit."""
    for worker in workers:
        worker.connection.close()
    deadline = time.monotonic() + SECONDS_TO_EXIT
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))


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
    on_gpu = has_gpu() and any(job.config.training.device != "cpu" for job, _ in assignments)
    return 2 * torch.cuda.device_count() if on_gpu else 1


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
