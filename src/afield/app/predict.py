"""Classify image files, and write each prediction as soon as it is made."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from rich.console import Console
from rich.progress import track
from torch import Tensor

from afield.app.images import find_images, read_image
from afield.app.model import Model, check_numbers, load
from afield.data.pixels import UnreadableImageError
from afield.errors import AfieldError, printable
from afield.files import making_folder, replacing
from afield.methods.registry import AnyMethod
from afield.results.long_form import cell
from afield.training.devices import best_device

FORMATS = (".csv", ".json")
# Dicts with the key "class", which cannot be a Python name.
Guess = TypedDict("Guess", {"class": str, "probability": float})
Prediction = TypedDict("Prediction", {"file": str, "class": str, "probability": float, "top": NotRequired[list[Guess]]})


class Predictions:
    """A prediction for each readable image, in order, made while they are iterated: as many at a time as fit."""

    def __init__(self, model: Model, files: Sequence[Path], skip_bad: bool, top: int, progress: bool) -> None:
        self.model, self.files, self.skip_bad, self.top = model, files, skip_bad, top
        self.progress = progress
        self.skipped: list[Path] = []
        """The unreadable files that were left out so far; only if that is allowed."""

    def __iter__(self) -> Iterator[Prediction]:
        self.skipped.clear()
        starts, console = range(0, len(self.files), self.model.chunk), Console(stderr=True)
        hidden = not (self.progress and console.is_terminal and len(starts) > 1)
        found = False
        for start in track(starts, "predicting", console=console, disable=hidden):
            files, images = self._read(self.files[start : start + self.model.chunk])
            probabilities = self.model.predict_proba(images)
            check_numbers(probabilities)
            best = probabilities.topk(self.top, dim=1)
            for file, indices, values in zip(files, best.indices.tolist(), best.values.tolist(), strict=True):
                found = True
                yield self._prediction(file, indices, values)
        if not found:
            raise AfieldError(f"no image could be read of {len(self.files)}: {', '.join(map(str, self.files[:3]))}")

    def _read(self, files: Iterable[Path]) -> tuple[list[Path], list[Tensor]]:
        images: list[Tensor] = []
        readable: list[Path] = []
        for file in files:
            try:
                images.append(read_image(file, self.model.preprocessing.image_size, self.model.preprocessing.oblong))
                readable.append(file)
            except UnreadableImageError:
                if not self.skip_bad:
                    raise
                self.skipped.append(file)
        return readable, images

    def _prediction(self, file: Path, indices: list[int], values: list[float]) -> Prediction:
        guesses: list[Guess] = [
            {"class": self.model.classes[index], "probability": round(value, 6)}
            for index, value in zip(indices, values, strict=True)
        ]
        first = guesses[0]
        best: Prediction = {"file": str(file), "class": first["class"], "probability": first["probability"]}
        if self.top > 1:
            best["top"] = guesses
        return best


def predict_files(
    checkpoint: Path,
    paths: Sequence[Path],
    skip_bad: bool = False,
    *,
    top: int = 1,
    selector: str | None = None,
    method: AnyMethod | None = None,
    progress: bool = True,
) -> Predictions:
    """The predictions for image files, and for those in folders; with the `top` most probable classes of each."""
    model = load(checkpoint, selector=selector, method=method)
    if not 1 <= top <= len(model.classes):
        raise AfieldError(f"top is at most {len(model.classes)}, the number of classes, and at least 1; not {top}")
    files = find_images(paths)
    model.to(best_device())
    return Predictions(model, files, skip_bad, top, progress)


def check_output(file: Path | None, as_json: bool = False) -> None:
    """Raise unless the file's ending says CSV or JSON."""
    if file is None:
        return
    if file.suffix.lower() not in FORMATS:
        raise AfieldError(f"predictions are written as {' or '.join(FORMATS)}, not as '{file.name}'")
    if as_json and file.suffix.lower() != ".json":
        raise AfieldError(f"--json contradicts the ending of '{file.name}'")
    if file.is_dir():
        raise AfieldError(f"{file} is a folder, not a file for predictions")


def write_predictions(predictions: Iterable[Prediction], file: Path | None, as_json: bool = False) -> None:
    """To a file by its ending, complete or not at all; or to the screen, as CSV or JSON."""
    pieces = json_pieces if as_json or (file and file.suffix.lower() == ".json") else csv_pieces
    if file is None:
        for piece in pieces(predictions):
            # Names in a stranger's checkpoint must not reach a terminal as commands.
            shown = "\n".join(map(printable, piece.split("\n"))) if sys.stdout.isatty() else piece
            sys.stdout.write(shown)
        return
    with (
        making_folder(file),
        replacing(file) as temporary,
        # A file name that is no text is written escaped.
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream,
    ):
        stream.writelines(pieces(predictions))


def json_pieces(predictions: Iterable[Prediction]) -> Iterator[str]:
    """A JSON array, a line per prediction. Nothing is said before there is a first one."""
    before = "["
    for prediction in predictions:
        yield f"{before}\n  {json.dumps(prediction)}"
        before = ","
    yield "\n]\n"


def csv_pieces(predictions: Iterable[Prediction]) -> Iterator[str]:
    """A table with `class_2` and `probability_2` for the second guess, and so on."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, prediction in enumerate(predictions):
        guesses = prediction.get("top") or [prediction]
        if not number:
            endings = ["", *(f"_{place}" for place in range(2, len(guesses) + 1))]
            writer.writerow(["file", *(f"{name}{ending}" for ending in endings for name in ("class", "probability"))])
        cells = [each for guess in guesses for each in (cell(guess["class"]), guess["probability"])]
        writer.writerow([cell(prediction["file"]), *cells])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
