"""The engine of a Slurm cluster: the script it writes, and a stand-in for sbatch that takes it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from afield.app.cli import main
from support.benching import recorded, step_of, wait_for, write_digits_plan

STEPS = 600
SBATCH = """#!/bin/bash
grep -q '^#SBATCH --array=1-2$' "$1" || { echo "no array" >&2; exit 1; }
here=$PWD
rm -f code-*
cd /
for task in 1 2; do
    (
        SLURM_ARRAY_TASK_ID=$task bash "$here/$1" >"$here/said-$task" 2>&1 &
        echo $! >"$here/shell-$task"
        wait $!
        echo $? >"$here/code-$task"
    ) >&- 2>&- &
done
echo "Submitted batch job 17"
"""
"""It begins the tasks of an array itself, and notes their shells and what those exit with."""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Exit code, output and errors of `afield bench` with the engine slurm, on a plan of two runs."""
    monkeypatch.chdir(tmp_path)
    write_digits_plan("plan.toml", [0, 1], **{"training.steps": 2})

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["afield", "bench", "plan.toml", "--out", "out", "--engine", "slurm", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return stopped.value.code, said.out.strip(), said.err.strip()

    return run


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A command of that name."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/sbatch"
    command.write_text(SBATCH, "utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # or tasks on one machine are in each other's way


def codes_of_tasks():
    """What the shells of both tasks have exited with, once they have."""
    files = [Path(f"code-{task}") for task in (1, 2)]
    wait_for(lambda: all(file.exists() and file.read_text("ascii").strip() for file in files))
    return [int(file.read_text("ascii")) for file in files]


def test_tasks_of_the_script_train_a_shard_each_stop_when_slurm_says_so_and_go_on_when_submitted_again(call, sbatch):
    write_digits_plan("plan.toml", [0, 1], **{"training.steps": STEPS})
    words = ["--shards", "2", "--sbatch=--time=04:00:00", "--sbatch=--gres=gpu:1", "--workers", "1", "--submit"]
    assert call(*words) == (0, "Submitted batch job 17", "")
    lines = Path("out/slurm.sh").read_text("utf-8").splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert {"--job-name=afield-plan", "--array=1-2", "--signal=B:TERM@120"} <= set(options)
    assert options[-2:] == ["--time=04:00:00", "--gres=gpu:1"]

    # As a little before their time is up: Slurm sends the signal to the shell of each.
    shards = [f"out/shard-{task}-of-2" for task in (1, 2)]
    for task, shard in enumerate(shards, 1):
        wait_for(lambda shard=shard: step_of(shard))
        os.kill(int(Path(f"shell-{task}").read_text("ascii")), signal.SIGTERM)
    assert codes_of_tasks() == [128 + signal.SIGTERM] * 2
    assert recorded() == {}
    assert all(0 < step_of(shard) < STEPS for shard in shards)

    assert call(*words)[0] == 0
    assert codes_of_tasks() == [0, 0]
    for task, shard in enumerate(shards, 1):
        assert f"1 of 1 runs of shard {task}/2 are recorded" in Path(f"said-{task}").read_text("utf-8")
        assert Path(shard, "records.jsonl").exists()
    assert list(recorded()) == [("baseline", "uci", 0), ("baseline", "uci", 1)]


def test_without_submit_it_says_how_and_a_path_with_spaces_stays_one_word(call, tmp_path, monkeypatch):
    (tmp_path / "my plans").mkdir()
    monkeypatch.chdir(tmp_path / "my plans")
    write_digits_plan("plan.toml", [0, 1])
    assert call("--shards", "1") == (0, "sbatch out/slurm.sh submits it; afield table out shows what it records", "")
    *_, command = Path("out/slurm.sh").read_text("utf-8").splitlines()
    asked = subprocess.run(["bash", "-c", command.replace("exec", "printf '%s\\n'", 1)], capture_output=True, text=True)
    assert str(tmp_path / "my plans/plan.toml") in asked.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a number of shards, such as --shards 8"),
        (["--shards", "3"], "there are 2 runs: they can have 1 to 2 shards, not 3"),
        (
            ["--shards", "2", "--sbatch", "time=1"],
            "is one line, such as --time=04:00:00 or -p gpu, not 'time=1'",
        ),
        (["--shards", "2", "--sbatch", "-"], "is one line, such as --time=04:00:00 or -p gpu, not '-'"),
        (["--shards", "2", "--stall", "-1"], "more than 0 and at most 525600, not -1.0"),
        (["--shards", "2", "--keep", "lats"], "unknown selector 'lats'; did you mean 'last'?"),
        (["--shards", "2", "--shard", "1/2"], "the engine slurm has no --shard; local and ray have"),
        (["--shards", "2", "--gpus-per-run", "1"], "the engine slurm has no --gpus-per-run; ray has"),
        (["--shards", "2", "--submit"], "there is no sbatch here; out/slurm.sh can be submitted where there is one"),
    ],
)
def test_what_slurm_cannot_be_asked_is_one_line(call, monkeypatch, words, message):
    monkeypatch.setenv("PATH", "/nowhere")
    code, said, error = call(*words)
    assert (code, said) == (2, "")
    assert error.endswith(message)


def test_a_refusal_of_sbatch_is_one_line(call, sbatch):
    code, _, error = call("--shards", "1", "--submit")
    assert (code, error) == (2, "afield: sbatch refused out/slurm.sh: no array")
