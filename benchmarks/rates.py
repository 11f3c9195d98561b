"""A learning rate for each row of a plan, chosen without the target's labels: a plan to try rates, then of the best.

    python benchmarks/rates.py plans/pacs-dg.toml --try 0.02 0.04 > tried.toml
    afield bench tried.toml --out results/pacs
    while python benchmarks/rates.py plans/pacs-dg.toml --records results/pacs/records.jsonl --next > next.toml
    do afield bench next.toml --out results/pacs || break; done
    python benchmarks/rates.py plans/pacs-dg.toml --records results/pacs/records.jsonl > chosen.toml
    afield bench chosen.toml --out results/pacs
    afield table results/pacs --plan chosen.toml

The first prints a plan of every row at every rate, with the plan's first seed. With `--next` it is one of what the
choice still lacks: half and twice the best rate of each row, where they have not been tried on all targets. Repeated
until nothing is left (the exit code is then 1), it takes each row to a rate between two worse ones. The last prints
a plan of each row at its own rate (under each protocol, if there are several), for all seeds. Rows have the same names
in all plans, so that the first seed is not trained again. A row that has not been tried yet is left out, and named.
`--protocol` leaves out the plan's other protocols; `--show` prints the table that the choice was made by instead.

The choice is that of `benchmarks/label_free.py`: without a target in training the accuracy on the sources' held-out
images, otherwise the mean information in the predictions on the target. It is made once for all targets, by the mean
over them; without a target, labels of a domain thus take part in the choice that is used where it is the target. The
table's column "a rate per target" has the target accuracy without that: each target's rate chosen by its task alone.
"""

import argparse
import copy
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w
from label_free import Setting

from afield.config.layers import read_config
from afield.config.plan import PlanFile, PlanRow, identity_of_record, make_job, plan_rows, read_plan_file
from afield.config.protocols import Protocol
from afield.errors import AfieldError
from afield.results.records import Record, evaluations, read_runs
from afield.results.selection import scores, select

RATE = ", rate "
OTHERS = ("ensemble", "source-val")
REPLACED = ("protocol", "protocols", "methods", "rows", "seeds")


@dataclass(frozen=True)
class Choice:
    """The rates that a row has been tried at under a protocol, and the best of them."""

    row: PlanRow
    protocol: str
    tried: dict[float, Setting]

    @property
    def rate(self) -> float:
        """By what may be known without the target's labels."""
        return max(self.tried, key=lambda rate: self.tried[rate].score)

    def __str__(self) -> str:
        return f"{self.row.label} under {self.protocol}"

    def rate_by(self, selector: str) -> float:
        """What another selector would choose, from its scores of the rates' first run on each target."""
        rates, setting = list(self.tried), next(iter(self.tried.values()))
        by_target = [scores([at.ends[target][0] for at in self.tried.values()], selector) for target in setting.ends]
        return rates[max(range(len(rates)), key=lambda number: sum(found[number] for found in by_target))]

    @property
    def by_target(self) -> float:
        """The mean target accuracy if each target had a rate of its own, chosen by what is known of that task alone."""
        alone = ([setting.only(target) for setting in self.tried.values()] for target in self.tried[self.rate].ends)
        return fmean(max(settings, key=lambda setting: setting.score).target for settings in alone)

    @property
    def at_edge(self) -> bool:
        """Whether a rate beyond those tried might be better still."""
        return self.rate in (min(self.tried), max(self.tried))

    @property
    def lacking(self) -> list[float]:
        """Of half and twice the best rate, those that have not been tried: only between worse rates is it the best."""
        return [rate for rate in (self.rate / 2, self.rate * 2) if rate not in self.tried]


def row_at(row: PlanRow, rate: float, protocols: list[str]) -> dict[str, Any]:
    """A row of a plan's file: what it was, at a rate that its label names."""
    changed: dict[str, Any] = copy.deepcopy(row.settings)
    changed.setdefault("training", {})["lr"] = rate
    label = f"{row.label}{RATE}{rate:g}"
    return {"label": label, "method": row.method, "protocols": protocols, "settings": changed}


def plan_with(path: Path, protocols: list[Protocol], rows: list[dict[str, Any]], seeds: Iterable[int]) -> str:
    """A plan's file with other protocols, rows and seeds."""
    content = {key: value for key, value in read_config(path).items() if key not in REPLACED}
    names = [protocol.name for protocol in protocols]
    settings = {name: value for name, value in content.get("protocol_settings", {}).items() if name in names}
    named: dict[str, Any] = {"protocols": names}
    if len(names) == 1:  # its table has a column per target then
        named = {"protocol": names[0]}
        rows = [{key: value for key, value in row.items() if key != "protocols"} for row in rows]
    changed = {"seeds": list(seeds), "rows": rows, "protocol_settings": settings}
    return tomli_w.dumps(named | content | changed, multiline_strings=True)


def rows_of_next_trial(made: list[Choice]) -> list[dict[str, Any]]:
    """The rows whose best rate has a neighbour that was not tried, at that neighbour."""
    found = [row_at(one.row, rate, [one.protocol]) for one in made for rate in one.lacking]
    if not found:
        raise AfieldError("nothing is left to try: every row's best rate lies between two worse ones")
    return found


