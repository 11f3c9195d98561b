"""The script that gives each row of a plan its rate, on the records of PACS that docs/research-log.md speaks of."""

import subprocess
import sys
from pathlib import Path

import pytest

from afield.config.plan import plan_jobs, read_plan_file
from afield.results.records import read_runs

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results/research/photos-rate-224.jsonl"
PLAN = """
protocols = ["pacs/lite0", "pacs/mobilenetv2"]
methods = ["baseline"]
seeds = [0, 1, 2]
settings.network.pretrained = false
rows = [{label = "far, averaged", method = "far", settings.training.average = "uniform"}]
"""


def rates(*arguments):
    command = [sys.executable, ROOT / "benchmarks/rates.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def jobs_of(done, folder):
    assert done.returncode == 0, done.stderr
    (folder / "printed.toml").write_text(done.stdout)
    return plan_jobs(read_plan_file(folder / "printed.toml"))


def test_every_row_is_tried_at_every_rate_with_one_seed_and_its_own_settings(plan, tmp_path):
    jobs = jobs_of(rates(plan, "--try", "0.01", "0.04"), tmp_path)
    assert len(jobs) == 2 * 2 * 2 * 4  # protocols, rows, rates, targets
    assert {job.seed for job in jobs} == {0}
    for job in jobs:
        assert job.place.label.endswith(f", rate {job.config.training.lr:g}")
        assert (job.config.training.average == "uniform") == job.place.label.startswith("far, averaged")


def test_each_row_gets_the_rate_that_held_out_images_of_the_sources_choose(plan, tmp_path):
    plan.write_text(PLAN.replace('["baseline"]', '["baseline", "far"]').partition("rows")[0])
    done = rates(plan, "--records", RECORDS)
    jobs = jobs_of(done, tmp_path)
    assert len(jobs) == 2 * 2 * 4 * 3  # protocols, rows, targets, seeds
    chosen = {(job.place.protocol, job.place.label): job.config.training.lr for job in jobs}
    assert chosen == {
        ("pacs/lite0", "baseline at its rate"): 0.04,
        ("pacs/lite0", "far at its rate"): 0.02,
        ("pacs/mobilenetv2", "baseline at its rate"): 0.01,
        ("pacs/mobilenetv2", "far at its rate"): 0.01,
    }
    assert done.stderr == "baseline under pacs/lite0: 0.04 is at the edge of what was tried\n"
    shown = rates(plan, "--records", RECORDS, "--show").stdout
    assert "| pacs/lite0 | far | 92.74 | 94.43 | **95.31** | 94.89 | 83.1 |" in shown


def test_a_row_that_was_not_tried_is_an_error(plan):
    done = rates(plan, "--records", RECORDS)
    assert done.returncode == 1
    assert done.stderr == "no rate of row 'far, averaged' under pacs/lite0 was tried on all targets\n"


def test_one_protocol_of_the_plan_may_be_asked_for(plan, tmp_path):
    plan.write_text(PLAN.partition("rows")[0])
    jobs = jobs_of(rates(plan, "--records", RECORDS, "--protocol", "pacs/mobilenetv2"), tmp_path)
    assert {job.place.protocol for job in jobs} == {"pacs/mobilenetv2"}
    missing = rates(plan, "--records", RECORDS, "--protocol", "pacs/mobilenet")
    assert missing.stderr == "the plan has no protocol 'pacs/mobilenet'\n"


def test_the_records_of_the_chosen_rates_are_gathered_once_under_the_labels_of_the_plan(plan, tmp_path):
    plan.write_text(PLAN.replace('["baseline"]', '["baseline", "far"]').partition("rows")[0])
    done = rates(plan, "--records", RECORDS, RECORDS, "--gather")
    (tmp_path / "gathered.jsonl").write_text(done.stdout)
    headers = [run[0] for run in read_runs(tmp_path / "gathered.jsonl")]
    assert len(headers) == 2 * 2 * 4  # protocols, rows, targets: one seed was recorded
    found = {(one["protocol"]["name"], one["label"], one["config"]["training"]["lr"]) for one in headers}
    assert found == {
        ("pacs/lite0", "baseline", 0.04),
        ("pacs/lite0", "far", 0.02),
        ("pacs/mobilenetv2", "baseline", 0.01),
        ("pacs/mobilenetv2", "far", 0.01),
    }
