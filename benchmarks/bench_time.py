"""What a benchmark's runs cost: seconds per run, and milliseconds of the machine per step.

    python benchmarks/bench_time.py 8 results/digit5 baseline dann

From the number of processes that shared the machine, records and the rows to look at; without rows, all. Seconds are
means over runs. The milliseconds are those of a run divided by its steps and by the processes: evaluations, checkpoints
and the recording of the step are part of them; starting the processes is not.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.errors import AfieldError
from afield.results.figures import runs_at


def table(workers: int, records: Path, rows: list[str]) -> str:
    """The table in Markdown."""
    seconds, steps = defaultdict(dict), {}
    for run in runs_at(records):
        label, config = run[0]["label"], run[0]["config"]
        if not rows or label in rows:
            seconds[label][config["task"]["target"], config["training"]["seed"]] = run[-1]["seconds"]
            steps[label] = config["training"]["steps"]
    if missing := set(rows) - set(seconds):
        raise AfieldError(f"these records hold no run of {', '.join(sorted(missing))}")
    lines = ["| method | runs | steps | seconds per run | ms per step |", "| --- | ---: | ---: | ---: | ---: |"]
    for label, found in seconds.items():
        typical = fmean(found.values())
        each = 1000 * typical / steps[label] / workers
        lines.append(f"| {label} | {len(found)} | {steps[label]} | {typical:.1f} | {each:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        print(table(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
    except AfieldError as error:
        sys.exit(str(error))
