"""A table as text for a terminal, as Markdown, and as plain values for JSON."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table as TextTable

from afield.results.table import Row, Table


def as_text(table: Table) -> TextTable:
    """For a terminal of 120 columns; published figures are on a second line below ours."""
    above = f"{title(table)}, selector {table.selector}"
    text = TextTable(
        title=above, min_width=len(above), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for number, header in enumerate(headers(table)):
        text.add_column(header, justify="right" if number else "left")
    for row in table.rows:
        text.add_row(row.name, *cells(table, row))
        if row.published:
            text.add_row("  published", *published_cells(table, row), style="dim")
    return text


def as_markdown(table: Table, comparisons: list[str]) -> str:
    """For documents, including the notes."""
    lines = [headers(table), ["---", *["---:"] * (len(headers(table)) - 1)]]
    for row in table.rows:
        lines.append([row.name, *cells(table, row)])
        if row.published:
            lines.append(["*published*", *published_cells(table, row)])
    return "\n\n".join(["\n".join(f"| {' | '.join(line)} |" for line in lines), *remarks(table, comparisons)])


def as_values(table: Table) -> dict[str, Any]:
    """What `afield table --json` prints: means and deviations in percent, like the published figures."""
    rows = [
        {
            "method": row.name,
            "targets": {shown: asdict(row.targets[name]) for name, shown in table.columns.items()},
            "average": asdict(row.average),
            "published": row.published,
        }
        for row in table.rows
    ]
    return {"protocol": table.protocol, "selector": table.selector, "rows": rows}


def remarks(table: Table, comparisons: list[str]) -> list[str]:
    """The paragraphs below a table."""
    how = "On the average, seed by seed" if average_of(table) else "Seed by seed"
    compared = [f"{how}: {'; '.join(comparisons)}."] if comparisons else []
    return [*compared, *table.notes]


def title(table: Table) -> str:
    """What the table is about."""
    return table.protocol or f"{table.data}, under no protocol"


def average_of(table: Table) -> list[str]:
    """The name of the last column, if there is more than one target to average over."""
    return ["average"] if table.averaged else []


def headers(table: Table) -> list[str]:
    """The columns' names."""
    return ["method", *table.columns.values(), *average_of(table)]


def cells(table: Table, row: Row) -> list[str]:
    """Our figures."""
    return [*(str(row.targets[name]) for name in table.columns), *(str(row.average) for _ in average_of(table))]


def published_cells(table: Table, row: Row) -> list[str]:
    """The published figures, with the digits they were published with."""
    figures = row.published or {}
    return [f"{figures[name]:g}" if name in figures else "-" for name in (*table.columns, *average_of(table))]
