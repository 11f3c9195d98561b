"""The commands that use a trained model: `afield evaluate` and `afield predict`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from afield.app.completion import data_names
from afield.app.options import ChosenBy, MethodAgain, SkipBad, name_of_method, parsed_names
from afield.app.screen import wide_screen
from afield.errors import printable

CheckpointFile = Annotated[Path, typer.Argument(help="A run's folder, such as runs/x, or a checkpoint of it.")]


def evaluate(
    checkpoint: CheckpointFile,
    data: Annotated[
        str | None, typer.Option(help="Data set; default: the one it was trained on.", autocompletion=data_names)
    ] = None,
    domain: Annotated[
        list[str] | None, typer.Option(help="Domains, such as mnist,uci; may be repeated; default: all.")
    ] = None,
    selector: ChosenBy = None,
    method: MethodAgain = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    errors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a contact sheet (PNG) of misclassified images.")
    ] = None,
) -> None:
    """Measure a checkpoint on the test images of domains: accuracy, per class too, and calibration."""
    from afield.data.contact_sheet import check_sheet

    if errors:
        check_sheet(errors)
    domains = parsed_names(domain, "--domain")
    method = name_of_method(method)
    from afield.app.evaluate import evaluate_checkpoint, write_errors
    from afield.app.show import evaluation_tables

    evaluation = evaluate_checkpoint(checkpoint, data, domains, selector=selector, method=method)
    if evaluation.note:
        print(f"note: {printable(evaluation.note)}", file=sys.stderr)
    said = write_errors(evaluation, errors) if errors else ""
    if as_json:
        print(json.dumps(evaluation.results))
        return
    screen = wide_screen()
    for table in evaluation_tables(f"{checkpoint} on {data}" if data else str(checkpoint), evaluation.results):
        screen.print(table)
    if said:
        screen.print(said)


def predict(
    checkpoint: CheckpointFile,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders to search for them.")],
    file: Annotated[
        Path | None, typer.Option("--out", help="A .csv or .json file; default: CSV to the screen.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="The K most probable classes of each image.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    selector: ChosenBy = None,
    method: MethodAgain = None,
    skip_bad: SkipBad = False,
) -> None:
    """Classify images: file, class and probability, as CSV or JSON."""
    method = name_of_method(method)
    from afield.app.predict import check_output, predict_files, write_predictions

    check_output(file, as_json)
    # A bar would be torn apart by predictions on the same terminal.
    progress = file is not None or not sys.stdout.isatty()
    predictions = predict_files(
        checkpoint, images, skip_bad, top=top, selector=selector, method=method, progress=progress
    )
    write_predictions(predictions, file, as_json)
    if predictions.skipped:
        names = ", ".join(printable(str(name)) for name in predictions.skipped)
        print(f"skipped {len(predictions.skipped)} unreadable: {names}", file=sys.stderr)
