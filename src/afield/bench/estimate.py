"""What plans have still to train, and how long that may take by the records of like runs. Nothing is trained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afield.bench.folder import begun_in, shard_folders
from afield.bench.shard import Shard
from afield.config.plan import Job, identity_of_record, jobs_of, read_plan_file
from afield.errors import AfieldError
from afield.results.figures import runs_at
from afield.results.folder import RunFolder
from afield.results.records import Record, end_of, evaluations, read_records, read_runs, record_files

SECONDS_PER_HOUR = 3600
Kind = tuple[str, str]  # a protocol and a method: runs of one kind take equally long per step


@dataclass
class Pace:
    """How fast recorded runs of one kind were."""

    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    devices: set[str] = field(default_factory=set)

    def add(self, run: list[Record]) -> None:
        """Count one more run."""
        end = end_of(run) or {}
        self.runs += 1
        self.steps += end["step"]
        self.seconds += end["seconds"]
        self.devices.add(run[0].get("device", "an unknown device"))


@dataclass(frozen=True)
class Forecast:
    """One job of a plan: whether it is recorded, has begun or is yet to train, and how long it will take."""

    job: Job
    state: str
    hours: float | None
    """How many hours are left; None if nothing is, or if there is no record to estimate from."""


@dataclass(frozen=True)
class DryRun:
    """All that `afield bench --dry-run` says."""

    forecasts: list[Forecast]
    paces: dict[Kind, Pace]
    """The records that the estimates are from."""

    def lines(self, workers: int | None = None) -> list[str]:
        """A line per job, and what they come to."""
        width = len("to train")
        each = [f"{one.state:{width}}  {_hours(one):>8}  {one.job}" for one in self.forecasts]
        left = [one for one in self.forecasts if one.state != "recorded"]
        lines = [*each, f"{len(each) - len(left)} of {len(each)} runs are recorded, {len(left)} to go"]
        known = [one.hours for one in left if one.hours is not None]
        if known:
            some = "" if len(known) == len(left) else f" for {len(known)} of them"
            devices = " and ".join(sorted(set().union(*(pace.devices for pace in self.paces.values()))))
            runs = sum(pace.runs for pace in self.paces.values())
            at_a_time = f"; {sum(known) / workers:.2f} with {workers} at a time" if workers else ""
            lines.append(
                f"about {sum(known):.2f} hours of training{some}, by {runs} recorded runs on {devices}{at_a_time}"
            )
        unknown: dict[str, dict[str, None]] = {}
        for one in left:
            if one.hours is None:
                protocol, method = kind_of(one.job)
                unknown.setdefault(protocol, {})[method] = None
        lines += [f"nothing to estimate from under {name}: {', '.join(methods)}" for name, methods in unknown.items()]
        return lines


def dry_run(plans: Sequence[Path], out: Path, shard: Shard | None = None, like: Sequence[Path] = ()) -> DryRun:
    """What plans have to do in a folder. `like` are more records to estimate from, beside those of the folder."""
    jobs = jobs_of([read_plan_file(plan) for plan in plans])
    jobs = shard.of(jobs) if shard else jobs
    own = [run for file in record_files(out) for run in read_runs(file)]
    recorded = {identity_of_record(run[0]) for run in own}
    kinds = {kind_of(job) for job in jobs if job.identity not in recorded}
    paces = paces_of([*own, *(run for path in like for run in runs_at(path))])
    paces = {kind: pace for kind, pace in paces.items() if kind in kinds}
    places = [out / shard.folder] if shard else []
    places += [place for place in (out, *shard_folders(out)) if place not in places]
    return DryRun([_forecast(job, job.identity in recorded, begun_in(places, job), paces) for job in jobs], paces)


def paces_of(runs: Iterable[list[Record]]) -> dict[Kind, Pace]:
    """How fast recorded runs of each kind were. Runs of `afield train` have no protocol, and are left out."""
    paces: dict[Kind, Pace] = {}
    try:
        for run in runs:
            if "name" in run[0]["protocol"]:
                kind = run[0]["protocol"]["name"], run[0]["config"]["method"]["name"]
                paces.setdefault(kind, Pace()).add(run)
    except (KeyError, TypeError) as error:
        raise AfieldError(f"these records lack {error}, which an estimate needs") from error
    return paces


def kind_of(job: Job) -> Kind:
    """The kind of a job; jobs of one kind differ only in target, seed and settings."""
    return job.place.protocol, job.config.method_name


def _forecast(job: Job, recorded: bool, folder: Path | None, paces: dict[Kind, Pace]) -> Forecast:
    if recorded:
        return Forecast(job, "recorded", None)
    begun, pace = _steps_evaluated(folder) if folder else None, paces.get(kind_of(job))
    left = job.config.training.steps - (begun or 0)
    hours = pace.seconds / pace.steps * left / SECONDS_PER_HOUR if pace and pace.steps else None
    return Forecast(job, "to train" if begun is None else "begun", hours)


def _steps_evaluated(folder: Path) -> int | None:
    """How far a run has come, as far as its evaluations tell; None if it has not begun."""
    try:
        found = evaluations(read_records(RunFolder(folder).records))
    except AfieldError:
        return None
    return int(found[-1]["step"]) if found else 0


def _hours(one: Forecast) -> str:
    if one.state == "recorded":
        return ""
    return "?" if one.hours is None else f"{one.hours:.2f} h"
