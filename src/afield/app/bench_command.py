"""The command `afield bench`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from afield.app.completion import one_of
from afield.config.selectors import check_selector
from afield.errors import AfieldError, printable, unknown

# The options that not every engine has.
OWN_OPTIONS = {
    "local": {"--workers", "--shard", "--retries", "--stall", "--keep"},
    "ray": {"--shard", "--retries", "--stall", "--keep", "--address", "--gpus-per-run", "--cpus-per-run"},
    "slurm": {"--workers", "--retries", "--stall", "--keep", "--shards", "--sbatch", "--submit"},
}


def bench(
    plans: Annotated[
        list[Path],
        typer.Argument(metavar="PLAN...", help="TOML files: protocol, methods, seeds. Each run is made once."),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the records; several plans may share one.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time; default: 2 per GPU, or 1 without a GPU.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="3/8", help="Take a part of the plan's runs: 3/8 is every eighth, from the third."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Train nothing: list the runs, which are recorded, and how long the others take."
        ),
    ] = False,
    like: Annotated[
        list[Path] | None,
        typer.Option(metavar="RECORDS", help="More records for --dry-run to estimate from; may be repeated."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="local|ray|slurm",
            help="Train on this machine, on a Ray cluster, or under Slurm.",
            autocompletion=one_of(OWN_OPTIONS),
        ),
    ] = "local",
    retries: Annotated[
        int | None, typer.Option(min=0, help="How often a run is tried again after its process was lost; default: 2.")
    ] = None,
    stall: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="A run without progress for so long counts as hung; default: 30."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SELECTOR", help="Keep each run's checkpoint of this selector, such as last; may be repeated."
        ),
    ] = None,
    address: Annotated[str | None, typer.Option(help="ray: the cluster; default: the one Ray finds.")] = None,
    gpus_per_run: Annotated[
        float | None, typer.Option(help="ray: GPUs of a run, such as 0.25; default: 0.5 where there are any.")
    ] = None,
    cpus_per_run: Annotated[float | None, typer.Option(help="ray: processors of a run; default: 1.")] = None,
    shards: Annotated[int | None, typer.Option(help="slurm: tasks of the array, one shard each.")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="slurm: an option of sbatch, such as --time=04:00:00; may be repeated."),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="slurm: submit the script, too.")] = False,
) -> None:
    """Train the methods, targets and seeds of plans that are not recorded yet, and record the results."""
    given = {
        "--workers": workers, "--shard": shard, "--retries": retries, "--stall": stall, "--keep": keep or None,
        "--address": address, "--gpus-per-run": gpus_per_run, "--cpus-per-run": cpus_per_run, "--shards": shards,
        "--sbatch": sbatch, "--submit": submit or None,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if like and not dry_run:
        raise AfieldError("--like is for --dry-run alone")
    if engine not in OWN_OPTIONS:
        raise unknown("engine", engine, OWN_OPTIONS)
    for name in given:
        if name not in OWN_OPTIONS[engine]:
            having = [other for other, own in OWN_OPTIONS.items() if name in own]
            raise AfieldError(
                f"the engine {engine} has no {name}; {' and '.join(having)} {'have' if having[1:] else 'has'}"
            )
    for selector in keep or []:
        check_selector(selector)
    if dry_run:
        list_runs(plans, folder, shard, workers, like or [])
        return
    if engine == "slurm":
        write_script(plans, folder, shards, sbatch or [], given, submit)
        return
    named = {
        "engine": engine, "workers": workers, "shard": shard, "retries": retries, "stall_minutes": stall,
        "keep": keep, "address": address, "gpus_per_run": gpus_per_run, "cpus_per_run": cpus_per_run,
    }  # fmt: skip
    train_runs(plans, folder, {name: value for name, value in named.items() if value is not None})


def list_runs(plans: list[Path], folder: Path, shard: str | None, workers: int | None, like: list[Path]) -> None:
    """What --dry-run does."""
    from afield.bench.estimate import dry_run
    from afield.bench.shard import parse_shard

    if folder.exists() and not folder.is_dir():
        raise AfieldError(f"{folder} is not a folder")
    for line in dry_run(plans, folder, None if shard is None else parse_shard(shard), like).lines(workers):
        print(printable(line))


def write_script(
    plans: list[Path], folder: Path, shards: int | None, options: list[str], given: dict[str, Any], submitted: bool
) -> None:
    """What --engine slurm does."""
    from afield.bench.engines import Patience
    from afield.bench.slurm import Array, submit

    if shards is None:
        raise AfieldError("the engine slurm needs a number of shards, such as --shards 8")
    patience = Patience.asked(given.get("--retries"), given.get("--stall"))
    given = {"--retries": patience.retries} | given  # with it, each run of a task trains in a process of its own
    passed_on = ("--workers", "--retries", "--stall")
    words = [word for name in passed_on if name in given for word in (name, str(given[name]))]
    words += [word for selector in given.get("--keep", ()) for word in ("--keep", selector)]
    script = Array(plans, folder, shards, options, words).write()
    print(submit(script) if submitted else f"sbatch {script} submits it; afield table {folder} shows what it records")


def train_runs(plans: list[Path], folder: Path, options: dict[str, Any]) -> None:
    """What the other engines do."""
    from afield.bench.run import run_bench

    result = run_bench(plans, folder, **options)
    of_shard = f" of shard {options['shard']}" if "shard" in options else ""
    tables = " and ".join(f"afield table {folder} --plan {plan}" for plan in plans)
    show = "show" if len(plans) > 1 else "shows"
    print(f"{result.recorded} of {result.total} runs{of_shard} are recorded; {tables} {show} them")
    for run, reason in result.failures.items():
        print(f"failed: {run}: {printable(reason)}", file=sys.stderr)
    if result.failures:
        raise typer.Exit(1)
