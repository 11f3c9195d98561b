"""What a person sees while a run trains: a bar with losses and gates, and a line for each evaluation."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from afield.records import Record
from afield.selection import source_score

# Drawing more often than the eye reads costs steps.
STEPS_BETWEEN_UPDATES = 10


class RunProgress:
    """A progress bar on standard error; without a terminal, only the evaluation lines; silent when not `shown`."""

    def __init__(self, title: str, steps: int, start: int = 0, shown: bool = True) -> None:
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[losses]} {task.fields[gates]}"),
            console=self.console,
            disable=not (shown and self.console.is_terminal),
        )
        self.title = title
        self.steps = steps
        self.task = self.bar.add_task(title, total=steps, completed=start, losses="", gates="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    @property
    def watched(self) -> bool:
        """Whether anybody would see an update."""
        return not self.bar.disable

    def update(self, step: int, losses: dict[str, float]) -> None:
        """Move the bar."""
        text = " ".join(f"{name} {value:.3f}" for name, value in losses.items())
        self.bar.update(self.task, completed=step, losses=text)

    def evaluated(self, evaluation: Record) -> None:
        """Print one evaluation: accuracies, then from which features, then what the gates let through."""
        parts = [f"{self.title} step {evaluation['step']}/{self.steps}: sources {source_score(evaluation):.1%}"]
        parts += [f"target {name} {result['accuracy']:.1%} (oracle)" for name, result in evaluation["oracle"].items()]
        shown = evaluation["oracle"] or evaluation["sources"]
        domain, result = next(iter(shown.items()))
        views = ", ".join(f"{name} {value:.1%}" for name, value in result.get("views", {}).items())
        gates = ", ".join(f"{name} {value:.2f}" for name, value in result.get("gates", {}).items())
        self.bar.update(self.task, completed=evaluation["step"], gates=gates)
        line = ", ".join(parts) + (f"; {domain} from {views}" if views else "") + (f"; gates {gates}" if gates else "")
        self.console.print(line, highlight=False)
