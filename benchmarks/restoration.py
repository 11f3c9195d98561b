"""What restoration does: accuracy from F, A, A + R+ and A + R-, and what the gates let through, from records.

    python benchmarks/restoration.py results/digit5 [plans/digit5-paper.toml]

One row for each label, or each of a plan, whose runs record it: means over runs, on the target, at the end of training.
`kept` is FA's share of F and `restored` FR's share of R; of the latter the largest of all runs, too.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.config.plan import read_plan_file
from afield.errors import AfieldError
from afield.results.figures import of_plan, runs_at
from afield.results.records import evaluations

VIEWS = ("F", "A", "A+R+", "A+R-")


def table(records: Path, plan: Path | None = None) -> str:
    """The table in Markdown."""
    ends, runs = defaultdict(list), runs_at(records)
    for run in of_plan(runs, read_plan_file(plan)) if plan else runs:
        (end,) = evaluations(run)[-1]["target"].values()
        if "restored" in end.get("gates", {}):
            ends[run[0]["label"]].append(end)
    head = ["method", *(f"from {view}" for view in VIEWS), "kept", "restored", "most restored", "runs"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for label, found in ends.items():
        accuracies = [f"{100 * fmean(end['views'][view] for end in found):.1f}" for view in VIEWS]
        kept, restored = ([end["gates"][gate] for end in found] for gate in ("kept", "restored"))
        shares = [f"{fmean(kept):.2f}", f"{fmean(restored):.3f}", f"{max(restored):.3f}"]
        lines.append([label, *accuracies, *shares, str(len(found))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        print(table(*map(Path, sys.argv[1:])))
    except AfieldError as error:
        sys.exit(str(error))
