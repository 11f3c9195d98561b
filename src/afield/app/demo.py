"""The demonstration: baseline and FAR on one target, of the embedded digits or of a user's photographs, and a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from afield.app.asked import asked_layers, check_early, check_like_before, choose_config, data_options
from afield.app.show import empty_table
from afield.app.train import train
from afield.config.catalogue import find_entry
from afield.data.domain import DomainSet
from afield.data.open import SMALL_SIDE, open_data
from afield.errors import AfieldError, printable
from afield.results.folder import RunFolder
from afield.results.run import Run
from afield.results.summary import Summary
from afield.training.progress import Display

DATA, METHODS = "digits", ("baseline", "far")
TARGET = "street"
STEPS = 300
"""On photographs, unless the user says otherwise: enough to see what FAR does, and minutes on a GPU."""
SHORT = {"training.lr": 0.01, "training.pretrained_rate": 1.0}
"""Of a network that has seen ImageNet, in so few steps. On PACS this rate is better than half of it by held-out images
of the sources, for the baseline and for FAR on both networks tried (docs/research-log.md, "Rates at 224 pixels")."""


@dataclass(frozen=True)
class DemoResult:
    """The runs of each method, one per seed."""

    data: DomainSet
    target: str
    runs: dict[str, list[Run]]

    def table(self) -> Table:
        """One row per method; over several seeds mean ± standard deviation (n). What nobody knows is a dash."""
        known = "its labels were not used" if self.data[self.target].labelled else "it has no labels"
        title = f"{self.data.name}, uda, target {self.target} ({known})"
        table = empty_table(title, ["method"], ["target accuracy", "source accuracy", "seconds"], ["selector"])
        for method, runs in self.runs.items():
            columns = [
                [100 * value for run in runs if (value := run.accuracy[self.target]) is not None],
                [100 * run.source_accuracy for run in runs],
                [run.seconds for run in runs],
            ]
            shown = [str(Summary.of(values)) if len(values) != 1 else f"{values[0]:.1f}" for values in columns]
            table.add_row(method, *shown, runs[0].selector)
        return table


def run_demo(
    out: Path,
    target: str | None = None,
    seeds: int = 1,
    *,
    photos: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    settings: dict[str, Any] | None = None,
    **asked: Any,
) -> DemoResult:
    """Train both methods once per seed, with the same data, network, steps and seeds, each into its own folder.

    Called again with the same settings it goes on where it was stopped.

    `photos` is a folder of images, or anything else that `afield.train` takes as data; without it the digits are used.
    `asked` are further arguments of `afield.train`.
    """
    name = photos or DATA
    layers = asked_layers(None, settings, data=name, **asked)
    check_early(layers, [])
    data = open_data(data_options(*layers))
    target = target or (usual_target(data) if photos else TARGET)
    check_sources(data, target)
    folders = {(method, seed): out / f"{method}-seed{seed}" for seed in range(seeds) for method in METHODS}
    begun = {key for key, folder in folders.items() if RunFolder(folder).config.exists() and not overwrite}
    for key, folder in folders.items():
        RunFolder(folder).check(resume=key in begun, overwrite=overwrite)
    if photos:
        Display(progress).say(f"target {printable(target)} of {', '.join(map(printable, data.domains))}")
        config = choose_config(data, layers, [])
        if asked.get("steps") is None and config.data.image_size > SMALL_SIDE:
            asked["steps"] = min(config.training.steps, STEPS)
        if config.network.starts_trained:
            settings = SHORT | (settings or {})
    for method, seed in sorted(begun):
        layers = asked_layers(None, settings, data=name, task="uda", target=target, method=method, seed=seed, **asked)
        check_like_before(RunFolder(folders[method, seed]), layers, "a demo", "overwrite replaces it")
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    for (method, seed), folder in folders.items():
        run = train(
            name, "uda", target, method, seed=seed, out=folder, resume=(method, seed) in begun, overwrite=overwrite,
            progress=progress, settings=settings, **asked,
        )  # fmt: skip
        runs[method].append(run)
    return DemoResult(data, target, runs)


def usual_target(data: DomainSet) -> str:
    """The domain that a user most likely wants to adapt to: one without labels, or else the last."""
    names = list(data.domains)
    return next((name for name in names if not data[name].labelled), names[-1])


def check_sources(data: DomainSet, target: str) -> None:
    """Raise, before the baseline is trained, unless both methods have the sources they need."""
    data[target]
    sources = [name for name, domain in data.domains.items() if domain.labelled and name != target]
    needed = max(find_entry(method).card.min_sources for method in METHODS)
    if len(sources) < needed:
        there = ", ".join(sources) or "none"
        raise AfieldError(
            f"FAR learns from {needed} labelled domains or more beside the target '{target}', and {data.name} has "
            f"{there}; `afield train --method dann` adapts from one"
        )
