"""Plans: the methods, targets and seeds that a benchmark runs under one protocol or several, from a TOML file."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from afield.config.catalogue import canonical_name, find_entry, list_methods
from afield.config.layers import Config, Values, by_section, completed, read_config, resolve
from afield.config.options import validated
from afield.config.outside import import_method, is_reference
from afield.config.protocols import Protocol, find_protocol
from afield.errors import AfieldError, printable, unknown

# Keys that say how a run is carried out and do not change its result.
HOW_NOT_WHAT = {
    "data": ("placement", "cache_gb", "workers"),
    "training": ("device", "execution", "checkpoint_every", "keep", "loggers"),
}
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


class PlanRow(BaseModel):
    """One row of the resulting table, or some columns of it: a method with its own settings, under its own label."""

    model_config = STRICT

    label: str
    method: str
    protocols: tuple[str, ...] = ()
    """Those of the plan's protocols that it runs under; empty: all. Rows of other protocols may have the same label."""
    settings: dict[str, Any] = {}

    def runs_under(self, protocol: Protocol) -> bool:
        """Whether it has runs under a protocol of its plan."""
        return not self.protocols or protocol.name in self.protocols


class PlanFile(BaseModel):
    """The content of a plan's file."""

    model_config = STRICT

    protocol: str = ""
    protocols: tuple[str, ...] = ()
    """Instead of `protocol`, where there are several: the table has a column for each."""
    seeds: tuple[int, ...]
    methods: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    protocol_settings: dict[str, dict[str, Any]] = {}
    """By a protocol's name, settings of all runs under it, such as the file with the weights of its network."""
    rows: tuple[dict[str, Any], ...] = ()
    caption: str = ""
    """Printed under its table: what a reader must know, such as how much each row was tuned."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if bool(self.protocol) == bool(self.protocols):
            raise ValueError("a plan names one protocol with the key protocol, or several with protocols")
        if self.targets and self.protocols:
            raise ValueError("targets are of one protocol, and this plan has several: leave them out")
        for name in self.protocol_settings:
            if name not in (names := self.protocols or (self.protocol,)):
                raise ValueError(str(unknown("protocol of protocol_settings", name, names)))
        return self

    def settings_under(self, protocol: Protocol) -> tuple[Values, ...]:
        """The settings of all runs under a protocol, as layers of a config: later ones override earlier ones."""
        return plan_settings(self.settings), plan_settings(self.protocol_settings.get(protocol.name, {}))

    def named_protocols(self) -> list[Protocol]:
        """The protocols it names, in its order."""
        names = self.protocols or (self.protocol,)
        check_once("protocol", names)
        return [find_protocol(name) for name in names]


@dataclass(frozen=True)
class Place:
    """The protocol and the row of a table that a benchmark's run belongs to."""

    protocol: str
    version: int
    label: str
    """The row's name."""


@dataclass(frozen=True)
class Job:
    """One run of a plan."""

    place: Place
    config: Config

    @property
    def target(self) -> str:
        """The domain to adapt to."""
        return str(self.config.task.target)

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.config.training.seed

    @cached_property
    def identity(self) -> str:
        """A digest that no other job has."""
        return identity(self.place.protocol, self.place.version, self.place.label, self.config.as_dict())

    @property
    def slug(self) -> str:
        """A readable folder name that no other job has."""
        label = re.sub(r"[^a-z0-9]+", "-", self.place.label.lower()).strip("-")
        return f"{label[:40]}-{self.target}-seed{self.seed}-{self.identity[:8]}"

    def __str__(self) -> str:
        return printable(f"{self.place.label} under {self.place.protocol}, target {self.target}, seed {self.seed}")


