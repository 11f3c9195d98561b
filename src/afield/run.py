"""One run from names to result: resolve the config, load the data, build the method, train, read the records."""

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from afield import __version__
from afield.batches import Preprocessing
from afield.catalogue import check_sources, find_entry
from afield.config import Config, Values, merge, read_config, resolve
from afield.domains import DomainSet, check_data, load_data, make_task
from afield.errors import AfieldError
from afield.methods import Method, Shape
from afield.networks import normalisation
from afield.records import Record, evaluations, read_records
from afield.selection import check_headline, select, source_score
from afield.training import Loop, Plan, RunFolder, isolated_generators, make_fabric

RECORDED_VERSIONS = ("timm", "lightning", "numpy")


@dataclass(frozen=True)
class Run:
    """A finished run, seen through a selector."""

    folder: Path
    selector: str
    evaluation: Record
    """The evaluation the selector chose."""
    records: list[Record]

    @property
    def accuracy(self) -> dict[str, float]:
        """Test accuracy (0 to 1) by domain, of the sources and the target."""
        results = {**self.evaluation["sources"], **self.evaluation["oracle"]}
        return {name: result["accuracy"] for name, result in results.items()}

    @property
    def source_accuracy(self) -> float:
        """Mean over the sources."""
        return source_score(self.evaluation)

    @property
    def step(self) -> int:
        """The step the selector chose."""
        return int(self.evaluation["step"])

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of that step."""
        files = RunFolder(self.folder)
        return files.last if self.selector == "last" else files.best

    @property
    def seconds(self) -> float:
        """How long the whole run trained."""
        return float(self.records[-1]["seconds"])

    def select(self, selector: str) -> "Run":
        """The same run through another selector."""
        return read_run(self.folder, selector)


def read_run(folder: Path, selector: str = "last") -> Run:
    """The result of a finished run from the records in its folder."""
    check_headline(selector)
    records = read_records(RunFolder(folder).records)
    if not records or records[-1]["event"] != "end":
        raise AfieldError(f"the run in {folder} has not ended; --resume continues it")
    return Run(folder, selector, select(evaluations(records), selector), records)


def train(
    data: str | None = None,
    task: str | None = None,
    target: str | None = None,
    method: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    out: str | Path = "",
    *,
    sources: list[str] | None = None,
    config: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    selector: str = "last",
    progress: bool = True,
    show_config: bool = False,
) -> Run:
    """Train a method on a task and return its result.

    What is not given comes from `config` (a TOML file), then from the presets of the data set and the method.
    `settings` sets single keys, such as {"method.align_weight": 0.3}, and ranks above all else. `out` is the run's
    folder; one that holds a run is an error unless `resume` or `overwrite` decides. `progress` shows a bar, and
    `show_config` the resolved config, on standard error.
    """
    if str(out) in ("", "."):
        raise AfieldError("a run needs a folder of its own to write to: out")
    named: Values = {
        "data": {"name": data}, "task": {"kind": task, "target": target, "sources": sources},
        "method": {"name": method}, "training": {"steps": steps, "seed": seed},
    }  # fmt: skip
    layers = config_layers(config, named, settings or {})
    resolved = choose_config(layers, Path(out), resume=resume, overwrite=overwrite)
    check_headline(selector)
    carry_out = partial(_carry_out, resolved, Path(out), resume, progress, show_config)
    if resolved.training.devices == 1:
        carry_out(None)
    elif failure := make_fabric(resolved.training).launch(partial(_take_part, carry_out)):
        raise AfieldError(failure)
    return read_run(Path(out), selector)


def _carry_out(
    config: Config, out: Path, resume: bool, progress: bool, show_config: bool, fabric: Fabric | None
) -> None:
    with opened(config, out, resume=resume, progress=progress, fabric=fabric) as loop:
        if not loop.ended:
            if show_config and loop.leads:
                print(config.as_toml(), file=sys.stderr)
            loop.run()


def _take_part(carry_out: Callable[[Fabric], None], fabric: Fabric) -> str | None:
    """One process's part of a run of several; why it failed, if it did: an error would arrive as a stack of traces."""
    try:
        carry_out(fabric)
    except AfieldError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Place:
    """Where a benchmark's run stands in a table."""

    protocol: str
    version: int
    label: str
    """The row's name."""


