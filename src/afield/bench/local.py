"""The engine of this machine: jobs one after the other in this process, or several at a time in processes."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from afield.bench.engines import Assignment, Outcomes, Patience, Watcher
from afield.bench.machine import machine_parts
from afield.bench.outcome import Failed, Outcome
from afield.bench.processes import Died, Worker, dismiss, stop
from afield.bench.worker import attempt
from afield.config.plan import Job

CUDA_ERROR = "CUDA error"
"""In the reason of a failure: after such an error, but not after a lack of memory, a process cannot use its GPU."""


def work_here(assignments: Sequence[Assignment], watcher: Watcher) -> Outcomes:
    """One after the other, in this process."""
    for job, folder in assignments:
        watcher.begun(job)
        yield job, attempt(job, folder)


@dataclass
class Task:
    """A job on its way through workers."""

    job: Job
    folder: Path
    lost: int = 0
    """How many processes were lost while they trained it."""
    crowded: bool = False
    """Whether it lacked memory beside other runs."""


def work_in_processes(assignments: Sequence[Assignment], watcher: Watcher, count: int, patience: Patience) -> Outcomes:
    """Several at a time, in processes that train job after job.

    A process that was killed or hangs is replaced, and its job is tried again a few times, from its last checkpoint.
    One that ends of its own accord would do so again: its job fails. A job that lacks memory beside others is tried
    again in the end, when no other is at work.
    """
    waiting = deque(Task(job, folder) for job, folder in assignments)
    busy: dict[Connection, tuple[Worker, Task]] = {}
    idle = [Worker(part) for part in machine_parts(min(count, len(assignments)))]
    several = len(idle) > 1
    try:
        while waiting or busy:
            while idle and waiting and not (busy and waiting[0].crowded):
                worker, task = idle.pop(0), waiting.popleft()
                worker.give(task.job, task.folder)
                busy[worker.connection] = worker, task
                watcher.begun(task.job)
            for worker, outcome in news(busy, patience):
                _, task = busy.pop(worker.connection)
                if isinstance(outcome, Failed) and outcome.lacked_memory and several and not task.crowded:
                    task.crowded = True
                    waiting.append(task)
                    watcher.retried(task.job, "out of memory beside other runs; it will be tried again alone")
                elif isinstance(outcome, Died) and outcome.by_signal and task.lost < patience.retries:
                    task.lost += 1
                    waiting.appendleft(task)
                    watcher.retried(task.job, f"{outcome.reason}; retry {task.lost} of {patience.retries}")
                else:
                    yield task.job, Failed(outcome.reason) if isinstance(outcome, Died) else outcome
                if isinstance(outcome, Failed) and CUDA_ERROR in outcome.reason:
                    worker.give_up(outcome.reason)
                if worker.process.is_alive():
                    idle.append(worker)
                elif waiting:
                    idle.append(Worker(worker.part))
        dismiss(idle)
    finally:
        stop([*idle, *(worker for worker, _ in busy.values())])


def news(busy: dict[Connection, tuple[Worker, Task]], patience: Patience) -> Iterator[tuple[Worker, Outcome | Died]]:
    """Wait for messages; the workers that are done with their jobs, have died, or hang."""
    workers = [worker for worker, _ in busy.values()]
    soonest = min(worker.heard for worker in workers) + patience.stall_seconds
    ready = wait(list(busy), max(0.0, soonest - time.monotonic()))
    for worker in workers:
        if worker.connection in ready:
            outcome = worker.receive()
            if outcome is not None:
                yield worker, outcome
        elif time.monotonic() - worker.heard >= patience.stall_seconds:
            yield worker, worker.give_up(patience.stalled)
