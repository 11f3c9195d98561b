"""Two things that FAR's paper says of its features, measured on runs of ours (section 4.4 and its supplementary).

    afield bench plans/claims.toml --out results/claims --keep last
    python benchmarks/paper_claims.py measure results/claims/kept/* --json results/claims/divergence.jsonl
    python benchmarks/paper_claims.py divergence results/claims/divergence.jsonl
    python benchmarks/paper_claims.py convergence results/claims/records.jsonl

`measure` looks at the checkpoints, which are not committed, and writes down the divergence between the target and each
source (docs/glossary.md says what that is), its mean over the sources, of F, A and A + R+. `divergence` shows it as a
table of means over runs, and how many runs have the paper's order, A below A + R+ below F. `convergence` shows, from
records, C's loss on the sources and the accuracy on the target over the steps: with experts training should be faster.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from afield.errors import AfieldError
from afield.files import write_whole
from afield.results.figures import runs_at
from afield.results.records import Record, evaluations

MAPS = ("F", "A", "A+R+")
Curves = dict[str, dict[int, list[float]]]


def measure(folders: list[Path], out: Path) -> None:
    """One line per run: its label, target, seed, step and divergences."""
    from afield.analysis.divergence import divergence_of
    from afield.analysis.features import features_of
    from afield.app.looking import open_subject, read_named

    lines = []
    for named in read_named(folders):
        subject, step, _ = open_subject(named)
        found = divergence_of(features_of(subject))
        header = named.histories[0].header
        if found is None or subject.target is None:
            raise AfieldError(f"{named.path} has no target to compare with its sources")
        values = {name: round(found.mean(name, subject.target), 6) for name in MAPS if name in found.between}
        seed = header["config"]["training"]["seed"]
        lines.append({"label": label_of(header), "target": subject.target, "seed": seed, "step": step, **values})
        print(lines[-1], file=sys.stderr)
    write_whole(out, "".join(f"{json.dumps(line)}\n" for line in lines))


def label_of(header: Record) -> str:
    """A benchmark's name for a run, or that of its method."""
    label: str = header.get("label") or header["config"]["method"]["name"]
    return label


def divergence(file: Path) -> str:
    """The table of what was measured."""
    runs = defaultdict(list)
    for line in file.read_text("utf-8").splitlines():
        runs[(run := json.loads(line))["label"]].append(run)
    lines = [["method", *MAPS, "runs", "A < A + R+ < F"], ["---", *["---:"] * 5]]
    for label, found in runs.items():
        ordered = sum(run["A"] < run["A+R+"] < run["F"] for run in found)
        lines.append(
            [label, *(f"{fmean(run[name] for run in found):.3f}" for name in MAPS), str(len(found)), str(ordered)]
        )
    return _table(lines)


def convergence(records: Path) -> str:
    """The table of accuracies and of C's cross-entropy over steps; the latter is a mean since the step before."""
    curves: Curves = defaultdict(lambda: defaultdict(list))
    for run in runs_at(records):
        for evaluation in evaluations(run):
            (result,) = evaluation["target"].values()
            label, step = label_of(run[0]), evaluation["step"]
            curves[f"{label}, target accuracy"][step].append(100 * result["accuracy"])
            curves[f"{label}, loss of classification"][step].append(evaluation["losses"]["classification"])
    steps = sorted({step for curve in curves.values() for step in curve})
    lines = [["method", *(f"step {step}" for step in steps), "runs"], ["---", *["---:"] * (len(steps) + 1)]]
    for label, curve in sorted(curves.items(), key=lambda item: item[0].split(", ")[1]):
        shown = "{:.1f}" if label.endswith("accuracy") else "{:.3f}"
        lines.append([label, *(shown.format(fmean(curve[step])) for step in steps), str(len(curve[steps[-1]]))])
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("folders", type=Path, nargs="+")
    measuring.add_argument("--json", type=Path, required=True)
    for name in ("divergence", "convergence"):
        commands.add_parser(name).add_argument("file", type=Path)
    asked = parser.parse_args()
    try:
        if asked.command == "measure":
            measure(asked.folders, asked.json)
        else:
            print({"divergence": divergence, "convergence": convergence}[asked.command](asked.file))
    except AfieldError as error:
        sys.exit(str(error))