def identity(protocol: str, version: int, label: str, config: Values) -> str:
    """A digest of everything that determines a run's result, except the images."""
    decisive = {
        section: {key: value for key, value in values.items() if key not in HOW_NOT_WHAT.get(section, ())}
        for section, values in config.items()
    }
    content = json.dumps([protocol, version, label, decisive], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def identity_of_record(header: dict[str, Any]) -> str | None:
    """The identity of the job that a run's first record describes; None if this version of afield has no such job.

    Options that did not exist when the record was written count as defaults.
    """
    try:
        protocol = header["protocol"]
        return identity(protocol["name"], protocol["version"], header["label"], completed(header["config"]))
    except (AfieldError, KeyError):
        return None


def read_plan_file(path: Path) -> PlanFile:
    """Read and check a plan's file."""
    return validated(PlanFile, "plan", read_config(path))


def plan_jobs(content: PlanFile) -> list[Job]:
    """Every run of a plan, with its resolved config: protocol by protocol, row by row. The data is not looked at."""
    named, rows = content.named_protocols(), plan_rows(content)
    check_once("seed", content.seeds)
    jobs = []
    for protocol in named:
        targets = content.targets or protocol.targets
        for target in targets:
            if target not in protocol.targets:
                raise unknown(f"target of {protocol.name}", target, protocol.targets)
        own = [row for row in rows if row.runs_under(protocol)]
        check_once("target", targets)
        check_once("row", [row.label for row in own])
        settings = content.settings_under(protocol)
        jobs += [make_job(protocol, row, t, s, settings) for row, t, s in product(own, targets, content.seeds)]
    check_labels(rows)
    return jobs


def jobs_of(contents: Sequence[PlanFile]) -> list[Job]:
    """Every run of several plans that share a folder, each once."""
    found: dict[str, Job] = {}
    for job in (job for content in contents for job in plan_jobs(content)):
        found.setdefault(job.identity, job)
    check_labels(row for content in contents for row in plan_rows(content))
    return list(found.values())


def plan_rows(content: PlanFile) -> list[PlanRow]:
    """One row per method, under its own name, then the labelled rows."""
    # First, because a label is compared with the names of all methods, those from outside too.
    methods = [method_named(name) for name in content.methods]
    labelled = [validated(PlanRow, f"plan.rows.{number}", row) for number, row in enumerate(content.rows)]
    labelled = [row.model_copy(update={"method": method_named(row.method)}) for row in labelled]
    for row in labelled:
        if canonical_name(row.label) in list_methods():
            raise AfieldError(f"row '{row.label}': that is a method's name; a row with settings needs another label")
        for name in row.protocols:
            if name not in (names := content.protocols or (content.protocol,)):
                raise unknown(f"protocol of row '{row.label}'", name, names)
    rows = [*(PlanRow(label=name, method=name) for name in methods), *labelled]
    if not (rows and content.seeds):
        raise AfieldError("a plan needs at least one method and one seed: methods, seeds")
    return rows


def check_labels(rows: Iterable[PlanRow]) -> None:
    """Raise if a label stands for two methods; a method and its presets are one."""
    seen: dict[str, str] = {}
    for row in rows:
        base = find_entry(row.method).card.name
        if seen.setdefault(row.label, base) != base:
            raise AfieldError(f"row '{row.label}' stands for two methods: {seen[row.label]} and {base}")


def method_named(given: str) -> str:
    """A method's name as tables write it; a plan may also say where a method is, which is then imported."""
    return import_method(given) if is_reference(given) else canonical_name(given)


def check_once(what: str, names: Iterable[object]) -> None:
    """Raise if a name is listed twice."""
    names = list(names)
    for name in names:
        if names.count(name) > 1:
            raise AfieldError(f"the plan names {what} '{name}' twice")


def make_job(protocol: Protocol, row: PlanRow, target: str, seed: int, settings: tuple[Values, ...]) -> Job:
    """One run, with its resolved config."""
    fixed: Values = {
        "data": {"name": protocol.data, "preset": protocol.preset},
        "task": {"kind": protocol.task, "target": target, "sources": list(protocol.sources)},
        "method": {"name": row.method}, "training": {"seed": seed},
    }  # fmt: skip
    try:
        config = resolve(*settings, plan_settings(row.settings), fixed)
    except AfieldError as error:
        raise AfieldError(f"row '{row.label}': {error}") from error
    if config.training.devices * config.training.nodes > 1:
        raise AfieldError(
            f"row '{row.label}': a benchmark trains each run on one device: training.devices and nodes must be 1"
        )
    return Job(Place(protocol.name, protocol.version, row.label), config)


def plan_settings(settings: dict[str, Any]) -> Values:
    """A plan's settings as a layer of a config; keys that the plan itself decides are refused."""
    values = by_section(settings)
    for section, keys in values.items():
        for name in keys:
            if section in ("data", "task") or (section, name) in (("method", "name"), ("training", "seed")):
                raise AfieldError(f"the plan itself decides {section}.{name}; it cannot be a setting")
    return values
