"""What a person sees while a run trains: a bar with losses and gates, and a line for each evaluation."""

from textwrap import fill
from types import TracebackType
from typing import Self

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from afield.methods import Losses
from afield.records import Record
from afield.selection import source_score

# Drawing more often than the eye reads costs steps.
STEPS_BETWEEN_UPDATES = 10


class RunProgress:
    """A bar and a line of losses on standard error; without a terminal only evaluations; nothing when not `shown`."""

    def __init__(self, title: str, steps: int, start: int = 0, shown: bool = True) -> None:
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True)
        self.title = title
        self.steps = steps
        self.watched = shown and self.console.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.task = self.bar.add_task(title, total=steps, completed=start)
        self.losses = self.gates = ""
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self.watched:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.watched:
            self.live.stop()

    def _render(self) -> Group:
        # Folded by hand: a live display cuts off what is wider than the terminal.
        return Group(self.bar, Text(fill(f"{self.losses} {self.gates}", self.console.width), style="dim"))

    def update(self, step: int, losses: Losses) -> None:
        """Move the bar. The losses come over from the device at once."""
        values = torch.stack([value.detach().float() for value in losses.values()]).tolist()
        self.losses = " ".join(f"{name} {value:.3f}" for name, value in zip(losses, values, strict=True))
        self.bar.update(self.task, completed=step)

    def evaluated(self, evaluation: Record) -> None:
        """Print one evaluation: accuracies, then from which features, then what the gates let through."""
        parts = [f"{self.title} step {evaluation['step']}/{self.steps}: sources {source_score(evaluation):.1%}"]
        parts += [f"target {name} {result['accuracy']:.1%} (oracle)" for name, result in evaluation["oracle"].items()]
        shown = evaluation["oracle"] or evaluation["sources"]
        domain, result = next(iter(shown.items()))
        views = ", ".join(f"{name} {value:.1%}" for name, value in result.get("views", {}).items())
        gates = ", ".join(f"{name} {value:.2f}" for name, value in result.get("gates", {}).items())
        self.gates = gates
        self.bar.update(self.task, completed=evaluation["step"])
        line = ", ".join(parts) + (f"; {domain} from {views}" if views else "") + (f"; gates {gates}" if gates else "")
        self.console.print(line, highlight=False)
