"""The command `afield compare`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.app.completion import data_names, several_methods
from afield.app.options import (
    Backbone,
    BatchSize,
    Device,
    LearningRate,
    Pretrained,
    Seed,
    Settings,
    SkipBad,
    Sources,
    Steps,
    Weights,
    name_of_method,
    parsed_names,
    parsed_settings,
)
from afield.app.report_commands import check_installed, write_page
from afield.app.screen import out, wide_screen
from afield.errors import AfieldError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

USUAL = ("baseline", "dann", "mcd", "far", "far+")


def compare(
    data: Annotated[str, typer.Argument(help="Data set, folder or file.", autocompletion=data_names)],
    target: Annotated[str, typer.Option(help="Domain to adapt to.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs, one folder per method.")],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help=f"Methods to train; default: of {','.join(USUAL)} those that the sources suffice for.",
            autocompletion=several_methods,
        ),
    ] = None,
    labelled: Annotated[
        Path | None, typer.Option(help="CSV of a few target images (path, label), used for choosing only.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Methods trained at the same time; default: one per GPU, or 1.")
    ] = None,
    sources: Sources = None,
    backbone: Backbone = None,
    pretrained: Pretrained = None,
    weights: Weights = None,
    steps: Steps = None,
    lr: LearningRate = None,
    batch_size: BatchSize = None,
    device: Device = None,
    seed: Seed = None,
    settings: Settings = None,
    skip_bad: SkipBad = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train several methods on a target and choose the best without its labels. The same command again continues."""
    names = [str(name_of_method(name.strip())) for name in methods.split(",")] if methods is not None else list(USUAL)
    from afield.app.compare import compare as run_comparison
    from afield.app.compare import ranking_table
    from afield.results.folder import CHOSEN

    found, failures = run_comparison(
        data, target, names, folder, labelled=labelled, settings=parsed_settings(settings, skip_bad),
        sources=parsed_names(sources), backbone=backbone, pretrained=pretrained, weights=weights, steps=steps, lr=lr,
        batch_size=batch_size, device=device, seed=seed, workers=workers, fitting=methods is None,
    )  # fmt: skip
    page = report_of([found.runs[name].folder for name in found.order], folder / "report.html")
    if as_json:
        print(json.dumps(found.as_values() | {"failures": failures}))
    else:
        wide_screen().print(ranking_table(found, target))
        for line in filter(None, (found.verdict, found.tie)):
            out.print(line)
        out.print(f"checkpoint: {folder / CHOSEN} (that of {found.runs[found.order[0]].folder})")
        out.print(page)
    for name, reason in failures.items():
        print(f"failed: {name}: {printable(reason)}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def report_of(runs: "Sequence[Path]", file: Path) -> str:
    """Write the page about the runs, the best first; where it is, or why there is none, which changes no choice."""
    try:
        check_installed()
        write_page(list(runs), file)
    except AfieldError as error:
        return f"no report: {error}"
    return f"report: {file}"
