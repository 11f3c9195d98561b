"""The command `afield bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from afield.errors import AfieldError


def bench(
    plan: Annotated[Path, typer.Argument(help="A TOML file: protocol, methods, seeds.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the records; several plans may share one.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time; default: 2 per GPU, or 1 without a GPU.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="3/8", help="Take only every eighth of the plan's runs, from the third.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: list the runs, what is recorded, and how long is left.")
    ] = False,
    like: Annotated[
        list[Path] | None,
        typer.Option(metavar="RECORDS", help="More records for --dry-run to estimate from; may be repeated."),
    ] = None,
) -> None:
    """Train the methods, targets and seeds of a plan that are not recorded yet, and record the results."""
    if like and not dry_run:
        raise AfieldError("--like is for --dry-run alone")
    if dry_run:
        from afield.bench.estimate import dry_run as look_ahead
        from afield.bench.shard import parse_shard

        for line in look_ahead(plan, folder, parse_shard(shard) if shard else None, like or ()).lines(workers):
            print(line)
        return
    from afield.bench.run import run_bench

    result = run_bench(plan, folder, workers, shard=shard)
    of_shard = f" of shard {shard}" if shard else ""
    print(
        f"{result.recorded} of {result.total} runs{of_shard} are recorded; "
        f"afield table {folder} --plan {plan} shows them"
    )
    for run, reason in result.failures.items():
        print(f"failed: {run}: {reason}", file=sys.stderr)
    if result.failures:
        raise typer.Exit(1)
