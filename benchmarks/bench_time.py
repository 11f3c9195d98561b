"""What a benchmark's runs cost: seconds per run, and milliseconds of the machine per step.

    python benchmarks/bench_time.py 8 results/digit5 plans/digit5-paper.toml

From the number of processes that shared the machine, records and the plans whose runs to look at. Seconds are means
over runs. The milliseconds are those of a run divided by its steps and by the processes: evaluations, checkpoints and
the recording of the step are part of them; starting the processes is not.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.config.plan import read_plan_file
from afield.errors import AfieldError
from afield.results.figures import of_plan, runs_at


def table(workers: int, records: Path, plans: list[Path]) -> str:
    """The table in Markdown."""
    runs, seconds, steps = runs_at(records), defaultdict(dict), {}
    for plan in plans:
        for run in of_plan(runs, read_plan_file(plan)):
            label, training = run[0]["label"], run[0]["config"]["training"]
            seconds[label][run[0]["config"]["task"]["target"], training["seed"]] = run[-1]["seconds"]
            steps[label] = training["steps"]
    lines = ["| method | runs | steps | seconds per run | ms per step |", "| --- | ---: | ---: | ---: | ---: |"]
    for label, found in seconds.items():
        typical = fmean(found.values())
        each = 1000 * typical / steps[label] / workers
        lines.append(f"| {label} | {len(found)} | {steps[label]} | {typical:.1f} | {each:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        print(table(int(sys.argv[1]), Path(sys.argv[2]), [Path(plan) for plan in sys.argv[3:]]))
    except AfieldError as error:
        sys.exit(str(error))
