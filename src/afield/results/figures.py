"""From records to figures: one accuracy per run, chosen by a selector that does not use the target's labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from afield.config.plan import PlanFile, identity_of_record, plan_jobs
from afield.config.protocols import Protocol, protocols
from afield.config.selectors import check_selector
from afield.errors import AfieldError, printable, unknown
from afield.results.records import Record, evaluations, read_runs, record_files
from afield.results.selection import select, target_score
from afield.results.settings import unusual_settings

UNNAMED = "none"
# These must be equal in all records of a table, or its figures could not be compared.
COMPARABLE = {"version": "versions of the protocol", "data": "data sets", "checksum": "images of the data set"}


@dataclass(frozen=True)
class Figure:
    """The result of one run."""

    label: str
    method: str
    target: str
    seed: int
    preset: str
    """The preset of its data, which says what the usual settings are."""
    settings: dict[str, str]
    """The settings that differ from those of its protocol and its method."""
    accuracy: float
    """On the target's test images, in percent, at the evaluation that the selector chose."""


@dataclass(frozen=True)
class Figures:
    """The results of runs that can be compared in one table."""

    runs: list[Figure]
    header: Record
    """The protocol as stored in the records."""
    protocol: Protocol | None
    """The protocol as defined in this version of afield; None if it is not."""
    planned: tuple[str, ...] = ()
    """The targets that the plan names, if there is a plan and it names any."""

    @property
    def targets(self) -> list[str]:
        """The targets to average over: those of the plan, else of the protocol, else those with results."""
        there = {figure.target for figure in self.runs}
        wanted = self.planned or (self.protocol.targets if self.protocol else ())
        if wanted:
            return list(dict.fromkeys([*wanted, *sorted(there)]))
        return [name for name in dict.fromkeys([*self.header.get("test_images", {}), *sorted(there)]) if name in there]


def read_figures(
    paths: Sequence[Path], selector: str, wanted: str | None = None, plan: PlanFile | None = None
) -> Figures:
    """The figures of all finished runs in some files of records, or folders with one, of one protocol or plan."""
    check_selector(selector)
    if wanted and plan:
        raise AfieldError("a plan names its protocol: plan and protocol cannot both be given")
    try:
        runs = [run for path in paths for run in runs_at(path)]
        runs = of_one_protocol(of_plan(runs, plan) if plan else runs, wanted)
        header: Record = {"data": runs[0][0]["protocol"]["data"], **runs[0][0]["protocol"]}
        protocol = protocols().get(header.get("name", UNNAMED))
        if protocol and protocol.version != header["version"]:
            protocol = None
        figures = distinct([make_figure(run, selector, protocol) for run in runs])
        return Figures(figures, header, protocol, plan.targets if plan else ())
    except KeyError as error:
        raise lacking(error) from error


def read_figures_by_protocol(paths: Sequence[Path], selector: str, plan: PlanFile) -> dict[str, Figures]:
    """The figures of a plan's finished runs by protocol, in the plan's order; protocols without a run are left out."""
    check_selector(selector)
    try:
        runs = of_plan([run for path in paths for run in runs_at(path)], plan)
        found = {}
        for protocol in plan.named_protocols():
            own = [run for run in runs if run[0]["protocol"]["name"] == protocol.name]
            if own:
                check_comparable(own)
                figures = distinct([make_figure(run, selector, protocol) for run in own])
                found[protocol.name] = Figures(figures, own[0][0]["protocol"], protocol)
        return found
    except KeyError as error:
        raise lacking(error) from error


def lacking(error: KeyError) -> AfieldError:
    """The error in records that have no such key."""
    return AfieldError(f"these records lack {error}, which a table needs")


def runs_at(path: Path) -> list[list[Record]]:
    """The finished runs in a file of records, or in a folder with one, or with those of a benchmark's shards."""
    files = (record_files(path) or [path / "records.jsonl"]) if path.is_dir() else [path]
    runs = [run for file in files for run in read_runs(file)]
    if not runs:
        raise AfieldError(f"{files[0]} holds no finished run")
    return runs


def of_plan(runs: list[list[Record]], plan: PlanFile) -> list[list[Record]]:
    """The runs that belong to a plan, in its order."""
    places = {job.identity: place for place, job in enumerate(plan_jobs(plan))}
    found = [(places[identity], run) for run in runs if (identity := identity_of_record(run[0])) in places]
    if not found:
        raise AfieldError("these records hold no run of the plan")
    return [run for _, run in sorted(found, key=itemgetter(0))]


def of_one_protocol(runs: list[list[Record]], wanted: str | None) -> list[list[Record]]:
    """The runs of the wanted protocol, or of the only one; an error if they cannot be compared."""
    by_name: dict[str, list[list[Record]]] = {}
    for run in runs:
        by_name.setdefault(run[0]["protocol"].get("name", UNNAMED), []).append(run)
    if wanted is None and len(by_name) > 1:
        raise AfieldError(f"these are records of several protocols: {', '.join(by_name)}; choose one with protocol")
    if wanted is not None and wanted not in by_name:
        raise unknown("protocol in these records", wanted, by_name)
    chosen = by_name[wanted] if wanted else runs
    check_comparable(chosen)
    return chosen


def check_comparable(runs: list[list[Record]]) -> None:
    """Raise if runs of one protocol are of different images, or of different versions of it."""
    for key, what in COMPARABLE.items():
        if len({run[0]["protocol"].get(key) for run in runs}) > 1:
            raise AfieldError(f"these records cannot be in one table: they are of different {what}")


def make_figure(records: list[Record], selector: str, protocol: Protocol | None) -> Figure:
    """The figure of one run, from its records."""
    config = records[0]["config"]
    method, seed, target = config["method"]["name"], config["training"]["seed"], config["task"].get("target", "")
    label = records[0].get("label", method)
    if not evaluations(records):
        raise AfieldError(f"a run of {label} with seed {seed} has no evaluation")
    chosen = select(evaluations(records), selector)
    if not chosen["target"]:
        raise AfieldError(f"a run of {label} with seed {seed} has no target, and a table is about targets")
    if any(result["accuracy"] is None for result in chosen["target"].values()):
        raise AfieldError(f"target '{target}' of {label} with seed {seed} has no labels, and a table is about accuracy")
    settings = unusual_settings(config, protocol)
    accuracy, preset = 100 * target_score(chosen), config["data"]["preset"]
    return Figure(printable(label), method, printable(target), seed, preset, settings, accuracy)


def distinct(runs: list[Figure]) -> list[Figure]:
    """Each run once, however often it is recorded; an error if two records of a run differ."""
    found: dict[tuple[Any, ...], Figure] = {}
    for run in runs:
        key = (run.label, run.target, run.seed, *run.settings.items())
        if found.setdefault(key, run).accuracy != run.accuracy:
            which = f"{run.label}, target {run.target}, seed {run.seed}"
            raise AfieldError(f"{which} is recorded twice, with different results")
    return list(found.values())
