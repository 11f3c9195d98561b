"""What a person sees of a benchmark: one bar over the steps of all runs, and a line for each run that ends."""

from typing import Self

from rich.console import Group
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from afield.bench.folder import BenchFolder
from afield.config.plan import Job
from afield.errors import AfieldError, printable
from afield.results.folder import RunFolder
from afield.results.records import Record, evaluations, read_records
from afield.training.progress import Display, accuracies


class BenchProgress(Display):
    """One bar over all runs, the runs in progress, and a line for each run that ends."""

    def __init__(self, folder: BenchFolder, jobs: list[Job], missing: list[Job], shown: bool = True) -> None:
        super().__init__(shown)
        self.folder = folder
        self.total, self.ended = len(jobs), len(jobs) - len(missing)
        self.in_progress: list[Job] = []
        self.steps = 0
        self.bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f}%"),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.task = self.bar.add_task("", total=sum(job.config.training.steps for job in missing))
        self.beginning = f"{self.ended} of {len(jobs)} runs are recorded, {len(missing)} to go"

    def __enter__(self) -> Self:
        self.say(self.beginning)
        return super().__enter__()

    def begun(self, job: Job) -> None:
        """A run has started."""
        self.in_progress.append(job)

    def retried(self, job: Job, reason: str) -> None:
        """A run has lost its process, and will start again."""
        self.in_progress.remove(job)
        self.say(f"{job}: {reason}")

    def recorded(self, job: Job, records: list[Record]) -> None:
        """A run has finished."""
        self._end(job)
        self.say(f"{self._count()} {job}: {accuracies(evaluations(records)[-1])}; {records[-1]['seconds']:.0f} s")

    def failed(self, job: Job, reason: str) -> None:
        """A run has failed."""
        self._end(job)
        self.say(f"{self._count()} {job}: failed: {reason}")

    def _end(self, job: Job) -> None:
        self.in_progress.remove(job)
        self.ended += 1
        self.steps += job.config.training.steps

    def _count(self) -> str:
        return f"{self.ended}/{self.total}"

    def _render(self) -> Group:
        """The bar, and the last evaluation of each run in progress."""
        steps, lines = self.steps, []
        for job in list(self.in_progress):
            last = self._last_evaluation(job)
            steps += last["step"] if last else 0
            state = f"step {last['step']}, {accuracies(last)}" if last else "started"
            lines.append(Text(printable(f"{job}: {state}"), style="dim"))
        self.bar.update(self.task, description=f"{self._count()} runs", completed=steps)
        return Group(self.bar, *lines)

    def _last_evaluation(self, job: Job) -> Record | None:
        try:
            found = evaluations(read_records(RunFolder(self.folder.run_folder(job)).records))
        except AfieldError:  # it has written nothing yet, or is recorded and removed
            return None
        return found[-1] if found else None
