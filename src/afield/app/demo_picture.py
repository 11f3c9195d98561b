"""The demonstration's picture: images of the target, what the baseline says of each, and what FAR says."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from afield.app.demo import METHODS, DemoResult
from afield.app.model import check_numbers, load
from afield.data.contact_sheet import make_tile
from afield.data.domain import Split
from afield.errors import printable
from afield.files import replacing
from afield.results.summary import percent
from afield.training.devices import best_device

MOST_IMAGES = 20
TILE = 192
CELL = 1.75, 2.35
"""Width and height in inches of one cell: an image, its class above it, the predictions below it."""
MOST_LETTERS = 16
RIGHT, WRONG, UNKNOWN = "#1a7f37", "#cf222e", "#24292f"

Saying = tuple[str, float]
"""A predicted class and its probability."""


def picture(result: DemoResult, path: Path) -> None:
    """Test images of the target with the predictions of each method's first run, written as PNG."""
    data, test = result.data, result.data[result.target].test
    chosen = chosen_images(test, len(data.classes))
    originals = [test.images.original(index) for index in chosen]
    said = {method: predictions(runs[0].checkpoint, originals) for method, runs in result.runs.items()}
    columns = -(-len(chosen) // 2) if len(chosen) > 5 else len(chosen)
    rows = -(-len(chosen) // columns)
    width = max(CELL[0] * columns, 7.5)
    figure = Figure(figsize=(width, CELL[1] * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place in axes:
        place.set_axis_off()
    for number, (place, index) in enumerate(zip(axes, chosen, strict=False)):
        truth = None if test.labels is None else data.classes[test.labels[index]]
        place.imshow(np.asarray(make_tile(test, index, TILE)))
        place.set_title(short(truth or f"image {index + 1}"), fontsize=10, parse_math=False)
        write_below(place, {method: sayings[number] for method, sayings in said.items()}, truth)
    figure.suptitle(heading(result, len(chosen)), fontsize=11, parse_math=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def predictions(checkpoint: Path, images: list[Any]) -> list[Saying]:
    """The most probable class of each image, and its probability."""
    model = load(checkpoint).to(best_device())
    probabilities = model.predict_proba(images)
    check_numbers(probabilities)
    surest = probabilities.max(dim=1)
    return [(model.classes[i], p) for i, p in zip(surest.indices.tolist(), surest.values.tolist(), strict=True)]


def write_below(place: Axes, said: dict[str, Saying], truth: str | None) -> None:
    """One line per method: green if it is right, bold red if it is wrong; without a truth, bold if they differ."""
    agreed = len({label for label, _ in said.values()}) == 1
    for line, (method, (label, probability)) in enumerate(said.items()):
        good = agreed if truth is None else label == truth
        colour = UNKNOWN if truth is None else RIGHT if good else WRONG
        place.text(
            0.5, -0.05 - 0.13 * line, f"{method}: {short(label)} {probability:.0%}", transform=place.transAxes,
            ha="center", va="top", fontsize=8, color=colour, fontweight="normal" if good else "bold", parse_math=False,
        )  # fmt: skip


def heading(result: DemoResult, count: int) -> str:
    """Which images these are, and how good each method is on all of them."""
    test, first = result.data[result.target].test, {method: runs[0] for method, runs in result.runs.items()}
    if test.labels is None:
        which, rest = f"{count} of its {len(test)} images", "how many are right is unknown; bold: the two differ"
    else:
        there = len(np.unique(test.labels))
        which = f"the first test images of {there if there <= MOST_IMAGES else f'{MOST_IMAGES} of {there}'} classes"
        accuracies = ", ".join(f"{method} {percent(run.accuracy[result.target])}" for method, run in first.items())
        rest = f"all {len(test)} test images: {accuracies} (selector {first[METHODS[0]].selector})"
    return f"Target '{short(result.target, 40)}', learned without its labels: {which}\n{rest}"


def chosen_images(split: Split, num_classes: int) -> list[int]:
    """Indices of images, class by class in turn: by their position, not by how well they are classified.

    Without labels they are spread evenly. Of many classes some are shown, spread evenly, too.
    """
    if split.labels is None:
        return spread(len(split), MOST_IMAGES)
    labels = split.labels
    there = [label for label in range(num_classes) if (labels == label).any()]
    shown = [there[place] for place in spread(len(there), MOST_IMAGES)]
    of_classes = [np.flatnonzero(labels == label).tolist() for label in shown]
    turns = MOST_IMAGES // len(shown)
    return [indices[turn] for turn in range(turns) for indices in of_classes if turn < len(indices)]


def spread(count: int, most: int) -> list[int]:
    """So many of the first numbers, at equal distances."""
    return [int(number) for number in np.linspace(0, count - 1, min(count, most)).round()]


def short(name: str, most: int = MOST_LETTERS) -> str:
    """A name of a class that fits above an image."""
    name = printable(name)
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"
