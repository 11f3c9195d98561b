"""The script that holds what FAR's paper says of its features against runs of ours."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks/paper_claims.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_it_measures_the_divergence_of_a_run_and_shows_its_course(script, train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "far", 4, settings={"training.evaluate_every": 2})
    script["measure"]([run.folder], tmp_path / "divergence.jsonl")
    (line,) = map(json.loads, (tmp_path / "divergence.jsonl").read_text().splitlines())
    assert (line["label"], line["target"], line["seed"], line["step"]) == ("far", "night", 0, 4)
    assert all(line[name] > 0 for name in ("F", "A", "A+R+"))
    head, _, loss, accuracy = script["convergence"](run.folder / "records.jsonl").splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-2]] == ["step 2", "step 4"]
    assert loss.startswith("| far, loss of classification |") and accuracy.startswith("| far, target accuracy |")


def test_the_table_has_means_and_counts_the_runs_in_the_papers_order(script, tmp_path):
    file = tmp_path / "divergence.jsonl"
    runs = [{"F": 3.0, "A": 1.0, "A+R+": 2.0}, {"F": 1.0, "A": 2.0, "A+R+": 4.0}]
    file.write_text("".join(json.dumps({"label": "far", **run}) + "\n" for run in runs))
    assert script["divergence"](file).splitlines()[-1] == "| far | 2.000 | 1.500 | 3.000 | 2 | 1 |"
