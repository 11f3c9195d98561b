"""The script that times a whole table."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLAN = """
protocol = "digits/embedded"
methods = ["baseline", "coral"]
targets = ["street"]
seeds = [0]
settings.training.steps = 1
settings.training.evaluate_every = 1
"""


def timed(*arguments):
    command = [sys.executable, ROOT / "benchmarks/table_time.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_what_a_table_takes_is_measured_once_and_shown(tmp_path):
    plan, out = tmp_path / "plan.toml", tmp_path / "time.json"
    plan.write_text(PLAN)
    arguments = plan, "--records", tmp_path / "records", "--workers", "1", "--out", out
    done = timed(*arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["plan"], found["methods"], found["runs"], found["failed"]) == ("plan.toml", 2, 2, False)
    assert found["seconds"] > found["seconds_of_runs"] > 0, "one run at a time, and starting the process comes on top"
    shown = timed("--show", out)
    assert shown.stdout in done.stdout
    assert "| plan.toml | 2 | 2 | 1 | 1 |" in shown.stdout
    again = timed(*arguments)
    assert again.stderr.endswith("plan.toml: no run was made, so there is nothing to measure\n")
