"""A table as text for a terminal, as Markdown, and as plain values for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table as TextTable

from afield.config.reported import ReportedFigure, source_named
from afield.errors import printable
from afield.results.rows import Row, Table


def as_text(table: Table) -> TextTable:
    """For a terminal of 120 columns; others' figures are on lines of their own below ours."""
    above = f"{title(table)}, selector {table.selector}"
    text = TextTable(
        title=above, min_width=len(above), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for number, header in enumerate(headers(table)):
        text.add_column(header, justify="right" if number else "left")
    for row in table.rows:
        text.add_row(row.name, *cells(table, row))
        for name, others in beside(table, row):
            text.add_row(f"  {name}", *others, style="dim")
    return text


def as_markdown(table: Table, remarks: Sequence[str] = ()) -> str:
    """For documents, including the notes; remarks stand between them and the table."""
    lines = [headers(table), ["---", *["---:"] * (len(headers(table)) - 1)]]
    for row in table.rows:
        lines.append([row.name, *cells(table, row)])
        lines += [[f"*{name}*", *others] for name, others in beside(table, row)]
    return "\n\n".join(["\n".join(f"| {' | '.join(line)} |" for line in lines), *remarks, *table.notes])


def as_values(table: Table) -> dict[str, Any]:
    """What `afield table --json` prints: means and deviations in percent, like the published figures."""
    rows = [
        {
            "method": row.name,
            "targets": {shown: asdict(row.targets[name]) for name, shown in table.columns.items()},
            "average": asdict(row.average),
            "published": row.published,
            **{kind: reported_values(table, figures) for kind, figures in row.reported.items()},
        }
        for row in table.rows
    ]
    return {"protocol": table.protocol, "selector": table.selector, "rows": rows}


def title(table: Table) -> str:
    """What the table is about."""
    return printable(table.protocol or f"{table.data}, under no protocol")


def average_of(table: Table) -> list[str]:
    """The name of the last column, if there is more than one target to average over."""
    return ["average"] if table.averaged else []


def headers(table: Table) -> list[str]:
    """The columns' names."""
    return ["method", *table.columns.values(), *average_of(table)]


def cells(table: Table, row: Row) -> list[str]:
    """Our figures."""
    return [*(str(row.targets[name]) for name in table.columns), *(str(row.average) for _ in average_of(table))]


def beside(table: Table, row: Row) -> list[tuple[str, list[str]]]:
    """The lines below a row: others' figures by the name of their kind, with the digits they were published with."""
    lines = [
        (str(kind), [reported_cell(figures.get(name, [])) for name in table.columns])
        for kind, figures in row.reported.items()
    ]
    if row.published:
        names = *table.columns, *average_of(table)
        lines.append(("published", [f"{row.published[n]:g}" if n in row.published else "-" for n in names]))
    return lines


def reported_cell(figures: list[ReportedFigure]) -> str:
    """One figure, or the lowest and the highest of several; one that nobody has looked up is in brackets."""
    ordered = sorted(figures, key=lambda figure: figure.accuracy)
    ends = dict.fromkeys(
        f"[{figure.accuracy:.1f}]" if figure.unverified else f"{figure.accuracy:.1f}" for figure in ordered
    )
    return " to ".join([*ends][:: max(len(ends) - 1, 1)]) or "-"


def reported_values(table: Table, figures: dict[str, list[ReportedFigure]]) -> dict[str, Any]:
    """The same for JSON, every figure with its source."""
    return {
        table.columns[name]: [
            {"accuracy": figure.accuracy, "source": source_named(figure.source), "unverified": figure.unverified}
            for figure in of_column
        ]
        for name, of_column in figures.items()
    }
