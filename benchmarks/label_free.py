"""What may be known of settings without the target's labels: a table to choose by, from records.

    python benchmarks/label_free.py results/research/digit5-settings.jsonl

For every label of the records: the information in the predictions on each target (see `afield.selection`), its mean,
the accuracy on the sources' held-out images, and, so that the choice can be judged afterwards, the target accuracy. All
at the end of training. Rows are ordered by mean information; a label that lacks some targets comes last.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.records import Record, evaluations, read_runs
from afield.selection import information_score, select, source_score, target_score


def table(path: Path) -> str:
    """The table in Markdown."""
    ends: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for run in read_runs(path):
        ends[run[0]["label"]][run[0]["config"]["task"]["target"]].append(select(evaluations(run), "last"))
    targets = list(dict.fromkeys(target for found in ends.values() for target in found))
    rows = []
    for label, found in ends.items():
        information = [fmean(map(information_score, found[t])) if t in found else None for t in targets]
        known = [value for value in information if value is not None]
        last = [evaluation for evaluations_of in found.values() for evaluation in evaluations_of]
        cells = ["" if value is None else f"{value:.2f}" for value in information]
        cells += [f"{fmean(known):.3f}", f"{100 * fmean(map(source_score, last)):.1f}"]
        per_target = [fmean(map(target_score, found[t])) for t in targets if t in found]
        cells += [f"{100 * fmean(per_target):.1f}", str(len(last))]
        rows.append((len(known) < len(targets), -fmean(known), f"| {label} | {' | '.join(cells)} |"))
    head = ["setting", *(f"information, {t}" for t in targets), "mean", "sources", "target accuracy", "runs"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + [row for *_, row in sorted(rows)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(table(Path(sys.argv[1])))
