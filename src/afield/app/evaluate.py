"""Accuracy of a checkpoint on labelled domains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afield.app.model import load
from afield.data.registry import check_data, load_data
from afield.data.task import EvaluationViews, LabelledView
from afield.errors import AfieldError
from afield.training.evaluation import Evaluator
from afield.training.loop import best_device


def evaluate_checkpoint(checkpoint: Path, data: str, domains: Sequence[str] | None = None) -> dict[str, Any]:
    """Accuracy, sample count and, where the method has them, diagnostics by domain, on the test splits."""
    check_data(data)
    model = load(checkpoint)
    loaded = load_data(data)
    if model.classes != loaded.classes:
        raise AfieldError(f"{checkpoint} knows other classes ({', '.join(model.classes)}) than data set '{data}'")
    loaded = loaded.sized(model.preprocessing.image_size, model.preprocessing.oblong)
    views = tuple(
        LabelledView(name, loaded[name].test.images, loaded[name].test.labels) for name in domains or loaded.domains
    )
    device = best_device()
    evaluator = Evaluator(EvaluationViews(views, None), model.preprocessing, device)
    return dict(evaluator(model.method.to(device))["sources"])
