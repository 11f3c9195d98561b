"""The commands `afield report` and `afield figure`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.app.completion import one_of
from afield.app.options import MethodAgain, name_of_method
from afield.errors import AfieldError, printable, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from afield.analysis.report import Benchmark
    from afield.analysis.study import Study
    from afield.app.looking import Named

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Runs' folders, checkpoints of them, or a benchmark's folder of records."),
]
KINDS = ("divergence", "maps", "tsne", "curves", "complexity")
FORMATS = (".pdf", ".svg", ".png")
COLOURED_BY = ("domain", "class")


def report(
    runs: Runs,
    file: Annotated[Path, typer.Option("--out", help="The .html file to write.")],
    method: MethodAgain = None,
) -> None:
    """Write one HTML page about runs: curves, gates, classes, t-SNE, activation maps, divergence, complexity."""
    check_file(file, (".html", ".htm"), "a report")
    check_installed()
    name_of_method(method)  # which makes it known
    write_page(runs, file)
    print(f"report: {file}")


def write_page(runs: list[Path], file: Path) -> None:
    """Write the page about these runs, whose methods are known."""
    from afield.app.looking import read_named

    named = read_named(runs)
    from afield.analysis.report import write_report  # and torch, once there is something to report

    with progress(len(named)) as begin:
        studies = [study_of(each, begin) for each in named if not each.benchmark]
        begin(str(file))
        write_report(studies, [benchmark_of(each) for each in named if each.benchmark], file)


def figure(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to draw.", autocompletion=one_of(KINDS))],
    runs: Runs,
    file: Annotated[Path, typer.Option("--out", help="The .pdf, .svg or .png file to write.")],
    coloured_by: Annotated[
        str,
        typer.Option(
            "--colour",
            metavar="domain|class",
            help="What the colours of tsne stand for.",
            autocompletion=one_of(COLOURED_BY),
        ),
    ] = "domain",
    method: MethodAgain = None,
) -> None:
    """Draw a figure for a paper: divergence, maps, tsne, curves or complexity of one run or of several."""
    if kind not in KINDS:
        raise unknown("figure", kind, KINDS)
    if coloured_by not in COLOURED_BY:
        raise unknown("colour", coloured_by, COLOURED_BY)
    check_file(file, FORMATS, "a figure")
    name_of_method(method)  # which makes it known
    from afield.app.looking import read_named

    named = read_named(runs, labels_shared=kind == "curves")
    if kind != "curves":
        lacking = [each.path for each in named if each.checkpoint is None]
        if lacking:
            raise AfieldError(f"there is no checkpoint in {lacking[0]}; of records alone only curves are drawn")
    with progress(len(named)) as begin:
        draw(kind, named, file, coloured_by, begin)
    print(f"figure: {file}")


def draw(kind: str, named: "list[Named]", file: Path, coloured_by: str, begin: "Callable[[str], None]") -> None:
    """Compute what the figure needs of every run, and draw it."""
    from afield.analysis import figures

    if kind == "curves":
        histories = [history for each in named for history in each.histories]
        figures.save(figures.curves(histories), file)
        unknown_ones = [h.name for h in histories if all(value is None for value in h.target_accuracy)]
        if len(histories) > 1 and unknown_ones:
            names = ", ".join(map(printable, unknown_ones))
            print(f"note: left out, because the accuracy on their target is not known: {names}", file=sys.stderr)
        return
    from afield.analysis.complexity import complexity_of
    from afield.analysis.divergence import divergence_of
    from afield.analysis.embedding import embedding_of
    from afield.analysis.features import activations_of, features_of
    from afield.app.looking import open_subject

    subjects = {}
    for each in named:
        begin(f"{each.path}: opening")
        subjects[each.histories[0].name] = open_subject(each)[0]
    begin(kind)
    match kind:
        case "divergence":
            divergences = {name: divergence_of(features_of(subject)) for name, subject in subjects.items()}
            known = {name: value for name, value in divergences.items() if value is not None}
            if len(known) < len(divergences):
                raise AfieldError("divergence needs two domains with two images each")
            made = figures.divergence(known)
        case "maps":
            made = figures.maps({name: activations_of(subject, 1) for name, subject in subjects.items()})
        case "tsne":
            points = {name: embedding_of(features_of(subject)) for name, subject in subjects.items()}
            enough = {name: value for name, value in points.items() if value is not None}
            if len(enough) < len(points):
                raise AfieldError("t-SNE needs more images")
            made = figures.tsne(enough, coloured_by)
        case _:
            made = figures.complexity({name: complexity_of(subject) for name, subject in subjects.items()})
    figures.save(made, file)


def study_of(named: "Named", begin: "Callable[[str], None]") -> "Study":
    """A run's history and, where its checkpoint and images are there, what its network learned."""
    from afield.analysis.study import Study, learned_by
    from afield.app.looking import DataMissingError, open_subject

    history = named.histories[0]
    if named.checkpoint is None:
        return Study(history, None, "its folder has no checkpoint")
    begin(f"{history.name}: opening")
    try:
        subject, step, notes = open_subject(named)
    except DataMissingError as error:
        return Study(history, None, str(error))
    return Study(history, learned_by(subject, step, notes, lambda stage: begin(f"{history.name}: {stage}")))


def benchmark_of(named: "Named") -> "Benchmark":
    """The tables of a file of records, one per protocol; a note where runs cannot be compared."""
    from afield.analysis.report import Benchmark
    from afield.results.figures import UNNAMED
    from afield.results.table import make_table

    tables, notes = [], []
    for protocol in dict.fromkeys(each.header["protocol"].get("name", UNNAMED) for each in named.histories):
        try:
            tables.append(make_table([named.path], protocol=protocol))
        except AfieldError as error:
            notes.append(f"No table: {error}")
    return Benchmark(str(named.path), named.histories, tables, notes)


def check_installed() -> None:
    """Raise one line if a library that only reports need is missing."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise AfieldError('a report needs plotly and jinja2: pip install "afield[report]"') from error


def check_file(file: Path, formats: tuple[str, ...], what: str) -> None:
    """Raise before any work if the file could not be written."""
    if file.suffix.lower() not in formats:
        raise AfieldError(f"{what} is written as {' or '.join(formats)}, not as '{file.name}'")
    if file.is_dir():
        raise AfieldError(f"{file} is a folder, not a file for {what}")


@contextmanager
def progress(runs: int) -> "Iterator[Callable[[str], None]]":
    """What is being done, on a terminal: the function to call with each piece of work."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    from rich.text import Text

    with console.status(f"{runs} runs") as status:
        yield lambda text: status.update(Text(text))
