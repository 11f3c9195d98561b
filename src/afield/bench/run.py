"""Running a plan: runs that are not recorded yet are trained and recorded; a failed run does not stop the others."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from afield.bench.engines import usual_workers, work_here, work_in_processes
from afield.bench.folder import BenchFolder, open_folder
from afield.bench.outcome import Failed
from afield.bench.progress import BenchProgress
from afield.bench.shard import parse_shard
from afield.config.catalogue import check_sources, find_entry
from afield.config.plan import Job, plan_jobs, read_plan_file
from afield.data.registry import check_data, load_data
from afield.data.task import make_task
from afield.errors import AfieldError
from afield.networks import check_backbone
from afield.training.processes import check_guarded


@dataclass(frozen=True)
class BenchResult:
    """The result of `run_bench`."""

    total: int
    """The number of runs in the plan, or in its shard."""
    recorded: int
    """How many of them are recorded now."""
    failures: dict[str, str]
    """Why the others failed, by the run's name."""


def run_bench(
    plan: str | Path,
    out: str | Path,
    workers: int | None = None,
    *,
    shard: str | None = None,
    progress: bool = True,
) -> BenchResult:
    """Run the jobs of a plan's file that the folder `out` has no record of yet, and record them there.

    Everything is checked before anything is trained. One worker trains in this process; several train in as many
    processes. Without a number: two per GPU, or one without a GPU. `shard`, such as "3/8", is a part of the plan: every
    eighth of its jobs, from the third, recorded in a folder of its own in `out`.
    """
    check_guarded()
    if workers is not None and workers < 1:
        raise AfieldError(f"a benchmark needs at least one worker, not {workers}")
    part = parse_shard(shard) if shard else None
    jobs = read_plan(Path(plan))
    jobs = part.of(jobs) if part else jobs
    with open_folder(Path(out), part) as folder:
        for name in data_of(jobs):
            folder.check_data(name, load_data(name).checksum())
        missing = [job for job in jobs if not folder.holds(job)]
        for job in jobs:
            if folder.holds(job):
                folder.tidy(job)
        with BenchProgress(folder, jobs, missing, progress) as shown:
            try:
                failures = work(missing, folder, workers, shown)
            except KeyboardInterrupt:
                shown.say(f"{sum(map(folder.holds, jobs))} of {len(jobs)} runs are recorded in {folder.records}")
                raise
    return BenchResult(len(jobs), len(jobs) - len(failures), failures)


def read_plan(path: Path) -> list[Job]:
    """Every run of a plan, checked against its data, which is loaded. A row's runs under a protocol are neighbours."""
    content = read_plan_file(path)
    for protocol in content.named_protocols():
        check_data(protocol.data)
    jobs = plan_jobs(content)
    data = {name: load_data(name) for name in data_of(jobs)}
    for job in jobs:
        task, _ = make_task(data[job.config.data.name], job.config.task.kind, job.target, job.config.task.sources)
        check_sources(find_entry(job.config.method_name), len(task.sources))
        check_backbone(job.config.network.backbone)
    return jobs


def data_of(jobs: list[Job]) -> list[str]:
    """The names of the data sets that the runs need."""
    return list(dict.fromkeys(job.config.data.name for job in jobs))


def work(jobs: list[Job], folder: BenchFolder, workers: int | None, shown: BenchProgress) -> dict[str, str]:
    """Train and record; return the reasons of failures by the run's name."""
    failures = {}
    assignments = [(job, folder.run_folder(job)) for job in jobs]
    count = min(workers or usual_workers(assignments), len(assignments))
    outcomes = work_in_processes(assignments, shown.begun, count) if count > 1 else work_here(assignments, shown.begun)
    with closing(outcomes):
        for job, outcome in outcomes:
            if isinstance(outcome, Failed):
                folder.add_failure(job, outcome)
                shown.failed(job, outcome.reason)
                failures[str(job)] = outcome.reason
            else:
                folder.add(job, outcome)
                shown.recorded(job, outcome)
    return failures
