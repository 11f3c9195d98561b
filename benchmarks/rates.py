"""A learning rate for each row of a plan, chosen without the target's labels: a plan to try rates, then one of them.

    python benchmarks/rates.py plans/pacs-dg.toml --try 0.005 0.01 0.02 0.04 > rates.toml
    afield bench rates.toml --out runs/rates
    python benchmarks/rates.py plans/pacs-dg.toml --records runs/rates/records.jsonl > chosen.toml
    afield bench chosen.toml --out runs/chosen

The first has every row of the plan at every rate, with the plan's first seed. The second prints the plan with each row
at its rate (under each protocol, if there are several), for all seeds. In its place, `--show` prints the table the
choice was made by, and `--gather` the records of the chosen rates, of all seeds there are, under the plan's labels;
`--protocol` leaves out the plan's other protocols.

The choice is that of `benchmarks/label_free.py`: without a target in training the accuracy on the sources' held-out
images, otherwise the mean information in the predictions on the target. Records of the plan itself at some rate serve
as well.
"""

import argparse
import copy
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from label_free import Setting

from afield.config.layers import read_config
from afield.config.plan import PlanFile, PlanRow, plan_rows, read_plan_file
from afield.errors import AfieldError
from afield.results.records import evaluations, read_runs
from afield.results.selection import select

RATE, AT_ITS_RATE = ", rate ", " at its rate"


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

    @property
    def at_edge(self) -> bool:
        """Whether a rate beyond those tried might be better still."""
        return self.rate in (min(self.tried), max(self.tried))


def row_label(label: str) -> str:
    """What the plan calls the row that a run belongs to."""
    return label.partition(RATE)[0].removesuffix(AT_ITS_RATE)


def label_at(row: PlanRow, rate: float) -> str:
    """What a row is called while rates are tried."""
    return f"{row.label}{RATE}{rate:g}"


def with_rate(row: PlanRow, label: str, rate: float, protocols: Iterable[str]) -> dict[str, Any]:
    """A row of a plan's file."""
    changed: dict[str, Any] = copy.deepcopy(row.settings)
    changed.setdefault("training", {})["lr"] = rate
    return {"label": label, "method": row.method, "protocols": list(protocols), "settings": changed}


def plan_with(path: Path, rows: list[dict[str, Any]], seeds: Iterable[int]) -> str:
    """A plan's file with other rows and seeds."""
    kept = {key: value for key, value in read_config(path).items() if key not in ("methods", "rows", "seeds")}
    return tomli_w.dumps({**kept, "seeds": list(seeds), "rows": rows})


def trying(path: Path, rates: list[float]) -> str:
    """The plan of every row at every rate."""
    content = read_plan_file(path)
    rows = [with_rate(row, label_at(row, rate), rate, row.protocols) for row in plan_rows(content) for rate in rates]
    return plan_with(path, rows, content.seeds[:1])


def tried_rates(records: Iterable[Path], seed: int) -> dict[tuple[str, str], dict[float, Setting]]:
    """By protocol and row what each rate has led to; with this seed alone, so that all had the same luck."""
    tried: dict[tuple[str, str], dict[float, Setting]] = defaultdict(dict)
    for run in (run for path in records for run in read_runs(path)):
        header, config = run[0], run[0]["config"]
        if header["seed"] != seed:
            continue
        rates = tried[header["protocol"]["name"], row_label(header["label"])]
        task, rate = config["task"], config["training"]["lr"]
        new = Setting(header["label"], config["method"]["name"], task["kind"] == "uda", defaultdict(list))
        rates.setdefault(rate, new).ends[task["target"]].append(select(evaluations(run), "last"))
    return tried


def choices(content: PlanFile, records: list[Path], only: str | None) -> list[Choice]:
    """The choice of each row under each protocol, or under one only, among the rates tried on all targets."""
    found, tried = [], tried_rates(records, content.seeds[0])
    protocols = [protocol for protocol in content.named_protocols() if only in (None, protocol.name)]
    if not protocols:
        raise AfieldError(f"the plan has no protocol '{only}'")
    for protocol in protocols:
        targets = set(content.targets or protocol.targets)
        for row in plan_rows(content):
            if row.runs_under(protocol):
                rates = {rate: at for rate, at in tried[protocol.name, row.label].items() if set(at.ends) == targets}
                if not rates:
                    raise AfieldError(f"no rate of row '{row.label}' under {protocol.name} was tried on all targets")
                found.append(Choice(row, protocol.name, dict(sorted(rates.items()))))
    return found


def of_choice(path: Path, made: list[Choice]) -> str:
    """The plan of every row at its own rate."""
    rows = [with_rate(one.row, f"{one.row.label}{AT_ITS_RATE}", one.rate, [one.protocol]) for one in made]
    return plan_with(path, rows, read_plan_file(path).seeds)


def gathered(made: list[Choice], records: list[Path]) -> str:
    """The records of the chosen rates, in the plan's order; of a run that was made twice, the first."""
    runs: dict[tuple[str, str, float], dict[tuple[str, int], list[dict[str, Any]]]] = defaultdict(dict)
    for run in (run for path in records for run in read_runs(path)):
        header = {**run[0], "label": row_label(run[0]["label"])}
        config, protocol = header["config"], header["protocol"]["name"]
        kept = runs[protocol, header["label"], config["training"]["lr"]]
        kept.setdefault((config["task"]["target"], header["seed"]), [header, *run[1:]])
    chosen = [runs[one.protocol, one.row.label, one.rate] for one in made]
    return "\n".join(json.dumps(event) for kept in chosen for at in sorted(kept) for event in kept[at])


def table(made: list[Choice]) -> str:
    """What each rate scored, in Markdown: the chosen one in bold, with the target accuracy, which was not chosen by."""
    rates = sorted({rate for one in made for rate in one.tried})
    head = ["protocol", "row", *(f"{rate:g}" for rate in rates), "target accuracy", "of all rates"]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for one in made:
        scores = {rate: f"{one.tried[rate].score:.2f}" if rate in one.tried else "" for rate in rates}
        scores[one.rate] = f"**{scores[one.rate]}**"
        reached = [setting.target for setting in one.tried.values()]
        ends = [f"{one.tried[one.rate].target:.1f}", f"{min(reached):.1f} to {max(reached):.1f}"]
        lines.append([one.protocol, one.row.label, *scores.values(), *ends])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--try", dest="rates", type=float, nargs="+", help="print the plan of these rates")
    what.add_argument("--records", type=Path, nargs="+", help="print the plan of the rates that these records choose")
    parser.add_argument("--protocol", help="with --records: of the plan's protocols only this one")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--show", action="store_true", help="with --records: the table that the choice was made by")
    instead.add_argument("--gather", action="store_true", help="with --records: those of the chosen rates")
    arguments = parser.parse_args()
    try:
        if arguments.rates:
            print(trying(arguments.plan, arguments.rates))
        else:
            made = choices(read_plan_file(arguments.plan), arguments.records, arguments.protocol)
            for one in made:
                if one.at_edge:
                    note = f"{one.rate:g} is at the edge of what was tried"
                    print(f"{one.row.label} under {one.protocol}: {note}", file=sys.stderr)
            if arguments.gather:
                print(gathered(made, arguments.records))
            else:
                print(table(made) if arguments.show else of_choice(arguments.plan, made))
    except AfieldError as error:
        sys.exit(str(error))
