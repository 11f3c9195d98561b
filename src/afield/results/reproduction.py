"""The table of a plan of several protocols: a column for each, and others' figures below ours."""

from collections.abc import Sequence
from pathlib import Path

from afield.config.catalogue import find_entry
from afield.config.plan import PlanFile, plan_rows
from afield.config.protocols import Protocol
from afield.config.reported import KINDS, reported_figures, source_named
from afield.results.figures import Figures, read_figures_by_protocol
from afield.results.rows import MEANINGS, Row, Table, captions, make_row
from afield.results.summary import Summary


def make_reproduction(paths: Sequence[Path], selector: str, plan: PlanFile) -> Table:
    """The finished runs of a plan of several protocols: one row per label, one column per protocol."""
    named, found = plan.named_protocols(), read_figures_by_protocol(paths, selector, plan)
    columns = {protocol.name: protocol.heading or protocol.name for protocol in named}
    labels = dict.fromkeys(row.label for row in plan_rows(plan))
    rows = [make_label_row(label, plan, named, found) for label in labels if is_there(label, found)]
    name, data = ", ".join(columns), ", ".join(dict.fromkeys(protocol.data for protocol in named))
    notes = make_notes(rows, columns, found, selector)
    return Table(name, data, selector, columns, rows, notes + captions(plan), averaged=False)


def is_there(label: str, found: dict[str, Figures]) -> bool:
    """Whether a row has a finished run."""
    return any(run.label == label for figures in found.values() for run in figures.runs)


def make_label_row(label: str, plan: PlanFile, named: list[Protocol], found: dict[str, Figures]) -> Row:
    """Our averages over each protocol's targets, seed by seed, and what others report where the row has runs."""
    planned_rows = [row for row in plan_rows(plan) if row.label == label]
    method = find_entry(planned_rows[0].method).card.name
    planned = [protocol.name for protocol in named if any(row.runs_under(protocol) for row in planned_rows)]
    runs = {name: [run for run in figures.runs if run.label == label] for name, figures in found.items()}
    parts = {name: make_row(label, own, found[name].targets, None) for name, own in runs.items() if own}
    cells = {one.name: parts[one.name].average if one.name in parts else Summary.of([]) for one in named}
    reported = {kind: {name: reported_figures(name, method, kind) for name in planned} for kind in KINDS}
    beside = {kind: of_kind for kind, of_kind in reported.items() if any(of_kind.values())}
    return Row(label, cells, {}, None, beside, parts=parts)


def make_notes(rows: list[Row], columns: dict[str, str], found: dict[str, Figures], selector: str) -> list[str]:
    """What a reader must know to understand the figures."""
    shown = [figure for row in rows for kind in KINDS for of in row.reported.get(kind, {}).values() for figure in of]
    notes = [
        "Target test accuracy in percent, mean ± standard deviation (runs). "
        f"Selector `{selector}`: {MEANINGS[selector]}.{averaged_columns(columns, found)}"
    ]
    if shown:
        sources = dict.fromkeys(source_named(figure.source) for figure in shown if not figure.unverified)
        notes.append(
            "`paper`: what a method's authors report, `re-runs`: what others got; of several figures the lowest and "
            f"the highest. From {'; '.join(sources)}."
        )
    if any(figure.unverified for figure in shown):
        notes.append("In brackets: quoted from memory, not looked up in its source.")
    return notes


def averaged_columns(columns: dict[str, str], found: dict[str, Figures]) -> str:
    """Which columns are averages over targets."""
    several = [columns[name] for name, figures in found.items() if len(figures.targets) > 1]
    if not several:
        return ""
    return f" {', '.join(f'`{heading}`' for heading in several)}: averages over the targets, taken seed by seed."
