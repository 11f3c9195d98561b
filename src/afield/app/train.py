"""`afield.train`: one run from what a user asks for to its result."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from afield.config.data import DataOptions
from afield.config.layers import Config, Values, by_section, check_same, merge, read_config, resolve, stack
from afield.config.options import validated
from afield.data.domain import DomainSet
from afield.data.open import open_data, suggested_settings
from afield.errors import AfieldError
from afield.files import check_unlocked
from afield.results.folder import WHO, RunFolder
from afield.results.run import Run, read_run
from afield.results.selection import check_headline
from afield.training.assemble import opened
from afield.training.loop import make_fabric


def train(
    data: "str | Path | DomainSet | None" = None,
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

    `data` is the name of a data set, a folder DOMAIN/CLASS/*.jpg, a manifest (.csv, .parquet), `hf:NAME`, or a
    `DomainSet`, such as `afield.from_arrays` makes. What is not given comes from `config` (a TOML file), then from the
    presets of the data and the method. `settings` sets single keys, such as {"method.align_weight": 0.3}, and ranks
    above all else. `out` is the run's folder; one that holds a run is an error unless `resume` or `overwrite` decides.
    `progress` shows a bar, and `show_config` the resolved config, on standard error.
    """
    if str(out) in ("", "."):
        raise AfieldError("a run needs a folder of its own to write to: out")
    check_headline(selector)
    folder = RunFolder(Path(out))
    check_unlocked(folder.path, WHO)
    folder.check(resume, overwrite)
    name = data.name if isinstance(data, DomainSet) else (None if data is None else str(data))
    named: Values = {
        "data": {"name": name}, "task": {"kind": task, "target": target, "sources": sources},
        "method": {"name": method}, "training": {"steps": steps, "seed": seed},
    }  # fmt: skip
    given = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in named.items()}
    layers = [read_config(Path(config)) if config else {}, given, by_section(settings or {})]
    stored = [read_config(folder.config)] if resume else []
    resolve(*stored, *layers)  # for its errors, before anything is loaded
    source = data if isinstance(data, DomainSet) else data_options(*stored, *layers)
    resolved = choose_config(_opened(source), layers, stored)
    carry_out = partial(_carry_out, resolved, source, Path(out), resume, overwrite, progress, show_config)
    if resolved.training.devices == 1:
        carry_out(None)
    elif failure := make_fabric(resolved.training).launch(partial(_take_part, carry_out)):
        raise AfieldError(failure)
    return read_run(Path(out), selector)


def data_options(*layers: Values) -> DataOptions:
    """What layers of a config say of the data."""
    return validated(DataOptions, "data", stack(layers)["data"])


def choose_config(domains: DomainSet, layers: list[Values], stored: list[Values]) -> Config:
    """The config of a run: what suits the data, below what was given; or the stored one of a run to resume."""
    if not stored:
        return resolve(suggested_settings(domains, data_options(*layers)), *layers)
    config = resolve(*stored)
    check_same(config, merge(*layers))
    return config


def _carry_out(
    config: Config,
    source: DomainSet | DataOptions,
    out: Path,
    resume: bool,
    overwrite: bool,
    progress: bool,
    show_config: bool,
    fabric: Fabric | None,
) -> None:
    data = _opened(source)
    with opened(config, data, out, resume=resume, overwrite=overwrite, progress=progress, fabric=fabric) as loop:
        if not loop.ended:
            if show_config and loop.leads:
                print(config.as_toml(), file=sys.stderr)
            loop.run()


def _opened(source: DomainSet | DataOptions) -> DomainSet:
    """The data; by options, where several processes train, so that images do not travel between them."""
    return source if isinstance(source, DomainSet) else open_data(source)


def _take_part(carry_out: Callable[[Fabric], None], fabric: Fabric) -> str | None:
    """One process's part of a run of several; why it failed, if it did: an error would arrive as a stack of traces."""
    try:
        carry_out(fabric)
    except AfieldError as error:
        return str(error)
    return None
