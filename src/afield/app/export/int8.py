"""Quantise an ONNX file to 8-bit integers, and measure what that costs in accuracy."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from afield.app.evaluate import class_numbers
from afield.app.export.network import INPUT, Pixels
from afield.app.export.written import Session
from afield.app.model import Model
from afield.data.images import Images
from afield.data.open import open_data
from afield.data.task import LabelledView, UnlabelledView, make_task
from afield.errors import AfieldError

WEIGHED = ["Conv", "Gemm", "MatMul"]
"""The operations to quantise: they have nearly all weights and time. Others are cheap, and gates need fine values."""
CALIBRATION_IMAGES = 256
View = LabelledView | UnlabelledView


@dataclass(frozen=True)
class RunImages:
    """Images of a run's data: of training, to calibrate by, and those it is evaluated on."""

    calibration: tuple[View, ...]
    evaluation: tuple[View, ...]


@dataclass(frozen=True)
class Compared:
    """Accuracies of a domain before and after, None where it has no labels, and how many images keep their class."""

    domain: str
    n: int
    before: float | None
    after: float | None
    same: float


def find_images(model: Model, data: str | None, checkpoint: Path) -> RunImages:
    """The images of the data a run was trained on, or of the same data under another name."""
    options, task = model.config.data, model.config.task
    opened = open_data(options if data is None else options.model_copy(update={"name": data}))
    numbers = class_numbers(model, opened, checkpoint)
    sized = opened.sized(model.preprocessing.image_size, model.preprocessing.oblong)
    seen, views = make_task(sized, task.kind, task.target, task.sources)
    evaluation = [
        LabelledView(view.name, view.images, numbers[view.labels]) if isinstance(view, LabelledView) else view
        for view in (*views.sources, *([views.target] if views.target else []))
    ]
    return RunImages(seen.seen, tuple(evaluation))


def quantise(plain: Path, path: Path, images: RunImages | None, chunk: int) -> None:
    """Write the int8 form of an ONNX file: with scales from images or, without any, from each batch as it comes."""
    import onnx
    from onnxruntime import quantization

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises on what is done here already
    try:
        if images is None:
            graph = onnx.load(plain)
            graph.graph.ClearField("value_info")  # it would keep the shapes of weights that the quantiser transposes
            # Of unsigned weights, because onnxruntime has no signed dynamic convolution.
            kind = quantization.QuantType.QUInt8
            quantization.quantize_dynamic(graph, path, op_types_to_quantize=WEIGHED, weight_type=kind)
            return
        prepared = plain.with_name("prepared.onnx")
        quantization.quant_pre_process(plain, prepared, skip_symbolic_shape=True)  # torch has noted the shapes
        reader = _Calibration(_pixels(images.calibration, chunk))
        quantization.quantize_static(prepared, path, reader, per_channel=True, op_types_to_quantize=WEIGHED)
    except Exception as error:  # whatever a graph meets in the quantiser
        raise AfieldError(f"onnxruntime cannot quantise it: {str(error).splitlines()[0][:200]}") from error
    finally:
        root.setLevel(level)


def compare(plain: Path, path: Path, images: RunImages, chunk: int) -> list[Compared]:
    """What both files say of the images that the run is evaluated on."""
    before, after = Session(plain), Session(path)
    compared = []
    console = Console(stderr=True)
    for view in track(images.evaluation, "evaluating", console=console, disable=not console.is_terminal):
        told = [
            np.stack([session(pixels).argmax(axis=1) for session in (before, after)])
            for pixels in _read(view.images, np.arange(len(view.images)), chunk)
        ]
        classes = np.concatenate(told, axis=1)
        same = float((classes[0] == classes[1]).mean())
        right = (classes == view.labels).mean(axis=1).tolist() if isinstance(view, LabelledView) else [None, None]
        compared.append(Compared(view.name, classes.shape[1], right[0], right[1], same))
    return compared


class _Calibration:
    """What onnxruntime asks for batches: a `CalibrationDataReader` by what it does."""

    def __init__(self, batches: Iterator[Pixels]) -> None:
        self.batches = batches

    def get_next(self) -> dict[str, Any] | None:
        """The next batch, or None after the last."""
        images = next(self.batches, None)
        return None if images is None else {INPUT: images}


def _pixels(views: tuple[View, ...], chunk: int) -> Iterator[Pixels]:
    """Some images of each domain, evenly spread over it."""
    each = -(-CALIBRATION_IMAGES // len(views))
    for view in views:
        count = len(view.images)
        yield from _read(view.images, np.unique(np.linspace(0, count - 1, min(each, count)).round()), chunk)


def _read(images: Images, numbers: Any, chunk: int) -> Iterator[Pixels]:
    """Images (n, 3, size, size), so many at a time."""
    for start in range(0, len(numbers), chunk):
        pixels = images.read(numbers[start : start + chunk].astype(np.int64))
        yield np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
