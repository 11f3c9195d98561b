"""From a run or a checkpoint to an exported file."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from afield.app.export.formats import Format
from afield.app.export.int8 import Compared, RunImages, compare, find_images, quantise
from afield.app.export.network import ProbabilityNetwork, check_finite, described
from afield.app.export.written import Session, write_onnx, write_safetensors, write_torch
from afield.app.model import Model, find_checkpoint, load
from afield.errors import AfieldError
from afield.files import replacing
from afield.methods.registry import AnyMethod

WRITERS = {"onnx": write_onnx, "torch": write_torch, "safetensors": write_safetensors}


@dataclass(frozen=True)
class Exported:
    """What was written, and what is known about it."""

    file: Path
    model: Model
    difference: float
    """In probability, from torch; of an int8 file, that of the floats it was made from."""
    without_images: str = ""
    """Of an int8 file: why no images of the run's data could be had."""
    compared: tuple[Compared, ...] = ()


def export_run(
    run: Path,
    kind: Format,
    file: Path,
    *,
    int8: bool = False,
    data: str | None = None,
    selector: str | None = None,
    method: AnyMethod | None = None,
) -> Exported:
    """Write the model of a run's folder or of a checkpoint, compared with torch before the file is there.

    Of a folder it is the last checkpoint or, with a `selector`, the one that it chose.
    `int8` takes images to calibrate by from the data that the run was trained on, or from `data`.
    """
    checkpoint = find_checkpoint(run, selector)
    model = load(checkpoint, method=method)
    network, metadata = ProbabilityNetwork(model).eval(), described(model, checkpoint, kind)
    images, why = _images(model, data, checkpoint) if int8 else (None, "")
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        plain = temporary.with_name("float.onnx") if int8 else temporary
        compared: list[Compared] = []
        if int8:
            metadata |= {"quantisation": "int8, " + ("static" if images else "dynamic")}
        # By its file, because what torch says on standard error is left out, and the status should not be.
        with Console(file=sys.stderr).status("exporting"):
            difference = WRITERS[kind](network, plain, metadata)
            if int8:
                quantise(plain, temporary, images, model.chunk)
                check_finite(Session(temporary), model)
        if images:
            compared = compare(plain, temporary, images, model.chunk)
    return Exported(file, model, difference, why, tuple(compared))


def _images(model: Model, data: str | None, checkpoint: Path) -> tuple[RunImages | None, str]:
    """The run's images; where they are gone, and the user has named no others, why."""
    try:
        return find_images(model, data, checkpoint), ""
    except AfieldError as error:
        if data is not None:
            raise
        return None, str(error)
