"""What a benchmark's runs cost: seconds per run, and milliseconds of the machine per step.

    python benchmarks/bench_time.py 8 results/digit5 [plans/digit5-paper.toml] [baseline dann]

From the number of processes that shared the machine, records, the plan to look at and its rows; without these, all.
Seconds are means over runs. The milliseconds are those of a run divided by its steps and by the processes: evaluations,
checkpoints and the recording of the step are part of them; starting the processes is not.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.config.plan import read_plan_file
from afield.errors import AfieldError
from afield.results.figures import of_plan, runs_at


def table(workers: int, records: Path, words: list[str]) -> str:
    """The table in Markdown."""
    seconds, steps = defaultdict(dict), {}
    runs, rows = runs_at(records), [word for word in words if not word.endswith(".toml")]
    for plan in words[: len(words) - len(rows)]:
        runs = of_plan(runs, read_plan_file(Path(plan)))
    for run in runs:
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
