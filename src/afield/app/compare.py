"""Train several methods on one target and choose among them without its labels, or with a few."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from afield.app.asked import asked_layers, check_early, check_like_before, data_options
from afield.app.model import load
from afield.app.show import empty_table
from afield.app.side_by_side import Calls, train_side_by_side
from afield.app.train import train
from afield.config.catalogue import canonical_name, check_sources, find_entry
from afield.config.data import OWN_PRESETS, TaskOptions
from afield.config.layers import Values
from afield.data.domain import DomainSet
from afield.data.open import open_data
from afield.data.pixels import read_square
from afield.data.registry import builders, load_data
from afield.data.task import check_task
from afield.errors import AfieldError, printable, unknown
from afield.files import check_regular, link, write_whole
from afield.methods.registry import AnyMethod, name_of
from afield.results.folder import CHOSEN, RunFolder
from afield.results.ranking import Ranking
from afield.results.run import read_run
from afield.results.summary import percent
from afield.training.devices import best_device
from afield.training.progress import Display

VALUES = "comparison.json"
SIDE_TO_READ = 32
"""The size at which a labelled image is read, to check that it can be: the size a run will use is not known yet."""


def compare(
    data: "str | Path | DomainSet",
    target: str,
    methods: Sequence[AnyMethod],
    out: Path,
    *,
    labelled: Path | None = None,
    settings: dict[str, Any] | None = None,
    workers: int | None = None,
    progress: bool = True,
    fitting: bool = False,
    **asked: Any,
) -> tuple[Ranking, dict[str, str]]:
    """The comparison, and why some methods have no run. `asked` are further arguments of `afield.train`.

    Each method trains in a folder of its own inside `out`; one that has ended is not trained again, and one that was
    stopped goes on. `labelled` is a CSV file of a few target images with labels, by which the best run is then chosen.
    `workers` methods train at the same time, by default as many as this machine has GPUs, or one. With `fitting`,
    methods that need more sources than there are are left out; otherwise they are an error.
    """
    names = list(dict.fromkeys(canonical_name(name_of(method)) for method in methods))
    if len(names) < 2:
        raise AfieldError("a comparison needs two methods or more")
    if RunFolder(out).holds_run or RunFolder(out).holds_benchmark:
        raise AfieldError(f"{out} holds a run or a benchmark; a comparison needs a folder of its own")
    images = read_labelled(labelled) if labelled else {}
    task = {"data": data.name if isinstance(data, DomainSet) else str(data), "target": target, "task": "uda"}
    display, count = Display(progress), workers or usual_workers(asked.get("device"))

    def check(names: list[str]) -> list[Values]:
        for name in names:
            layers = asked_layers(None, settings, method=name, **task, **asked)
            check_compared(check_early(layers, []).task, target)
        return layers

    # All are checked before the first trains, and what needs no images before they are read.
    layers = check(names[:1] if fitting else names)
    domains = data if isinstance(data, DomainSet) else open_data(data_options(*layers))
    sources = check_task(domains, "uda", target, check_early(layers, []).task.sources)
    if fitting:
        names = fitting_methods(names, len(sources), display.say)
        check(names)
    for name in names:
        check_sources(find_entry(name), len(sources))
    check_labels(images, domains.classes)
    for name in names:
        layers = asked_layers(None, settings, method=name, **task, **asked)
        check_like_before(RunFolder(out / name), layers, "a comparison", "another folder is needed")
    if count > 1 and isinstance(data, str) and data in builders() and data not in OWN_PRESETS:
        data = load_data(data)  # registered in this process, so that others could not open it by its name
    common = asked | {"data": data, "task": "uda", "target": target, "settings": settings}
    calls = {name: common | _own(name, out) for name in names}
    if count > 1:
        failures = train_side_by_side(calls, count, display.say)
    else:
        failures = _train_in_turn(calls, progress, display.say)
    runs = {name: read_run(out / name, "last") for name in names if name not in failures}
    if len(runs) < 2:
        raise AfieldError("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    right = {name: count_right(run.checkpoint, images) for name, run in runs.items()} if images else None
    found = Ranking(runs, len(images), right)
    link(runs[found.order[0]].checkpoint, out / CHOSEN)
    write_whole(out / VALUES, json.dumps(found.as_values() | {"failures": failures}, indent=2) + "\n")
    return found, failures


def fitting_methods(names: list[str], count: int, say: Callable[[str], None]) -> list[str]:
    """The methods that so many sources suffice for; the others are named."""
    enough = [name for name in names if find_entry(name).card.min_sources <= count]
    if left_out := [name for name in names if name not in enough]:
        say(f"left out, because they need more than {count} source domain{'s' * (count > 1)}: {', '.join(left_out)}")
    return enough


def check_compared(task: TaskOptions, target: str) -> None:
    """Raise unless the settings leave a task whose target images can be looked at, and the target that was named."""
    if task.kind != "uda":
        raise AfieldError(f"a comparison needs a uda task, not {task.kind}: it chooses by images of the target")
    if task.target != target:
        raise AfieldError(f"the target is '{target}', and task.target is set to '{task.target}'; name one")


def check_labels(images: dict[Path, str], classes: Sequence[str]) -> None:
    """Raise unless all labels are classes of the data."""
    strange = [label for label in images.values() if label not in classes]
    if strange:
        raise unknown("class", strange[0], classes)


def usual_workers(device: str | None) -> int:
    """One method per GPU; without one, or where none is to be used, one at a time, which uses all processors."""
    return max(1, torch.cuda.device_count()) if device != "cpu" else 1


def _own(name: str, out: Path) -> dict[str, Any]:
    """The arguments of `afield.train` that differ between methods; a run that was stopped is resumed."""
    folder = RunFolder(out / name)
    resume = folder.config.exists()
    overwrite = not resume and folder.holds_run
    return {"method": name, "out": folder.path, "resume": resume, "overwrite": overwrite, "progress": False}


def _train_in_turn(calls: Calls, progress: bool, say: Callable[[str], None]) -> dict[str, str]:
    """Train the methods one after the other in this process, showing progress; return why some failed, by method."""
    failures = {}
    for name, arguments in calls.items():
        try:
            train(**arguments | {"progress": progress})
        except AfieldError as error:
            failures[name] = str(error)
            say(f"{name} failed: {error}")
    return failures


def read_labelled(file: Path) -> dict[Path, str]:
    """Images and their classes from a CSV file with the columns path and label; paths are relative to the file.

    Every image is looked at: one that cannot be read is found now, and not after hours of training.
    """
    check_regular(file)
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AfieldError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    if not rows or not all(row.get("path") and row.get("label") for row in rows):
        raise AfieldError(f"{file} is not a table of labelled images: each row has a path and a label")
    images: dict[Path, str] = {}
    for row in rows:
        path, label = file.parent / row["path"].strip(), row["label"].strip()
        if not path.is_file():
            raise AfieldError(f"{file} names a file that cannot be found: {path}")
        before = images.setdefault(path.resolve(), label)  # one image may be spelled in two ways
        if before != label:
            raise AfieldError(f"{file} labels {path} twice, as '{before}' and as '{label}'")
    for path in images:
        read_square(path, SIDE_TO_READ, "squash")
    return images


def count_right(checkpoint: Path, images: dict[Path, str]) -> int:
    """How many of these images a checkpoint classifies as they are labelled."""
    said = load(checkpoint).to(best_device()).predict(list(images))
    return sum(one == other for one, other in zip(said, images.values(), strict=True))


def ranking_table(found: Ranking, target: str) -> Table:
    """One row per run, the best first: its place by each selector, 1 for the best."""
    few = [f"right of {found.labelled}"] if found.right is not None else []
    known = any(run.accuracy[target] is not None for run in found.runs.values())
    title = f"target {target} ({'its test labels were not used to choose' if known else 'it has no labels'})"
    table = empty_table(title, ["method"], [*few, "mean place", *found.places, "target accuracy"])
    for name in found.order:
        cells = [str(found.right[name])] if found.right is not None else []
        cells += [f"{found.mean_places[name]:.1f}", *(f"{of_one[name]:g}" for of_one in found.places.values())]
        table.add_row(printable(name), *cells, percent(found.runs[name].accuracy[target]))
    return table
