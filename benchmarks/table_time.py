"""How long a table takes: one `afield bench` of a plan from its start to its end, starting the processes and all.

    python benchmarks/table_time.py plans/pacs-dg-lite0.toml --records results/pacs --workers 10 --out FILE
    python benchmarks/table_time.py --show FILE...

Runs that the folder of records has already are not made again and not counted; those that are made stay in it.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from afield.config.plan import identity_of_record
from afield.errors import AfieldError
from afield.files import write_whole
from afield.results.records import Record, read_runs, record_files


def measure(plan: Path, records: Path, workers: int) -> dict[str, Any]:
    """Run the benchmark; what it made, and what that took."""
    before = {identity_of_record(run[0]) for run in runs_in(records)}
    command = [sys.executable, "-m", "afield", "bench", str(plan), "--out", str(records), "--workers", str(workers)]
    start = time.monotonic()
    done = subprocess.run(command)
    seconds = time.monotonic() - start
    made = [run for run in runs_in(records) if identity_of_record(run[0]) not in before]
    if not made:
        raise AfieldError(f"{plan}: no run was made, so there is nothing to measure")
    first = made[0][0]
    return {
        "plan": plan.name,
        "methods": len({run[0]["config"]["method"]["name"] for run in made}),
        "runs": len(made),
        "failed": done.returncode != 0,
        "steps": first["config"]["training"]["steps"],
        "workers": workers,
        "seconds": round(seconds, 1),
        "seconds_of_runs": round(sum(run[-1]["seconds"] for run in made), 1),
        "device": first["device"],
        "torch": first["versions"]["torch"],
    }


def runs_in(folder: Path) -> list[list[Record]]:
    """The runs of a folder of records, which may not be there yet."""
    return [run for file in record_files(folder) for run in read_runs(file)]


def table(measurements: list[dict[str, Any]]) -> str:
    """The measurements in Markdown."""
    head = ["plan", "methods", "runs", "steps", "processes", "minutes", "seconds per run"]
    lines = [head, ["---", *["---:"] * 6], *map(cells, measurements)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = dict.fromkeys(f"{found['device']}, torch {found['torch']}." for found in measurements)
    failed = [f"Some runs of {found['plan']} failed." for found in measurements if found["failed"]]
    return f"{text}\n\n{' '.join([*notes, *failed])}"


def cells(found: dict[str, Any]) -> list[str]:
    """A line of the table."""
    counts = [found["methods"], found["runs"], found["steps"], found["workers"]]
    times = [f"{found['seconds'] / 60:.1f}", f"{found['seconds'] / found['runs']:.1f}"]
    return [found["plan"], *map(str, counts), *times]


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, nargs="?")
    parser.add_argument("--records", type=Path, help="folder of records, as of afield bench --out")
    parser.add_argument("--workers", type=int, default=10, help="runs at the same time")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print the table of such files instead")
    arguments = parser.parse_args()
    if arguments.show:
        print(table([json.loads(file.read_text("utf-8")) for file in arguments.show]))
        return
    if not (arguments.plan and arguments.records and arguments.out):
        parser.error("a plan, --records and --out are needed, or --show")
    found = measure(arguments.plan, arguments.records, arguments.workers)
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    print(table([found]))


if __name__ == "__main__":
    try:
        main()
    except AfieldError as error:
        sys.exit(str(error))
