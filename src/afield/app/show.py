"""Tables that the command line prints: the result of a run, an evaluation, a data set. Nothing here imports torch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from afield.data.domain import Domain, DomainSet, Split
from afield.errors import printable
from afield.results.run import Run
from afield.results.summary import percent

MOST_CLASSES = 12
"""With more classes than these, a table shows only the smallest and the largest ones."""
DOMAINS_PER_TABLE = 6
LEFT: Literal["left"] = "left"
RIGHT: Literal["right"] = "right"
LABELLED_SPLITS = ("train", "validation", "test")


def empty_table(title: str, text: Sequence[str], numbers: Sequence[str], more_text: Sequence[str] = ()) -> Table:
    """An empty table with columns of text, then of numbers, then of text again."""
    table = Table(title=printable(title))
    for names, justify in ((text, LEFT), (numbers, RIGHT), (more_text, LEFT)):
        for name in names:
            table.add_column(printable(name), justify=justify, overflow="fold")
    return table


def run_table(run: Run) -> Table:
    """The result of one run."""
    title = f"{run.folder}: step {run.step}, {run.seconds:.0f} s, selector {run.selector}"
    table = empty_table(title, ["domain", "role"], ["accuracy", "held-out images"])
    for role, results in (("source", run.evaluation["sources"]), ("target", run.evaluation["target"])):
        for domain, result in results.items():
            table.add_row(printable(domain), role, percent(result["accuracy"]), str(result["n"]))
    return table


def evaluation_tables(title: str, results: dict[str, Any]) -> list[Table]:
    """Accuracy and calibration by domain; then, of those with labels, the accuracy of each class."""
    table = empty_table(title, ["domain"], ["accuracy", "ECE", "Brier", "NLL", "test images"])
    for domain, result in results.items():
        calibration = result.get("calibration")
        figures = [f"{calibration[key]:.3f}" for key in ("ece", "brier", "nll")] if calibration else ["-"] * 3
        table.add_row(printable(domain), percent(result["accuracy"]), *figures, str(result["n"]))
    labelled = {name: result["classes"] for name, result in results.items() if "classes" in result}
    return [table, *accuracy_tables(labelled)]


def accuracy_tables(domains: dict[str, dict[str, Any]]) -> list[Table]:
    """Accuracy and number of test images per class; of many classes the worst, by their accuracy in all domains."""
    right, total = Counter[str](), Counter[str]()
    for of_domain in domains.values():
        for label, of_class in of_domain.items():
            total[label] += of_class["n"]
            right[label] += of_class["n"] * (of_class["accuracy"] or 0)
    there = [label for label in total if total[label]]
    worst = set(sorted(there, key=lambda label: right[label] / total[label])[:MOST_CLASSES])
    which = f", the lowest {MOST_CLASSES} of {len(there)} (--json has all)" if len(there) > MOST_CLASSES else ""
    tables = []
    for start in range(0, len(domains), DOMAINS_PER_TABLE):
        names = list(domains)[start : start + DOMAINS_PER_TABLE]
        table = empty_table(f"accuracy (test images) per class{which}", ["class"], names)
        for label in (label for label in there if label in worst):
            cells = [f"{percent(domains[name][label]['accuracy'])} ({domains[name][label]['n']})" for name in names]
            table.add_row(printable(label), *cells)
        tables.append(table)
    return tables


def data_tables(data: DomainSet) -> list[Table]:
    """A data set: its domains, then how many images of each class they have."""
    return [domain_table(data), *(class_tables(data) if len(data.classes) <= MOST_CLASSES else [extremes_table(data)])]


def domain_table(data: DomainSet) -> Table:
    """The domains: images per split, image sizes, origin."""
    title = f"{data.name}: {len(data.domains)} domains, {len(data.classes)} classes"
    splits = {name: distinct_splits(domain) for name, domain in data.domains.items()}
    parts = [part for part in (*LABELLED_SPLITS, "unlabelled") if any(part in of for of in splits.values())]
    table = empty_table(title, ["domain"], parts, ["image size", "origin"])
    for name, domain in data.domains.items():
        counts = [str(len(splits[name][part])) if part in splits[name] else "-" for part in parts]
        table.add_row(printable(name), *counts, image_size(domain), printable(domain.origin))
    return table


def distinct_splits(domain: Domain) -> dict[str, Split]:
    """The splits by name, each image in one of them: without labels, `train` and `test` may have the same ones."""
    if domain.labelled:
        return domain.splits
    held_out = {} if domain.test.images is domain.train.images else {"test": domain.test}
    return held_out | {"unlabelled": domain.train}


def image_size(domain: Domain) -> str:
    """Width and height in pixels: one size, or the median and the sizes of the smallest and the largest image."""
    sizes = np.concatenate([split.images.sizes() for split in distinct_splits(domain).values()])
    if not len(sizes):
        return "-"
    area = sizes.prod(axis=1)
    smallest, largest = sizes[area.argmin()], sizes[area.argmax()]
    if (sizes == sizes[0]).all():
        return _pixels(smallest)
    return f"{_pixels(np.median(sizes, axis=0))} ({_pixels(smallest)} to {_pixels(largest)})"


def _pixels(size: NDArray[Any]) -> str:
    return f"{int(size[0])}x{int(size[1])}"  # without a space, so that no line breaks inside it


def class_tables(data: DomainSet) -> list[Table]:
    """Images per class and split, one row per class; several tables where there are many domains."""
    labelled = {name: domain for name, domain in data.domains.items() if domain.labelled}
    parts = [part for part in LABELLED_SPLITS if any(part in domain.splits for domain in labelled.values())]
    tables = []
    for start in range(0, len(labelled), DOMAINS_PER_TABLE):
        names = list(labelled)[start : start + DOMAINS_PER_TABLE]
        table = empty_table(f"images per class: {' / '.join(parts)}", ["class"], names)
        counts = [{part: class_counts(data, labelled[name], part) for part in parts} for name in names]
        for label, title in enumerate(data.classes):
            cells = [" / ".join(str(of[part][label]) if of[part] else "-" for part in parts) for of in counts]
            table.add_row(printable(title), *cells)
        tables.append(table)
    return tables


def extremes_table(data: DomainSet) -> Table:
    """How many classes each labelled domain has, and its smallest and largest class over all splits."""
    table = empty_table("classes", ["domain"], ["classes"], ["smallest class", "largest class"])
    for name, domain in data.domains.items():
        if domain.labelled:
            parts = [part for part in LABELLED_SPLITS if not (part == "test" and domain.tested_whole)]
            counts = np.sum([of for part in parts if (of := class_counts(data, domain, part))], axis=0)
            there = np.flatnonzero(counts)
            ends = [there[counts[there].argmin()], there[counts[there].argmax()]] if len(there) else []
            shown = [f"{printable(data.classes[label])} ({counts[label]})" for label in ends] or ["-", "-"]
            table.add_row(printable(name), str(len(there)), *shown)
    return table


def class_counts(data: DomainSet, domain: Domain, part: str) -> list[int]:
    """Images of each class in a split; empty where there is no such split."""
    split = domain.splits.get(part)
    if split is None or split.labels is None:
        return []
    return [int(count) for count in np.bincount(split.labels, minlength=len(data.classes))]
