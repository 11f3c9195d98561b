"""What may be known of settings without the target's labels: a table to choose by, from records.

    python benchmarks/label_free.py results/research/digit5-settings.jsonl [--choose | --plan PLAN]

For every label of the records: the information in the predictions on each target (see docs/choosing.md), its mean,
the accuracy on the sources' held-out images, and, so that the choice can be judged afterwards, the target accuracy. All
at the end of training. Rows are ordered by mean information; a label that lacks some targets comes last.

`--choose` keeps the best label of each method: by mean information or, where training sees no target (DG), by the
sources, since there nothing may be known of the target. Two columns more tell what the choice could have met: how many
settings the method had, and the least and greatest target accuracy among them. `--plan`, with the plan of these
records, prints what a plan of the chosen settings says of its rows.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import tomli_w

from afield.config.plan import PlanRow, make_job, plan_rows, read_plan_file
from afield.config.protocols import find_protocol
from afield.errors import AfieldError
from afield.results.records import Record, evaluations, read_runs
from afield.results.selection import has_scores, information_score, select, source_score, target_score


@dataclass(frozen=True)
class Setting:
    """A label's runs, by target: the evaluation at the end of each."""

    label: str
    method: str
    sees_target: bool
    ends: dict[str, list[Record]]

    def information(self, target: str) -> float | None:
        """Mean over the runs on a target, if there are any and training saw the target."""
        known = [end for end in self.ends.get(target, []) if has_scores(end, "information")]
        return fmean(map(information_score, known)) if known else None

    @property
    def mean_information(self) -> float:
        """Over the targets there are; minus infinity where nothing is known of any."""
        known = [value for target in self.ends if (value := self.information(target)) is not None]
        return fmean(known) if known else float("-inf")

    @property
    def sources(self) -> float:
        """Mean accuracy on the sources' held-out images, in percent."""
        return 100 * fmean(source_score(end) for found in self.ends.values() for end in found)

    @property
    def target(self) -> float:
        """Mean target accuracy, in percent. Not to choose by."""
        return 100 * fmean(fmean(map(target_score, found)) for found in self.ends.values())

    @property
    def score(self) -> float:
        """What one setting of a method is chosen by."""
        return self.mean_information if self.sees_target else self.sources

    def only(self, target: str) -> "Setting":
        """Its runs on one target."""
        return replace(self, ends={target: self.ends[target]})


def settings(path: Path) -> list[Setting]:
    """All labels of a file of records."""
    found: dict[str, Setting] = {}
    for run in read_runs(path):
        config, label = run[0]["config"], run[0]["label"]
        new = Setting(label, config["method"]["name"], config["task"]["kind"] == "uda", defaultdict(list))
        found.setdefault(label, new).ends[config["task"]["target"]].append(select(evaluations(run), "last"))
    return list(found.values())


def by_method(candidates: Iterable[Setting]) -> dict[str, list[Setting]]:
    """The settings of each method."""
    methods: dict[str, list[Setting]] = {}
    for setting in candidates:
        methods.setdefault(setting.method, []).append(setting)
    return methods


def chosen(candidates: Iterable[Setting]) -> list[Setting]:
    """The best setting of each method."""
    return [max(tried, key=lambda setting: setting.score) for tried in by_method(candidates).values()]


def rows_of_plan(path: Path, labels: set[str]) -> str:
    """Those rows of a plan in TOML; one that changes nothing in its method is the method itself."""
    content = read_plan_file(path)
    protocol = find_protocol(content.protocol)

    def config(row: PlanRow) -> object:
        return make_job(protocol, row, protocol.targets[0], content.seeds[0], content.settings_under(protocol)).config

    def is_usual(row: PlanRow) -> bool:
        return config(row) == config(PlanRow(label=row.method, method=row.method))

    rows = [row for row in plan_rows(content) if row.label in labels]
    missing = labels - {row.label for row in rows}
    if missing:
        raise AfieldError(f"{path} has no row '{min(missing)}', which the records have")
    usual, changed = ([row for row in rows if is_usual(row) == so] for so in (True, False))
    return tomli_w.dumps({"methods": [row.method for row in usual], "rows": [row.model_dump() for row in changed]})


def table(rows: list[Setting], others: dict[str, list[Setting]] | None = None) -> str:
    """The table in Markdown; with columns of the `others` that each row was chosen from, if there are any."""
    targets = list(dict.fromkeys(target for row in rows for target in row.ends))
    head = ["setting", *(f"information, {t}" for t in targets), "mean", "sources", "target accuracy", "runs"]
    head += ["settings", "least and greatest accuracy"] if others else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in sorted(rows, key=lambda row: (len(row.ends) < len(targets), -row.mean_information)):
        information = [row.information(target) for target in targets]
        cells = ["" if value is None else f"{value:.2f}" for value in information]
        cells += [f"{row.mean_information:.3f}" if any(cells) else "", f"{row.sources:.1f}", f"{row.target:.1f}"]
        cells.append(str(sum(map(len, row.ends.values()))))
        if others:
            reached = [setting.target for setting in others[row.method]]
            cells += [str(len(reached)), f"{min(reached):.1f} to {max(reached):.1f}"]
        lines.append([row.label, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--choose", action="store_true", help="the best setting of each method alone")
    choice.add_argument("--plan", type=Path, help="the plan of these records, to print the rows of the next one")
    arguments = parser.parse_args()
    try:
        found = settings(arguments.records)
        if arguments.plan:
            print(rows_of_plan(arguments.plan, {setting.label for setting in chosen(found)}))
        else:
            print(table(chosen(found), by_method(found)) if arguments.choose else table(found))
    except AfieldError as error:
        sys.exit(str(error))
