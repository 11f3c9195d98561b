"""A table for programs: CSV in the long form, one line per figure, as `pandas.read_csv` and `pivot` take it."""

import csv
import io
from collections.abc import Iterator

from afield.config.protocols import published_source
from afield.config.reported import source_named
from afield.results.rows import Row, Table
from afield.results.show import average_of

COLUMNS = ("protocol", "selector", "method", "target", "kind", "mean", "std", "n", "source")
OURS = "measured"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
FROM_MEMORY = "quoted from memory"


def as_csv(table: Table) -> str:
    """Ours (kind `measured`) and others' figures (`published`, `paper`, `re-runs`, with their source), in percent.

    A cell without runs has n = 0 and no mean. In a table of several protocols a target is a column's heading.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        for line in lines_of(table, row):
            named = {"protocol": cell(table.protocol or ""), "selector": table.selector, "method": cell(row.name)}
            writer.writerow({**named, **line})
    return text.getvalue()


def cell(text: str) -> str:
    """A name as a cell that a spreadsheet does not take for a formula: one that begins like one gets an apostrophe.

    >>> [cell(text) for text in ("bus", "=HYPERLINK(1)", "-1")]
    ['bus', "'=HYPERLINK(1)", '-1']
    """
    if not text.startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def lines_of(table: Table, row: Row) -> Iterator[dict[str, str | float | None]]:
    """The lines of one row: first our figures, in the order of the columns."""
    shown = {**table.columns, **{name: name for name in average_of(table)}}
    for name, target in shown.items():
        own = row.targets.get(name, row.average)
        yield {"target": cell(target), "kind": OURS, "mean": own.mean, "std": own.std, "n": own.n}
    for name, mean in (row.published or {}).items():
        if name in shown:
            yield {"target": shown[name], "kind": "published", "mean": mean, "source": published_source()}
    for kind, figures in row.reported.items():
        for name, of_column in figures.items():
            for figure in of_column:
                source = FROM_MEMORY if figure.unverified else source_named(figure.source)
                yield {"target": shown[name], "kind": kind, "mean": figure.accuracy, "source": source}
