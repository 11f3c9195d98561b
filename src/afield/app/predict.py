"""Classify image files, and write what was found."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.progress import track
from torch import Tensor

from afield.app.images import find_images, read_image
from afield.app.model import load
from afield.data.pixels import UnreadableImageError
from afield.errors import AfieldError
from afield.files import write_whole
from afield.methods.registry import AnyMethod
from afield.training.devices import best_device

FORMATS = (".csv", ".json")
# A dict with the key "class", which cannot be a Python name.
Prediction = TypedDict("Prediction", {"file": str, "class": str, "probability": float})


def predict_files(
    checkpoint: Path,
    paths: Sequence[Path],
    skip_bad: bool = False,
    *,
    selector: str | None = None,
    method: AnyMethod | None = None,
) -> tuple[list[Prediction], list[Path]]:
    """A prediction for each readable image, in order; and, if allowed, the unreadable ones that were left out."""
    model = load(checkpoint, selector=selector, method=method)
    files = find_images(paths)
    model.to(best_device())
    predictions: list[Prediction] = []
    skipped: list[Path] = []
    starts = range(0, len(files), model.chunk)
    console = Console(stderr=True)
    for start in track(starts, "predicting", console=console, disable=not console.is_terminal or len(starts) < 2):
        images: list[Tensor] = []
        readable: list[Path] = []
        for file in files[start : start + model.chunk]:
            try:
                images.append(read_image(file, model.preprocessing.image_size, model.preprocessing.oblong))
                readable.append(file)
            except UnreadableImageError:
                if not skip_bad:
                    raise
                skipped.append(file)
        best = model.predict_proba(images).max(dim=1)
        for file, index, value in zip(readable, best.indices.tolist(), best.values.tolist(), strict=True):
            predictions.append({"file": str(file), "class": model.classes[index], "probability": round(value, 6)})
    if not predictions:
        raise AfieldError(f"no image could be read of {len(files)}: {', '.join(map(str, files[:3]))}")
    return predictions, skipped


def check_output(file: Path | None) -> None:
    """Raise unless the file's ending says CSV or JSON."""
    if file is not None and file.suffix.lower() not in FORMATS:
        raise AfieldError(f"predictions are written as {' or '.join(FORMATS)}, not as '{file.name}'")
    if file is not None and file.is_dir():
        raise AfieldError(f"{file} is a folder, not a file for predictions")


def write_predictions(predictions: Sequence[Prediction], file: Path | None) -> None:
    """To a file by its ending, complete or not at all; or as CSV to the screen."""
    if file is not None and file.suffix.lower() == ".json":
        text = json.dumps(predictions, indent=2) + "\n"
    else:
        table = io.StringIO()
        writer = csv.DictWriter(table, ("file", "class", "probability"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(predictions)
        text = table.getvalue()
    if file is None:
        sys.stdout.write(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
