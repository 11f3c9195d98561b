"""What becomes of a job: the records of its run, or why there are none."""

from dataclasses import dataclass

from afield.results.records import Record


@dataclass(frozen=True)
class Failed:
    """Why a run has no result: one line and, for an error that is not the user's, the traceback."""

    reason: str
    trace: str | None = None
    lacked_memory: bool = False
    """Other runs may have used up the memory: alone on the machine, this run may have enough."""


Outcome = list[Record] | Failed