def rows_of_trial(content: PlanFile, protocols: list[Protocol], rates: list[float]) -> list[dict[str, Any]]:
    """Every row at every rate."""
    found = []
    for row in plan_rows(content):
        names = [protocol.name for protocol in protocols if row.runs_under(protocol)]
        found += [row_at(row, rate, names) for rate in rates if names]
    return found


def choices(content: PlanFile, protocols: list[Protocol], records: list[Path]) -> tuple[list[Choice], list[str]]:
    """The choice of each row under each protocol, among the rates that have been tried on all targets.

    Beside it the rows that have no such rate yet.
    """
    runs = [run for path in records for run in read_runs(path)]
    recorded = {identity: run for run in runs if (identity := identity_of_record(run[0]))}
    found, missing = [], []
    for protocol in protocols:
        for row in (row for row in plan_rows(content) if row.runs_under(protocol)):
            if tried := tried_rates(content, protocol, row, recorded):
                found.append(Choice(row, protocol.name, tried))
            else:
                missing.append(f"{row.label} under {protocol.name}")
    if not found:
        raise AfieldError("no row of the plan was tried on all targets")
    return found, missing


def tried_rates(
    content: PlanFile, protocol: Protocol, row: PlanRow, recorded: dict[str, list[Record]]
) -> dict[float, Setting]:
    """What each rate has led to on all targets, by the runs that a plan of this row at that rate would have.

    Only with the plan's first seed, so that all rates are compared on one.
    """
    tried, targets, settings = {}, content.targets or protocol.targets, content.settings_under(protocol)
    for rate in sorted({run[0]["config"]["training"]["lr"] for run in recorded.values()}):
        changed = PlanRow.model_validate(row_at(row, rate, []), strict=False)
        jobs = [make_job(protocol, changed, target, content.seeds[0], settings) for target in targets]
        if all(job.identity in recorded for job in jobs):
            ends = {job.target: [select(evaluations(recorded[job.identity]), "last")] for job in jobs}
            tried[rate] = Setting(changed.label, row.method, protocol.task == "uda", ends)
    return tried


def notes(made: list[Choice]) -> Iterator[str]:
    """What the choices may be doubted for: rates at the edge, and rates that other rows of the protocol had too."""
    for one in made:
        if one.at_edge:
            yield f"{one}: {one.rate:g} is at the edge of what was tried"
        others = {rate for other in made if other.protocol == one.protocol for rate in other.tried}
        if lacking := sorted(others - one.tried.keys()):
            yield f"{one}: not tried on all targets at {', '.join(f'{rate:g}' for rate in lacking)}, as other rows were"


def table(made: list[Choice]) -> str:
    """What each rate scored, in Markdown: the chosen one in bold, with the target accuracy, which was not chosen by.

    Where training sees the target, what other selectors would choose stands beside it.
    """
    rates = sorted({rate for one in made for rate in one.tried})
    others = OTHERS if any(setting.sees_target for one in made for setting in one.tried.values()) else ()
    head = ["protocol", "row", *(f"{rate:g}" for rate in rates), "target accuracy", "of all rates", "a rate per target"]
    head += [f"by `{name}`" for name in others]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for one in made:
        cells = {rate: f"{one.tried[rate].score:.2f}" if rate in one.tried else "" for rate in rates}
        cells[one.rate] = f"**{cells[one.rate]}**"
        reached = [setting.target for setting in one.tried.values()]
        ends = [f"{one.tried[one.rate].target:.1f}", f"{min(reached):.1f} to {max(reached):.1f}"]
        ends.append(f"{one.by_target:.1f}")
        ends += [f"{one.rate_by(name):g}" for name in others]
        lines.append([one.protocol, one.row.label, *cells.values(), *ends])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print a plan, or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--try", dest="rates", type=float, nargs="+", help="print the plan of these rates")
    what.add_argument("--records", type=Path, nargs="+", help="print the plan of the rates that these records choose")
    parser.add_argument("--protocol", help="of the plan's protocols only this one")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--next", action="store_true", help="with --records: the plan of the rates to be tried next")
    shown.add_argument("--show", action="store_true", help="with --records: the table that the choice was made by")
    arguments = parser.parse_args()
    content = read_plan_file(arguments.plan)
    protocols = [one for one in content.named_protocols() if arguments.protocol in (None, one.name)]
    if not protocols:
        raise AfieldError(f"the plan has no protocol '{arguments.protocol}'")
    if arguments.rates:
        rows = rows_of_trial(content, protocols, arguments.rates)
        print(plan_with(arguments.plan, protocols, rows, content.seeds[:1]))
        return
    made, missing = choices(content, protocols, arguments.records)
    for row in missing:
        print(f"{row}: left out, since no rate of it was tried on all targets", file=sys.stderr)
    for note in notes(made):
        print(note, file=sys.stderr)
    if arguments.show:
        print(table(made))
        return
    if arguments.next:
        print(plan_with(arguments.plan, protocols, rows_of_next_trial(made), content.seeds[:1]))
        return
    rows = [row_at(one.row, one.rate, [one.protocol]) for one in made]
    print(plan_with(arguments.plan, protocols, rows, content.seeds))


if __name__ == "__main__":
    try:
        main()
    except AfieldError as error:
        sys.exit(str(error))
