"""How far results on the embedded digits spread over seeds: the demo's recipe, every target, ten seeds.

    python benchmarks/digits_spread.py results/digits/records.jsonl [--workers 8] [--target street] [--seeds 10]

Trains what the file does not hold yet (a killed call loses only the runs under way), appends each finished run's
records, and prints the table in Markdown. With everything recorded it only prints.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from rich.progress import track

import afield
from afield.records import Record, append_record, evaluations, read_records, rewrite_records
from afield.selection import select, target_score

# A row of the table: a method and what is set on top. The second row is a control: like every method below it, it runs
# the target's images through batch norm, but it aligns nothing.
ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "baseline": ("baseline", {}),
    "baseline, target in batch norm": ("baseline-align", {"align_weight": 0.0}),
    "baseline-align": ("baseline-align", {}),
    "baseline-att-align": ("baseline-att-align", {}),
    "far": ("far", {}),
    "far-paper": ("far-paper", {}),
}
TARGETS = ("mnist", "photo", "uci", "fonts", "street")
SELECTOR = "last"
Job = tuple[str, str, int]


def train(job: Job) -> list[Record]:
    """One run in a folder of its own, gone afterwards; its records stay."""
    row, target, seed = job
    method, options = ROWS[row]
    settings = {f"method.{key}": value for key, value in options.items()}
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        return afield.train(
            "digits", "uda", target, method, seed=seed, out=out, settings=settings, progress=False
        ).records


def job_of(header: Record) -> Job:
    """What a run's first line says it is."""
    config = header["config"]
    options = config["method"]
    # The row that sets the most of what the run has: the control is a baseline-align too.
    fitting = [row for row, (name, sets) in ROWS.items() if {"name": name, **sets}.items() <= options.items()]
    row = max(fitting, key=lambda row: len(ROWS[row][1]))
    return row, config["task"]["target"], config["training"]["seed"]


def recorded(path: Path) -> dict[Job, list[Record]]:
    """The finished runs of a file."""
    runs: dict[Job, list[Record]] = {}
    for record in read_records(path) if path.exists() else []:
        if record["event"] == "run":
            current = runs[job_of(record)] = []
        current.append(record)
    return {job: records for job, records in runs.items() if records[-1]["event"] == "end"}


def table(runs: dict[Job, list[Record]], targets: Iterable[str]) -> str:
    """Mean +- standard deviation (n) of target test accuracy in percent: the average over targets last.

    The average is taken seed by seed, so that its spread is that of the average.
    """
    targets = list(targets)
    accuracy = {job: 100 * target_score(select(evaluations(records), SELECTOR)) for job, records in runs.items()}
    lines = ["| method | " + " | ".join([*targets, "average"]) + " |", "|---|" + "---:|" * (len(targets) + 1)]
    for row in ROWS:
        seeds = sorted({seed for name, _, seed in runs if name == row})
        whole = [seed for seed in seeds if all((row, target, seed) in accuracy for target in targets)]
        columns = [[accuracy[row, t, seed] for seed in seeds if (row, t, seed) in accuracy] for t in targets]
        columns.append([fmean(accuracy[row, target, seed] for target in targets) for seed in whole])
        lines.append(f"| {row} | " + " | ".join(map(spread, columns)) + " |")
    return "\n".join(lines)


def paired(runs: dict[Job, list[Record]], targets: Iterable[str], first: str, second: str) -> str:
    """How far one row is above another on the average over targets, seed by seed, with the standard error."""
    targets = list(targets)
    accuracy = {job: 100 * target_score(select(evaluations(records), SELECTOR)) for job, records in runs.items()}
    seeds = sorted({seed for _, _, seed in runs})
    seeds = [s for s in seeds if all((row, target, s) in runs for row in (first, second) for target in targets)]
    gains = [fmean(accuracy[first, target, s] - accuracy[second, target, s] for target in targets) for s in seeds]
    if len(gains) < 2:
        return ""
    error = stdev(gains) / len(gains) ** 0.5
    ahead = sum(gain > 0 for gain in gains)
    result = f"{fmean(gains):+.1f} ± {error:.1f} (standard error), ahead in {ahead} of {len(gains)}"
    return f"`{first}` over `{second}`: {result}"


def report(runs: dict[Job, list[Record]], targets: Iterable[str]) -> str:
    """The table, and FAR against the rows it must beat, in Markdown."""
    targets = list(targets)
    comparisons = [paired(runs, targets, "far", other) for other in ("baseline", "baseline-att-align")]
    compared = "\n\nOn the average, seed by seed: " + "; ".join(comparisons) + "."
    return table(runs, targets) + (compared if all(comparisons) else "")


def spread(values: list[float]) -> str:
    """One cell of the table."""
    return f"{fmean(values):.1f} ± {stdev(values):.1f} ({len(values)})" if len(values) > 1 else "-"


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all five")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    targets = arguments.target or TARGETS
    done = recorded(arguments.records)
    missing = [job for job in product(ROWS, targets, range(arguments.seeds)) if job not in done]
    if missing:
        arguments.records.parent.mkdir(parents=True, exist_ok=True)
        # A kill may have cut the last line short, or a run in two.
        rewrite_records(arguments.records, [record for records in done.values() for record in records])
        # Spawned: a forked process cannot use CUDA.
        with ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool:
            futures = [pool.submit(train, job) for job in missing]
            for future in track(as_completed(futures), "training", total=len(futures)):
                try:
                    for record in future.result():
                        append_record(arguments.records, record)
                except afield.AfieldError as error:
                    print(f"a run failed and is left out: {error}")
    print(f"selector {SELECTOR}; mean ± standard deviation (seeds) of target test accuracy, %\n")
    print(report(recorded(arguments.records), targets))


if __name__ == "__main__":
    main()
