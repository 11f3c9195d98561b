"""A checkpoint on the test images of a data set's domains: accuracy, class by class too, calibration, and errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from afield.app.model import Model, check_numbers, load
from afield.data.contact_sheet import save_sheet
from afield.data.domain import DomainSet
from afield.data.error_sheet import Mistake, error_sheet
from afield.data.open import open_data, open_own
from afield.data.task import LabelledView, UnlabelledView
from afield.errors import AfieldError
from afield.files import making_folder
from afield.methods.registry import AnyMethod
from afield.results.folder import RunFolder, first_event
from afield.results.quality import Quality
from afield.training.devices import best_device
from afield.training.evaluation import Measure, View
from afield.training.host_memory import memory_kept


@dataclass(frozen=True)
class Evaluation:
    """What a checkpoint does on domains."""

    results: dict[str, Any]
    """By domain: `accuracy`, `n`, `classes` (accuracy and n of each), `calibration` (`ece`, `brier`, `nll`), and a
    method's diagnostics. The accuracy on a domain without labels is None; how sure and how varied the predictions are
    (`unlabelled`) is then all that is known."""
    mistakes: list[Mistake]
    data: DomainSet
    """What was tested on: the `test` of each domain has the images that the results and the mistakes are about."""
    note: str = ""
    """What may make the results too good."""


class Examiner:
    """Collects calibration and misclassified images from the predictions on each domain while they are made."""

    def __init__(self, model: Model, progress: Progress, images: int) -> None:
        self.classes, self.progress = model.classes, progress
        self.task = progress.add_task("evaluating", total=images)
        self.qualities: dict[str, Quality] = {}
        self.mistakes: list[Mistake] = []

    def __call__(self, view: View, start: int, probabilities: Tensor) -> None:
        """Count the predictions on some images of a view."""
        check_numbers(probabilities)
        values = probabilities.cpu().numpy()
        self.progress.advance(self.task, len(values))
        if not isinstance(view, LabelledView):
            return
        labels = view.labels[start : start + len(values)]
        self.qualities.setdefault(view.name, Quality(len(self.classes))).add(values, labels)
        predicted, confidence = values.argmax(axis=1), values.max(axis=1)
        for place in np.flatnonzero(predicted != labels):
            truth, taken_for = self.classes[labels[place]], self.classes[predicted[place]]
            self.mistakes.append(Mistake(view.name, start + int(place), truth, taken_for, float(confidence[place])))


def evaluate_checkpoint(
    checkpoint: Path,
    data: str | DomainSet | None = None,
    domains: Sequence[str] | None = None,
    *,
    selector: str | None = None,
    method: AnyMethod | None = None,
) -> Evaluation:
    """Evaluate on the test splits; without `data`, of the data set that the checkpoint was trained on.

    Of a domain that was a source of the run, no image it was trained on is among them.
    """
    model = load(checkpoint, selector=selector, method=method)
    note = ""
    if not isinstance(data, DomainSet):
        options = model.config.data
        own = data is None or data == options.name
        data = open_own(options) if data is None else open_data(options.model_copy(update={"name": data}))
        note = changed_since(checkpoint, data) if own else ""
    data = data.with_sources(model.sources)
    views = test_views(model, data, domains, checkpoint)
    device, console = best_device(), Console(stderr=True)
    measure = Measure(views, model.preprocessing, device)
    shown = Progress(console=console, disable=not console.is_terminal, transient=True)
    with memory_kept(device.type), shown as progress:
        examiner = Examiner(model, progress, sum(len(view.images) for view in views))
        results = measure(model.method.to(device), examiner)
    for name, result in results.items():
        if name in examiner.qualities:
            del result["unlabelled"]
            result |= examiner.qualities[name].as_values(model.classes)
    return Evaluation(results, examiner.mistakes, data, note)


def changed_since(checkpoint: Path, data: DomainSet) -> str:
    """What to know where a run's data set has other images by now; as far as there are records of it."""
    folder = RunFolder(checkpoint if checkpoint.is_dir() else checkpoint.parent)
    protocol = first_event(folder.records).get("protocol") if folder.holds_run else None
    trained_on = protocol.get("checksum") if isinstance(protocol, dict) else None
    if trained_on is None or trained_on == data.checksum():
        return ""
    return (
        f"'{data.name}' has changed since {checkpoint} was trained on it: "
        "test images may be among those it has learned from"
    )


def write_errors(evaluation: Evaluation, file: Path) -> str:
    """Write a sheet of the misclassified images, if there are any, and say so."""
    if not evaluation.mistakes:
        return "no errors, and so no sheet of them"
    with making_folder(file):
        save_sheet(error_sheet(evaluation.data, evaluation.mistakes), file)
    return f"errors: {file}"


def test_views(model: Model, data: DomainSet, domains: Sequence[str] | None, checkpoint: Path) -> list[View]:
    """The test images of domains (default: all) as the model takes them, with the model's numbers of classes."""
    numbers = class_numbers(model, data, checkpoint)
    sized = data.sized(model.preprocessing.image_size, model.preprocessing.oblong)
    views: list[View] = []
    for name in dict.fromkeys(domains or sized.domains):
        images, labels = sized[name].test.images, sized[name].test.labels
        views.append(UnlabelledView(name, images) if labels is None else LabelledView(name, images, numbers[labels]))
    return views


def class_numbers(model: Model, data: DomainSet, checkpoint: Path) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """For each class number of the data set, the model's number: classes are matched by name."""
    strange = [name for name in data.classes if name not in model.classes]
    if strange:
        named = ", ".join(strange[:5]) + (", ..." if len(strange) > 5 else "")
        raise AfieldError(
            f"{checkpoint} knows other classes than data set '{data.name}': not {named}, but {', '.join(model.classes)}"
        )
    return np.array([model.classes.index(name) for name in data.classes], np.int64)
