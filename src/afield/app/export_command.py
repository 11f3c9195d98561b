"""The command `afield export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.app.completion import data_names, one_of
from afield.app.export.formats import SUFFIXES
from afield.app.options import CheckpointFile, ChosenBy, MethodAgain, name_of_method
from afield.errors import printable

if TYPE_CHECKING:
    from afield.app.export.int8 import Compared


def export(
    checkpoint: CheckpointFile,
    file: Annotated[Path, typer.Option("--out", help="File to write: .onnx, .pt2 (torch) or .safetensors.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="onnx|torch|safetensors",
            help="torch: a program of torch.export.",
            autocompletion=one_of(SUFFIXES),
        ),
    ] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Quantise the network to 8-bit integers (onnx).")] = False,
    data: Annotated[
        str | None,
        typer.Option(help="Images for --int8; default: the data it was trained on.", autocompletion=data_names),
    ] = None,
    selector: ChosenBy = None,
    method: MethodAgain = None,
) -> None:
    """Write a model as a file for other programs: uint8 images N x 3 x H x W in, class probabilities out."""
    from afield.app.export.formats import check_format

    kind = check_format(form, file, int8, data is not None)
    method = name_of_method(method)
    from afield.app.export.run import export_run

    made = export_run(checkpoint, kind, file, int8=int8, data=data, selector=selector, method=method)
    size, classes = made.model.preprocessing.image_size, len(made.model.classes)
    if kind == "safetensors":
        print(f"{file}: the weights of '{made.model.config.method_name}', without what only training needs")
        return
    print(
        f"{file}: uint8 images N x 3 x {size} x {size} to probabilities of {classes} classes; "
        f"differs from torch by at most {made.difference:.1g}{' before int8' if int8 else ''}"
    )
    if made.without_images:
        print(f"int8: the run's images are not there ({printable(made.without_images)})")
        print("int8: so each batch finds its own scales, and accuracy before and after was not measured")
    for domain in made.compared:
        print(f"int8: {in_words(domain)}")


def in_words(compared: "Compared") -> str:
    """What int8 costs on one domain."""
    accuracy = (
        "no labels, so accuracy is unknown"
        if compared.before is None or compared.after is None
        else f"accuracy {100 * compared.before:.1f} before, {100 * compared.after:.1f} after"
    )
    kept = f"{100 * compared.same:.1f} % of {compared.n:,} images keep their class"
    return f"{printable(compared.domain)}: {accuracy}; {kept}"
