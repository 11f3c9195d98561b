"""Running a plan: runs that are not recorded yet are trained and recorded; a failed run does not stop the others."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from afield.bench.engines import Assignment, Outcomes, Patience, Watcher
from afield.bench.folder import BenchFolder, open_folder
from afield.bench.local import work_here, work_in_processes
from afield.bench.machine import usual_workers
from afield.bench.outcome import Failed
from afield.bench.progress import BenchProgress
from afield.bench.shard import parse_shard
from afield.config.catalogue import check_sources, find_entry
from afield.config.layers import keeping
from afield.config.network import NetworkOptions
from afield.config.plan import Job, jobs_of, read_plan_file
from afield.config.selectors import check_selector
from afield.data.registry import check_data, load_data
from afield.data.task import make_task
from afield.errors import AfieldError, unknown
from afield.networks import build_backbone, check_backbone
from afield.training.loggers import check_loggers
from afield.training.processes import check_guarded

Engine = Callable[[list[Assignment], Watcher], Outcomes]


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
    plan: str | Path | Sequence[str | Path],
    out: str | Path,
    workers: int | None = None,
    *,
    shard: str | None = None,
    engine: str = "local",
    retries: int | None = None,
    stall_minutes: float | None = None,
    address: str | None = None,
    gpus_per_run: float | None = None,
    cpus_per_run: float = 1,
    keep: Sequence[str] = (),
    progress: bool = True,
) -> BenchResult:
    """Run the jobs of a plan's file that the folder `out` has no record of yet, and record them there.

    Of several plans every job is run once, plan after plan. Everything is checked before anything is trained. `shard`,
    such as "3/8", is a part of the jobs: every eighth, from the third, recorded in a folder of its own in `out`.

    The engine `local` trains on this machine: one worker in this process, several in as many processes; without a
    number, two per GPU, or one without a GPU. `ray` trains on the Ray cluster at `address`, or on this machine's own;
    each run gets `gpus_per_run` (half a GPU by default, where there are any) and `cpus_per_run`.

    A process that is killed, or makes no progress for `stall_minutes` (30 by default), is replaced, and its run is
    tried again up to `retries` times (2 by default). With one of these given, one worker too gets a process of its own.

    `keep` names selectors, such as "last", whose checkpoints are kept: a recorded run's folder then moves from `runs`
    to `kept` in `out`. Without it no checkpoint of a recorded run stays.
    """
    check_guarded()
    if workers is not None and workers < 1:
        raise AfieldError(f"a benchmark needs at least one worker, not {workers}")
    patience = Patience.asked(retries, stall_minutes)
    watched = retries is not None or stall_minutes is not None
    carry_out: Engine
    if engine == "ray":
        from afield.bench.on_ray import MISSING, Cluster, work_on_ray

        if workers is not None:
            raise AfieldError("on Ray the resources per run decide how many are at work: gpus_per_run, cpus_per_run")
        carry_out = partial(work_on_ray, cluster=Cluster(address, gpus_per_run, cpus_per_run), patience=patience)
        if find_spec("ray") is None:
            raise AfieldError(MISSING)
    elif engine == "local":
        carry_out = partial(work_locally, workers=workers, watched=watched, patience=patience)
    else:
        raise unknown("engine", engine, ("local", "ray"))
    part = None if shard is None else parse_shard(shard)
    jobs = read_plans([plan] if isinstance(plan, str | Path) else plan)
    jobs = [keeping_job(job, keep) for job in (part.of(jobs) if part else jobs)]
    with open_folder(Path(out), part, keep) as folder:
        for name in data_of(jobs):
            folder.check_data(name, load_data(name).checksum())
        missing = [job for job in jobs if not folder.holds(job)]
        check_weights(missing)
        for job in jobs:
            if folder.holds(job):
                folder.tidy(job)
        with BenchProgress(folder, jobs, missing, progress) as shown:
            try:
                failures = work(missing, folder, carry_out, shown)
                if gone := sum(folder.holds(job) and folder.lacks_checkpoints(job) for job in jobs):
                    shown.say(
                        f"note: {gone} of the recorded runs lack checkpoints to keep, which training them anew gives"
                    )
            except (KeyboardInterrupt, SystemExit):
                shown.say(f"{sum(map(folder.holds, jobs))} of {len(jobs)} runs are recorded in {folder.records}")
                raise
    return BenchResult(len(jobs), len(jobs) - len(failures), failures)


def read_plans(paths: Sequence[str | Path]) -> list[Job]:
    """Every run of some plans, checked against its data, which is loaded.

    A row's runs under a protocol are neighbours.
    """
    contents = [read_plan_file(Path(path)) for path in paths]
    for protocol in (protocol for content in contents for protocol in content.named_protocols()):
        check_data(protocol.data)
    jobs = jobs_of(contents)
    data = {name: load_data(name) for name in data_of(jobs)}
    for job in jobs:
        task, _ = make_task(data[job.config.data.name], job.config.task.kind, job.target, job.config.task.sources)
        check_sources(find_entry(job.config.method_name), len(task.sources))
        check_backbone(job.config.network.backbone)
        check_loggers(job.config.training.loggers)
    return jobs


def check_weights(jobs: Sequence[Job]) -> None:
    """Build every network that starts from weights once: weights that are not to be had would fail each of its runs.

    Those that timm downloads are downloaded here, and not by several processes at once.
    """
    seen: set[tuple[NetworkOptions, int]] = set()
    for job in jobs:
        network, image_size = job.config.network, job.config.data.image_size
        if not network.starts_trained or (network, image_size) in seen:
            continue
        seen.add((network, image_size))
        try:
            build_backbone(network, image_size)
        except AfieldError as error:
            raise AfieldError(f"{job}: {error}") from error


def keeping_job(job: Job, selectors: Sequence[str]) -> Job:
    """The same run, with a checkpoint of each of these selectors and no other: it would be written to be removed."""
    config = replace(job.config, training=job.config.training.model_copy(update={"keep": ("last",)}))
    for selector in selectors:
        check_selector(selector)
        config = keeping(config, selector)
    return replace(job, config=config)


def data_of(jobs: list[Job]) -> list[str]:
    """The names of the data sets that the runs need."""
    return list(dict.fromkeys(job.config.data.name for job in jobs))


def work_locally(
    assignments: list[Assignment], watcher: Watcher, *, workers: int | None, watched: bool, patience: Patience
) -> Outcomes:
    """On this machine, in this process or in others."""
    count = min(workers or usual_workers(assignments), len(assignments))
    if count > 1 or (count and watched):
        return work_in_processes(assignments, watcher, count, patience)
    return work_here(assignments, watcher)


def work(jobs: list[Job], folder: BenchFolder, carry_out: Engine, shown: BenchProgress) -> dict[str, str]:
    """Train and record; return the reasons of failures by the run's name."""
    failures = {}
    with closing(carry_out([(job, folder.run_folder(job)) for job in jobs], shown)) as outcomes:
        for job, outcome in outcomes:
            if isinstance(outcome, Failed):
                folder.add_failure(job, outcome)
                shown.failed(job, outcome.reason)
                failures[str(job)] = outcome.reason
            else:
                folder.add(job, outcome)
                shown.recorded(job, outcome)
    return failures
