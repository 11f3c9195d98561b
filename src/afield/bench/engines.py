"""Engines: ways to run jobs. Each yields every job with its outcome, as soon as it is known."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from afield.bench.outcome import Outcome
from afield.config.plan import Job
from afield.errors import AfieldError

Assignment = tuple[Job, Path]  # a job and the folder it trains in
Outcomes = Generator[tuple[Job, Outcome], None, None]
SECONDS_TO_STOP = 30.0
"""How long runs that are asked to stop may take to save where they stand."""
MOST_MINUTES = 365 * 24 * 60


class Watcher(Protocol):
    """Is told of the progress of jobs, apart from their outcomes."""

    def begun(self, job: Job) -> None:
        """A job has started."""

    def retried(self, job: Job, reason: str) -> None:
        """A job's process was lost, and the job waits to start again."""


@dataclass(frozen=True)
class Patience:
    """When a run's process is given up, and how often a run is tried again after its process was lost."""

    retries: int = 2
    stall_minutes: float = 30.0
    """A run counts as hung after so long without a step, an evaluation or a checkpoint."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise AfieldError(f"retries is a number of times, 0 or more, not {self.retries}")
        if not 0 < self.stall_minutes <= MOST_MINUTES:
            raise AfieldError(
                f"a run hangs after some minutes without progress, more than 0 and at most {MOST_MINUTES}, "
                f"not {self.stall_minutes}"
            )

    @classmethod
    def asked(cls, retries: int | None, stall_minutes: float | None) -> "Patience":
        """With these values; None: the default."""
        usual = cls()
        return cls(
            usual.retries if retries is None else retries,
            usual.stall_minutes if stall_minutes is None else stall_minutes,
        )

    @property
    def stall_seconds(self) -> float:
        """The same in seconds."""
        return 60 * self.stall_minutes

    @property
    def stalled(self) -> str:
        """The reason for which a run is given up."""
        return f"the process that trained it made no progress for {self.stall_minutes:g} minutes"
