"""What a table is made of: rows of means and spreads over seeds, columns, and notes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from afield.config.plan import PlanFile
from afield.config.protocols import PublishedFigures
from afield.config.reported import Kind, ReportedFigure
from afield.errors import unknown
from afield.results.figures import Figure
from afield.results.summary import Summary

MEANINGS = {
    "last": "the end of training",
    "source-val": "the evaluation with the best accuracy on held-out source images",
}


@dataclass(frozen=True)
class Row:
    """The results of a method, or of a variant of it, over its seeds."""

    name: str
    targets: dict[str, Summary]
    averages: dict[int, float]
    """The average over all targets, by seed; only of seeds that have results on all of them."""
    published: PublishedFigures | None
    reported: dict[Kind, dict[str, list[ReportedFigure]]] = field(default_factory=dict)
    """In a table of several protocols, what papers and others report, by kind and column."""
    accuracies: dict[tuple[str, int], float] = field(default_factory=dict)
    """Of each run, by target and seed."""
    parts: dict[str, "Row"] = field(default_factory=dict)
    """In a table of several protocols, the row of each, by column; only of those with runs."""

    @property
    def average(self) -> Summary:
        """The averages per seed, summarised: the spread is that of the average."""
        return Summary.of(list(self.averages.values()))


@dataclass(frozen=True)
class Table:
    """The rows of one protocol, or of several, under one selector, and the notes a reader needs."""

    protocol: str | None
    """Its name; of several all, with commas between them."""
    data: str
    selector: str
    columns: dict[str, str]
    """The targets, or of several protocols these, each with the name shown: a star marks what afield rendered."""
    rows: list[Row]
    notes: list[str]
    averaged: bool
    """Whether there is more than one target to average over."""

    def row(self, name: str) -> Row:
        """The row of a name, or the error with the nearest spelling."""
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise unknown("row", name, rows)
        return rows[name]

    def only(self, names: Sequence[str]) -> "Table":
        """The table with these rows alone, in the order they have in it. The notes are about all of its runs."""
        chosen = [self.row(name) for name in names]
        return replace(self, rows=[row for row in self.rows if row in chosen])


def make_row(name: str, runs: list[Figure], targets: list[str], published: PublishedFigures | None) -> Row:
    """Means and spreads over the runs of one row."""
    accuracy = {(run.target, run.seed): run.accuracy for run in runs}
    seeds = sorted({run.seed for run in runs})
    cells = {t: Summary.of([accuracy[t, seed] for seed in seeds if (t, seed) in accuracy]) for t in targets}
    whole = [seed for seed in seeds if all((t, seed) in accuracy for t in targets)]
    averages = {seed: fmean(accuracy[t, seed] for t in targets) for seed in whole}
    return Row(name, cells, averages, published, accuracies=accuracy)


def captions(plan: PlanFile | None) -> list[str]:
    """What a plan says of its table: one note or none."""
    return [" ".join(plan.caption.split())] if plan and plan.caption else []
