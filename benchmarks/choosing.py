"""How well selectors choose without the target's labels, from records: tables in Markdown.

    python benchmarks/choosing.py results/digit5/records.jsonl results/research/digit5-budget.jsonl

Three kinds of choice, each judged afterwards by the target's accuracy: among the evaluations of one run; among the
settings of one method, on one target with one seed; and among all methods and settings there. Choices between runs are
at the end of training, and among the runs of one file. Only UDA counts, because in DG nothing of the target may be
known. A selector is left out where some candidate does not record what it needs.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from afield.config.selectors import LABEL_FREE
from afield.errors import AfieldError
from afield.results.records import Record, evaluations, read_runs
from afield.results.selection import has_scores, select, target_score

NEAR = 1.0
"""Points of accuracy within which a choice counts as good as the best."""
Group = Sequence[Record]


@dataclass(frozen=True)
class Choices:
    """One kind of choice: the candidates of each, which are evaluations."""

    title: str
    groups: list[Group]
    ordered: bool
    """Whether one of the candidates is the last."""

    def table(self) -> str:
        """A row per selector that the records allow, between chance and the oracle."""
        head = ["selector", "choices", f"within {NEAR:g} point of the best", "mean distance", "greatest distance"]
        lines = [head, ["---", *["---:"] * (len(head) - 1)], row("any, by chance", self.groups, chance)]
        for selector in LABEL_FREE if self.ordered else LABEL_FREE[1:]:
            known = [group for group in self.groups if all(has_scores(each, selector) for each in group)]
            if known:
                lines.append(row(f"`{selector}`", known, lambda group, by=selector: [target_score(select(group, by))]))
        lines.append(row("`oracle` (a bound)", self.groups, lambda group: [target_score(select(group, "oracle"))]))
        candidates = f"{min(map(len, self.groups))} to {max(map(len, self.groups))}"
        return "\n".join([f"**{self.title}**; {candidates} candidates", "", *(f"| {' | '.join(c)} |" for c in lines)])


def chance(group: Group) -> list[float]:
    """Every candidate's accuracy: each is as likely as the others."""
    return [target_score(each) for each in group]


def row(name: str, groups: list[Group], chosen) -> list[str]:  # type: ignore[no-untyped-def]
    """How far the chosen accuracies are from the best of their group, in points."""
    gaps = [[100 * (max(chance(group)) - accuracy) for accuracy in chosen(group)] for group in groups]
    near = fmean(fmean(gap <= NEAR + 1e-9 for gap in of_one) for of_one in gaps)
    mean, greatest = fmean(map(fmean, gaps)), max(map(max, gaps))
    return [name, str(len(groups)), f"{100 * near:.0f} %", f"{mean:.1f}", f"{greatest:.1f}"]


def read(files: Iterable[Path]) -> dict[Path, list[list[Record]]]:
    """The UDA runs of each file whose target has labels; a run that an earlier file has is left out."""
    seen: set[str] = set()
    found: dict[Path, list[list[Record]]] = {}
    for file in files:
        for run in read_runs(file):
            labelled = all(r["accuracy"] is not None for e in evaluations(run) for r in e["target"].values())
            key = json.dumps([run[0].get("label"), run[0]["config"], evaluations(run)], sort_keys=True)
            if run[0]["config"]["task"]["kind"] == "uda" and labelled and key not in seen:
                seen.add(key)
                found.setdefault(file, []).append(run)
    return found


def grouped(runs: dict[Path, list[list[Record]]], *, by_method: bool) -> list[Group]:
    """The last evaluations of runs of one file, target and seed, and maybe method; where there are at least two."""
    groups: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for file, of_file in runs.items():
        for run in of_file:
            config = run[0]["config"]
            key = (file, config["task"]["target"], run[0]["seed"], config["method"]["name"] if by_method else None)
            groups[key].append(evaluations(run)[-1])
    return [group for group in groups.values() if len(group) > 1]


def tables(files: Sequence[Path]) -> str:
    """All three tables, and which selectors no record allows."""
    runs = read(files)
    within = [found for of_file in runs.values() for run in of_file if len(found := evaluations(run)) > 1]
    kinds = [
        Choices("Among the evaluations of a run", within, ordered=True),
        Choices("Among the settings of a method, on a target", grouped(runs, by_method=True), ordered=False),
        Choices("Among all methods and settings, on a target", grouped(runs, by_method=False), ordered=False),
    ]
    parts = [kind.table() for kind in kinds if kind.groups]
    everything = [each for of_file in runs.values() for run in of_file for each in evaluations(run)]
    absent = [f"`{name}`" for name in LABEL_FREE if not any(has_scores(each, name) for each in everything)]
    older = sum(r.get("images") != "train" for each in everything for r in each.get("unlabelled", {}).values())
    if absent:
        parts.append(f"No record here has the scores of {', '.join(absent)}.")
    if older:
        parts.append(
            f"In {older} of {len(everything)} evaluations, `information` and `entropy` are of the target's test images "
            "(without labels), as older versions recorded them."
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    try:
        print(tables(parser.parse_args().records))
    except AfieldError as error:
        sys.exit(str(error))
