"""The demonstration: baseline and FAR on one target of the embedded digits, a table, and a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from afield.app.model import load
from afield.app.train import train
from afield.data.domain import Split
from afield.data.registry import load_data
from afield.results.folder import RunFolder
from afield.results.run import Run
from afield.results.summary import Summary, percent

DATA, METHODS = "digits", ("baseline", "far")
TARGET = "street"
COLUMNS = 10


@dataclass(frozen=True)
class DemoResult:
    """The runs of each method, one per seed."""

    target: str
    runs: dict[str, list[Run]]

    def table(self) -> Table:
        """One row per method; over several seeds mean ± standard deviation (n)."""
        table = Table(title=f"{DATA}, uda, target {self.target} (its labels were not used)")
        for column in ("method", "target accuracy", "source accuracy", "seconds", "selector"):
            table.add_column(column, justify="left" if column in ("method", "selector") else "right")
        for method, runs in self.runs.items():
            columns = [
                [100 * value for run in runs if (value := run.accuracy[self.target]) is not None],
                [100 * run.source_accuracy for run in runs],
                [run.seconds for run in runs],
            ]
            shown = [str(Summary.of(values)) if len(values) != 1 else f"{values[0]:.1f}" for values in columns]
            table.add_row(method, *shown, runs[0].selector)
        return table


def run_demo(
    out: Path,
    target: str = TARGET,
    seeds: int = 1,
    *,
    overwrite: bool = False,
    progress: bool = True,
    settings: dict[str, Any] | None = None,
) -> DemoResult:
    """Train both methods once per seed, with the same data, network, steps and seeds, each into its own folder."""
    load_data(DATA)[target]
    folders = {(method, seed): out / f"{method}-seed{seed}" for seed in range(seeds) for method in METHODS}
    for folder in folders.values():
        RunFolder(folder).check(resume=False, overwrite=overwrite, resumable=False)
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    for (method, seed), folder in folders.items():
        run = train(
            DATA, "uda", target, method, None, seed, folder, overwrite=overwrite, progress=progress, settings=settings
        )
        runs[method].append(run)
    return DemoResult(target, runs)


def picture(result: DemoResult, path: Path) -> None:
    """The first two test images of each class, with the predictions of each method's first run."""
    data = load_data(DATA)
    test = data[result.target].test
    chosen = first_of_each_class(test, len(data.classes), 2)
    images = test.images.read(np.array(chosen))
    predictions = {method: load(runs[0].checkpoint).predict(images) for method, runs in result.runs.items()}
    rows = len(chosen) // COLUMNS
    figure = Figure(figsize=(1.15 * COLUMNS, 1.9 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for place, index in enumerate(chosen):
        truth = data.classes[test.labels[index]] if test.labels is not None else "-"
        axes[place].imshow(images[place], interpolation="nearest")
        axes[place].set_axis_off()
        for line, (method, said) in enumerate(predictions.items()):
            right = said[place] == truth
            axes[place].text(
                0.5, -0.06 - 0.16 * line, f"{method} {said[place]}", transform=axes[place].transAxes, ha="center",
                va="top", fontsize=9, color="#1a7f37" if right else "#cf222e", fontweight="normal" if right else "bold",
            )  # fmt: skip
        axes[place].set_title(truth, fontsize=10)
    accuracies = ", ".join(f"{m} {percent(runs[0].accuracy[result.target])}" for m, runs in result.runs.items())
    figure.suptitle(
        f"Target '{result.target}', learned without its labels: the first two test images of each class\n"
        f"whole test set: {accuracies} (selector {next(iter(result.runs.values()))[0].selector})",
        fontsize=11,
    )
    figure.savefig(path, dpi=120)


def first_of_each_class(split: Split, num_classes: int, count: int) -> list[int]:
    """Indices of the first images of each class: chosen by position, not by how well they are classified."""
    labels = [] if split.labels is None else split.labels.tolist()
    by_class = [[i for i, label in enumerate(labels) if label == c][:count] for c in range(num_classes)]
    return [indices[turn] for turn in range(count) for indices in by_class]
