"""Tables: one row per method, mean and spread over its seeds, with published figures beside ours."""

from collections.abc import Sequence
from pathlib import Path

from afield.config.plan import read_plan_file
from afield.config.protocols import published_figures, published_source
from afield.config.selectors import MEANINGS
from afield.errors import AfieldError
from afield.results.figures import Figure, Figures, read_figures
from afield.results.records import collector_paused
from afield.results.reproduction import make_reproduction
from afield.results.rows import Row, Table, captions, make_row
from afield.results.settings import is_said, usual_settings, written

# Rows are in the order of the paper's tables; others follow.
ORDER = tuple(published_figures("digit5"))


@collector_paused()
def make_table(
    paths: Sequence[Path], selector: str = "last", protocol: str | None = None, plan: Path | None = None
) -> Table:
    """The table of all finished runs in some files of records, or folders with one; with a plan, of its runs alone."""
    content = read_plan_file(plan) if plan else None
    if content and content.protocols:
        if protocol:
            raise AfieldError("a plan names its protocols: plan and protocol cannot both be given")
        return make_reproduction(paths, selector, content)
    figures = read_figures(paths, selector, protocol, content)
    there, stand_ins = {run.target for run in figures.runs}, figures.header.get("stand_ins", [])
    columns = {name: f"{name}*" if name in stand_ins else name for name in figures.targets if name in there}
    name, data = figures.header.get("name"), figures.header["data"]
    rows = make_rows(figures)
    notes = make_notes(figures, rows, columns, selector)
    return Table(name, data, selector, columns, rows, notes + captions(content), len(figures.targets) > 1)


def make_rows(figures: Figures) -> list[Row]:
    """The rows. Runs that differ in more than target and seed are in separate rows, which name the difference."""
    protocol = figures.protocol
    published = published_figures(protocol.published) if protocol and protocol.published else {}
    if protocol and len(figures.targets) < len(protocol.targets):  # the published average is over all targets
        published = {method: {t: row[t] for t in figures.targets if t in row} for method, row in published.items()}
    shared = shared_settings(figures.runs)
    by_label: dict[str, list[Figure]] = {}
    for run in figures.runs:
        by_label.setdefault(run.label, []).append(run)
    of_label = {label: shared_settings(variants) for label, variants in by_label.items()}
    rows: dict[str, list[Figure]] = {}
    for run in sorted(figures.runs, key=row_order):
        rows.setdefault(row_name(run, shared, of_label[run.label]), []).append(run)
    # Published figures are shown once: with the method itself or, if there are only variants, with the first.
    return [make_row(name, runs, figures.targets, published.pop(runs[0].method, None)) for name, runs in rows.items()]


def row_order(run: Figure) -> tuple[int, bool, int]:
    """By method; the method itself before its labelled variants, and usual settings before unusual ones."""
    place = ORDER.index(run.method) if run.method in ORDER else len(ORDER)
    return place, run.label != run.method, len(run.settings)


def shared_settings(runs: Sequence[Figure]) -> dict[str, str]:
    """The unusual settings that all runs share: they are named once, below the table."""
    first, *others = (run.settings for run in runs)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def row_name(run: Figure, shared: dict[str, str], of_label: dict[str, str]) -> str:
    """The label, with the unusual settings that not all rows share.

    A label other than the method's name stands for the method options that all its runs share, and for what it says.
    """
    own = {key: value for key, value in run.settings.items() if key not in shared}
    own = {key: value for key, value in own.items() if not is_said(run.label, key, value)}
    if run.label != run.method:
        own = {key: value for key, value in own.items() if not (key.startswith("method.") and key in of_label)}
    return f"{run.label} ({written(own)})" if own else run.label


def make_notes(figures: Figures, rows: list[Row], columns: dict[str, str], selector: str) -> list[str]:
    """What a reader must know to understand the figures."""
    notes = [
        "Target test accuracy in percent, mean ± standard deviation (runs). "
        f"Selector `{selector}`: {MEANINGS[selector]}.{_test_images(figures, columns)}"
    ]
    shared = shared_settings(figures.runs)
    if shared:
        usual = usual_settings(figures.runs[0].preset, figures.runs[0].method, figures.protocol)
        there = {key: usual[key] for key in shared if key in usual}
        notes.append(f"All rows with {written(shared)}" + (f" instead of {written(there)}." if there else "."))
    if figures.protocol and figures.protocol.published:
        notes.append(f"Published: {published_source()}.")
    starred = [shown for name, shown in columns.items() if shown != name]
    if starred:
        notes.append(
            f"{', '.join(starred)}: rendered by afield in place of the published images. These figures cannot be "
            "compared with the published ones, nor can the averages; all other figures have these images as a source."
        )
    return notes


def _test_images(figures: Figures, columns: dict[str, str]) -> str:
    counts = {columns[name]: n for name, n in figures.header.get("test_images", {}).items() if name in columns}
    if not counts:
        return ""
    if len(set(counts.values())) == 1:
        return f" Test images: {next(iter(counts.values()))} per target."
    return f" Test images: {', '.join(f'{name} {n}' for name, n in counts.items())}."
