"""How well selectors choose without the target's labels, from records: tables in Markdown, data set by data set.

    python benchmarks/choosing.py results/digit5 results/scale results/research

Three kinds of choice, each judged afterwards by the target's accuracy: among the evaluations of one run; among the
settings of one method, on one target with one seed; and among all methods and settings there. Choices between runs are
at the end of training, among the runs of one file and protocol. Only UDA counts, because in DG nothing of the target
may be known. A choice counts if all its candidates have all scores, so that selectors are compared on the same choices,
and if these are of the target's training images: older versions took its test images.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
    """One kind of choice: by data set, the candidates of each, which are evaluations."""

    title: str
    groups: dict[str, list[Group]]
    ordered: bool
    """Whether one of the candidates is the last."""

    def table(self) -> str:
        """A row per selector, between chance and the oracle."""
        head = ["selector"]
        for data in self.groups:
            head += [f"{data}: within {NEAR:g} point of the best", "mean distance", "greatest"]
        lines = [head, ["---", *["---:"] * (len(head) - 1)], self.row("any, by chance", chance)]
        for selector in LABEL_FREE if self.ordered else LABEL_FREE[1:]:
            lines.append(self.row(f"`{selector}`", lambda group, by=selector: [target_score(select(group, by))]))
        lines.append(self.row("`oracle` (a bound)", lambda group: [target_score(select(group, "oracle"))]))
        sizes = "; ".join(f"{data}: {described(groups)}" for data, groups in self.groups.items())
        return "\n".join([f"**{self.title}** ({sizes})", "", *(f"| {' | '.join(c)} |" for c in lines)])

    def row(self, name: str, chosen: Callable[[Group], list[float]]) -> list[str]:
        """How far the chosen accuracies are from the best of their group, in points."""
        cells = [name]
        for groups in self.groups.values():
            gaps = [[100 * (max(chance(group)) - accuracy) for accuracy in chosen(group)] for group in groups]
            near = fmean(fmean(gap <= NEAR + 1e-9 for gap in of_one) for of_one in gaps)
            cells += [f"{100 * near:.0f} %", f"{fmean(map(fmean, gaps)):.1f}", f"{max(map(max, gaps)):.1f}"]
        return cells


def described(groups: list[Group]) -> str:
    """How many choices, among how many candidates."""
    least, most = min(map(len, groups)), max(map(len, groups))
    return f"{len(groups)} choices among {least if least == most else f'{least} to {most}'}"


def chance(group: Group) -> list[float]:
    """Every candidate's accuracy: each is as likely as the others."""
    return [target_score(each) for each in group]


def files_in(place: Path) -> list[Path]:
    """A file of records; or of a folder its `records.jsonl`, or all such files where there is none of that name."""
    if not place.is_dir():
        return [place]
    return [place / "records.jsonl"] if (place / "records.jsonl").is_file() else sorted(place.glob("*.jsonl"))


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


def scored(group: Group) -> bool:
    """Whether all selectors can choose from a group, by scores of the target's training images."""
    of_training = all(r.get("images") == "train" for each in group for r in each.get("unlabelled", {}).values())
    return of_training and all(has_scores(each, name) for each in group for name in LABEL_FREE)


def kept(groups: Iterable[tuple[str, Group]]) -> dict[str, list[Group]]:
    """The groups of at least two candidates that all selectors can choose from, by data set."""
    found: dict[str, list[Group]] = defaultdict(list)
    for data, group in groups:
        if len(group) > 1 and scored(group):
            found[data].append(group)
    return dict(sorted(found.items()))


def grouped(runs: dict[Path, list[list[Record]]], *, by_method: bool) -> dict[str, list[Group]]:
    """The last evaluations of runs of one file, protocol, target and seed, and maybe method."""
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for file, of_file in runs.items():
        for run in of_file:
            config, protocol = run[0]["config"], run[0].get("protocol", {}).get("name", "")
            method = config["method"]["name"] if by_method else ""
            place = (str(file), protocol, config["task"]["target"], str(run[0]["seed"]), method)
            groups[config["data"]["name"], *place].append(evaluations(run)[-1])
    return kept((data, group) for (data, *_), group in groups.items())


def tables(files: Sequence[Path]) -> str:
    """All three tables."""
    runs = read(files)
    within = kept((run[0]["config"]["data"]["name"], evaluations(run)) for of_file in runs.values() for run in of_file)
    kinds = [
        Choices("Among the evaluations of a run", within, ordered=True),
        Choices("Among the settings of a method, on a target", grouped(runs, by_method=True), ordered=False),
        Choices("Among all methods and settings, on a target", grouped(runs, by_method=False), ordered=False),
    ]
    return "\n\n".join(kind.table() for kind in kinds if kind.groups)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    try:
        print(tables([file for place in parser.parse_args().records for file in files_in(place)]))
    except AfieldError as error:
        sys.exit(str(error))
