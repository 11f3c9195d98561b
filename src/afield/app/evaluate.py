"""Accuracy of a checkpoint on the test images of a data set's domains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from afield.app.model import Model, load
from afield.data.domain import DomainSet
from afield.data.open import open_data
from afield.data.task import LabelledView, UnlabelledView
from afield.errors import AfieldError
from afield.methods.registry import AnyMethod
from afield.training.devices import best_device
from afield.training.evaluation import Measure


def evaluate_checkpoint(
    checkpoint: Path,
    data: str | DomainSet | None = None,
    domains: Sequence[str] | None = None,
    *,
    selector: str | None = None,
    method: AnyMethod | None = None,
) -> dict[str, Any]:
    """Accuracy, sample count and, where the method has them, diagnostics by domain, on the test splits.

    Without `data`, on the data set that the checkpoint was trained on. The accuracy on a domain without labels is None;
    how sure and how varied the predictions are, is then all that is known.
    """
    model = load(checkpoint, selector=selector, method=method)
    if not isinstance(data, DomainSet):
        options = model.config.data
        data = open_data(options if data is None else options.model_copy(update={"name": data}))
    numbers = class_numbers(model, data, checkpoint)
    sized = data.sized(model.preprocessing.image_size, model.preprocessing.oblong)
    views: list[LabelledView | UnlabelledView] = []
    for name in domains or sized.domains:
        images, labels = sized[name].test.images, sized[name].test.labels
        views.append(UnlabelledView(name, images) if labels is None else LabelledView(name, images, numbers[labels]))
    device = best_device()
    results = Measure(views, model.preprocessing, device)(model.method.to(device))
    for result in results.values():
        if result["accuracy"] is not None:
            del result["unlabelled"]
    return results


def class_numbers(model: Model, data: DomainSet, checkpoint: Path) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """By the data set's number of a class, the model's: classes are the same if their names are."""
    strange = [name for name in data.classes if name not in model.classes]
    if strange:
        named = ", ".join(strange[:5]) + (", ..." if len(strange) > 5 else "")
        raise AfieldError(
            f"{checkpoint} knows other classes than data set '{data.name}': not {named}, but {', '.join(model.classes)}"
        )
    return np.array([model.classes.index(name) for name in data.classes], np.int64)
