"""What a user sees while a run trains: a bar with losses and gates, and a line per evaluation."""

from textwrap import fill
from types import TracebackType
from typing import Self

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from afield.errors import printable
from afield.methods import Losses
from afield.results.records import Record
from afield.results.selection import source_score
from afield.results.summary import percent

# Drawing more often than the eye can read slows training down.
STEPS_BETWEEN_UPDATES = 10


class Display:
    """A live display on standard error; without a terminal only its lines; nothing when not `shown`."""

    def __init__(self, shown: bool) -> None:
        self.console = Console(stderr=True, quiet=not shown)
        self.watched = shown and self.console.is_terminal
        self.live: Live | None = None

    def __enter__(self) -> Self:
        if self.watched:
            self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """A line above the display. A terminal's line is broken between words, a file's is not broken."""
        self.console.print(Text(printable(text)), soft_wrap=not self.console.is_terminal)

    def _render(self) -> Group:
        raise NotImplementedError


class StepsPerSecond(ProgressColumn):
    """How fast training is, over the last half minute."""

    def render(self, task: Task) -> Text:
        """A dash until there are two updates to compare."""
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "- steps/s")


class RunProgress(Display):
    """A bar, a line of losses, and a line per evaluation."""

    def __init__(self, title: str, steps: int, start: int = 0, shown: bool = True) -> None:
        super().__init__(shown)
        self.title = title
        self.steps = steps
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            StepsPerSecond(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.task = self.bar.add_task(title, total=steps, completed=start)
        self.losses = self.gates = ""

    def _render(self) -> Group:
        # Wrapped here, because a live display cuts off what is wider than the terminal.
        return Group(self.bar, Text(fill(f"{self.losses} {self.gates}", max(1, self.console.width)), style="dim"))

    def update(self, step: int, losses: Losses) -> None:
        """Move the bar. All losses are copied from the device at once."""
        values = torch.stack([value.detach().float() for value in losses.values()]).tolist()
        self.losses = " ".join(f"{name} {value:.3f}" for name, value in zip(losses, values, strict=True))
        self.bar.update(self.task, completed=step)

    def evaluated(self, evaluation: Record) -> None:
        """Print one evaluation: accuracies, accuracies from other features, and the share that the gates let pass."""
        shown = evaluation["target"] or evaluation["sources"]
        domain, result = next(iter(shown.items()))
        views = ", ".join(f"{name} {percent(value)}" for name, value in result.get("views", {}).items())
        gates = ", ".join(f"{name} {value:.2f}" for name, value in result.get("gates", {}).items())
        self.gates = gates
        self.bar.update(self.task, completed=evaluation["step"])
        line = f"{self.title} step {evaluation['step']}/{self.steps}: {accuracies(evaluation)}"
        self.say(line + (f"; {domain} from {views}" if views else "") + (f"; gates {gates}" if gates else ""))


def accuracies(evaluation: Record) -> str:
    """The accuracies of an evaluation in one line; the target's is marked, because training does not use its labels."""
    parts = [f"sources {percent(source_score(evaluation))}"]
    for name, result in evaluation["target"].items():
        remark = "no labels" if result["accuracy"] is None else "labels not used in training"
        parts.append(f"target {name} {percent(result['accuracy'])} ({remark})")
    return ", ".join(parts)
