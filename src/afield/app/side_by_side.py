"""Several methods trained at the same time, each in a process of its own with its part of this machine."""

import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from afield.bench.machine import MachinePart, inherited, machine_parts
from afield.bench.processes import interrupts_ignored
from afield.errors import AfieldError
from afield.results.records import Record
from afield.training.callbacks import Callback, RunStart
from afield.training.processes import Parcel, children_told, pack, unpack, without_script
from afield.training.progress import accuracies

Calls = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Ended:
    """How a run has ended: the reason of its failure, empty if it succeeded."""

    failure: str


def train_side_by_side(calls: Calls, workers: int, say: Callable[[str], None]) -> dict[str, str]:
    """Call `afield.train` with these arguments, by method; so many at a time. Why some have failed, by method.

    A process ends with its run. When this one is stopped, all save where they stand and are waited for.
    """
    waiting, parts = deque(calls.items()), deque(machine_parts(min(workers, len(calls))))
    busy: dict[Connection, tuple[str, BaseProcess, MachinePart]] = {}
    failures: dict[str, str] = {}
    with children_told():
        while waiting or busy:
            while waiting and parts:
                (name, arguments), part = waiting.popleft(), parts.popleft()
                connection, process = _begin(pack(arguments, name), part)
                busy[connection] = name, process, part
                say(f"{name} begins ({len(calls) - len(waiting)} of {len(calls)})")
            ready = wait(list(busy))
            for connection in [one for one in busy if one in ready]:
                name, process, part = busy[connection]
                news = _hear(connection, process)
                if isinstance(news, str):
                    say(f"{name} {news}")
                    continue
                del busy[connection]
                parts.append(part)
                say(f"{name} failed: {news.failure}" if news.failure else f"{name} has ended")
                if news.failure:
                    failures[name] = news.failure
    return {name: failures[name] for name in calls if name in failures}


def _begin(parcel: Parcel, part: MachinePart) -> tuple[Connection, BaseProcess]:
    context = get_context("spawn")  # a forked process cannot use CUDA
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(parcel, theirs))
    with inherited(part), interrupts_ignored(), without_script():
        process.start()
    theirs.close()
    return ours, process


class Telling(Callback):
    """Says in the other process how the run gets on."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.steps = connection, 0

    def on_start(self, run: RunStart) -> None:
        """Remember how long it will be."""
        self.steps = run.steps

    def on_evaluation(self, evaluation: Record) -> None:
        """One line, as a run alone shows it."""
        self.connection.send(f"step {evaluation['step']}/{self.steps}: {accuracies(evaluation)}")


def _train(parcel: Parcel, connection: Connection) -> None:
    """In the other process: train, and say how it has ended."""
    from afield.app.train import train

    failure = ""
    try:
        train(**unpack(parcel), callbacks=[Telling(connection)])
    except AfieldError as error:
        failure = str(error)
    connection.send(Ended(failure))


def _hear(connection: Connection, process: BaseProcess) -> str | Ended:
    """Receive a line of progress from a process, or the end of its run, or the loss of the process."""
    try:
        news: str | Ended = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        killed = f"its process was killed by {signal.Signals(-code).name}" if code < 0 else ""
        return Ended(killed or "its process has failed, as it says above")
    if isinstance(news, Ended):
        process.join()
    return news