@contextmanager
def opened(
    config: Config, out: Path, *, resume: bool, progress: bool, place: Place | None = None, fabric: Fabric | None = None
) -> Iterator[Loop]:
    """A loop that stands ready in its folder, begun anew or gone back to its last checkpoint."""
    data = load_data(config.data.name)
    with isolated_generators(config.training):
        loop = Loop(make_plan(config, data), RunFolder(out), progress, fabric)
        header = make_header(config, data, loop.device, place)
        # Everything has been checked: only now is anything written.
        (loop.resume if resume else loop.start)(header)
        yield loop


def config_layers(file: str | Path | None, named: Values, settings: dict[str, Any]) -> list[Values]:
    """What a user gave, lowest rank first: a file, named arguments (None is not given), single `section.key`s."""
    given = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in named.items()}
    return [read_config(Path(file)) if file else {}, given, _by_section(settings)]


def choose_config(layers: list[Values], out: Path, *, resume: bool, overwrite: bool) -> Config:
    """The config a run in this folder has: resolved from what was given, or the stored one of a run to resume."""
    folder = RunFolder(out)
    folder.check(resume, overwrite)
    if not resume:
        config = resolve(*layers)
        check_data(config.data.name)
        return config
    stored = read_config(folder.config)
    resolve(stored, *layers)  # for its errors: a misspelt key is not a contradicting one
    config = resolve(stored)
    check_same(config, merge(*layers))
    return config


def check_same(config: Config, given: Values) -> None:
    """Raise if a resumed run is asked to be another run than the one stored."""
    stored = config.as_dict()
    for section, values in given.items():
        for key, value in values.items():
            has = stored[section].get(key)
            if has != (list(value) if isinstance(value, tuple) else value):
                raise AfieldError(f"cannot resume with {section}.{key} = {value}: the run there was begun with {has}")


def make_plan(config: Config, data: DomainSet) -> Plan:
    """The task, the method with fresh weights, and what else a loop needs."""
    task, views = make_task(data, config.task.kind, config.task.target, config.task.sources)
    check_sources(find_entry(config.method_name), len(task.sources))
    method = build_method(config, data.image_size, len(data.classes), len(task.sources))
    preprocessing = Preprocessing(data.image_size, *normalisation(config.network))
    return Plan(config.method_name, method, task, views, preprocessing, config.training, config.as_dict())


def build_method(config: Config, image_size: int, num_classes: int, num_sources: int) -> Method:
    """The config's method, with fresh weights."""
    shape = Shape(config.network, image_size, num_classes, num_sources)
    return find_entry(config.method_name).registration.method(shape, config.method)


def make_header(config: Config, data: DomainSet, device: torch.device, place: Place | None = None) -> Record:
    """The first line of a run's records. Only a benchmark's runs have a label and a protocol by name."""
    label = {"label": place.label} if place else {}
    protocol = {"name": place.protocol, "version": place.version} if place else {}
    stand_ins = [name for name, domain in data.domains.items() if domain.stand_in]
    return {
        "event": "run",
        **label,
        "config": config.as_dict(),
        "protocol": {
            **protocol,
            "data": data.name,
            "checksum": data.checksum(),
            "test_images": _test_counts(data),
            **({"stand_ins": stand_ins} if stand_ins else {}),
        },
        "versions": {
            "afield": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: version(name) for name in RECORDED_VERSIONS},
        },
        "seed": config.training.seed,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
    }


def _test_counts(data: DomainSet) -> dict[str, int]:
    return {name: len(domain.test) for name, domain in data.domains.items()}


def _by_section(settings: dict[str, Any]) -> Values:
    values: Values = {}
    for path, value in settings.items():
        section, dot, key = path.partition(".")
        if not dot:
            raise AfieldError(f"a setting's name is section.key, not '{path}'")
        values.setdefault(section, {})[key] = value
    return values
