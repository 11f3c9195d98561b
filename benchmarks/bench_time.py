"""What a benchmark's runs cost: seconds of a run, and milliseconds of the machine a step.

    python benchmarks/bench_time.py results/digit5 digit5/dassl 8

From the records of one protocol and the number of processes that shared the machine. Seconds are means over runs. The
milliseconds are those of a run divided by its steps and by the processes: evaluations, checkpoints and the recording of
the step are part of them; starting the processes is not.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.errors import AfieldError
from afield.records import read_runs


def table(path: Path, protocol: str, workers: int) -> str:
    """The table in Markdown."""
    seconds, steps = defaultdict(list), {}
    for run in read_runs(path / "records.jsonl"):
        if run[0]["protocol"].get("name") == protocol:
            label = run[0]["label"]
            seconds[label].append(run[-1]["seconds"])
            steps[label] = run[0]["config"]["training"]["steps"]
    lines = ["| method | runs | steps | seconds a run | ms a step |", "| --- | ---: | ---: | ---: | ---: |"]
    for label, found in seconds.items():
        typical = fmean(found)
        each = 1000 * typical / steps[label] / workers
        lines.append(f"| {label} | {len(found)} | {steps[label]} | {typical:.1f} | {each:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        print(table(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    except AfieldError as error:
        sys.exit(str(error))
