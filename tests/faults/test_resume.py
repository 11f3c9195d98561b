"""A killed run, resumed, is bit for bit the run that was never killed."""

import subprocess
import sys
import tomllib

import pytest
import tomli_w
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from afield import AfieldError
from afield.results.records import evaluations
from afield.training.checkpoint import load_checkpoint, save_checkpoint
from support.resuming import (
    DROPOUT,
    Killed,
    assert_equal_checkpoints,
    assert_equal_runs,
    every,
    kill_after_record,
    kill_before_step,
    kill_while_saving,
)


def assert_board_agrees(run):
    board = EventAccumulator(str(run.folder / "tensorboard"))
    board.Reload()
    lines = evaluations(run.records)
    assert [event.step for event in board.Scalars("target/night")] == [line["step"] for line in lines]


@pytest.mark.parametrize(
    ("method", "settings", "kill", "where"),
    [
        ("far", every(5, 4), kill_before_step, (0,)),
        ("far", every(5, 4), kill_before_step, (3,)),
        ("far", every(5, 4), kill_before_step, (4,)),
        ("far", every(5, 4) | DROPOUT, kill_before_step, (7,)),
        ("far", every(2, 100), kill_before_step, (11,)),
        ("baseline", every(100, 1), kill_before_step, (6,)),
        ("baseline-att-align", every(1, 3) | DROPOUT, kill_before_step, (10,)),
        ("baseline", every(5, 4), kill_after_record, (5,)),
        ("far", every(4, 4), kill_after_record, (8,)),
        ("far", every(5, 5), kill_after_record, (12,)),
        ("baseline", every(5, 4), kill_while_saving, ("last.ckpt", 0)),
        ("baseline", every(8, 4), kill_while_saving, ("last.ckpt", 4)),
        ("baseline", every(5, 4), kill_while_saving, ("last.ckpt", 8)),
        ("baseline", every(4, 4), kill_while_saving, ("source-val.ckpt", 4)),
    ],
)
def test_a_killed_and_resumed_run_equals_the_unbroken_one(train_toy, tmp_path, method, settings, kill, where):
    unbroken = train_toy(tmp_path / "unbroken", method, settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, *where)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", method, settings=settings)
    torch.rand(7)  # the caller's own generator must not matter
    resumed = train_toy(tmp_path / "killed", method, settings=settings, resume=True)
    assert_equal_runs(resumed, unbroken)
    assert resumed.accuracy == unbroken.accuracy
    assert_board_agrees(resumed)


def test_a_run_killed_again_and_again_equals_the_unbroken_one(train_toy, tmp_path):
    settings = every(3, 2) | DROPOUT
    unbroken = train_toy(tmp_path / "unbroken", settings=settings)
    for step in (1, 3, 5, 6, 9, 11):
        with pytest.MonkeyPatch.context() as patch:
            kill_before_step(patch, step)
            with pytest.raises(Killed):
                train_toy(tmp_path / "killed", settings=settings, resume=step > 1)
    assert_equal_runs(train_toy(tmp_path / "killed", settings=settings, resume=True), unbroken)


@pytest.fixture
def half_run(train_toy, tmp_path):
    """A run that was killed before step 9; its last checkpoint is that of step 8."""
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 9)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", "baseline")
    return tmp_path / "killed"


@pytest.mark.parametrize("piece", ['{"event": "evaluation", "st', "{", '{"event": "end", "step": 12, "seconds": 1}'])
def test_a_half_written_line_is_healed(train_toy, tmp_path, half_run, piece):
    with (half_run / "records.jsonl").open("a") as file:
        file.write(piece)
    resumed = train_toy(half_run, "baseline", resume=True)
    assert_equal_runs(resumed, train_toy(tmp_path / "unbroken", "baseline"))


def test_a_run_killed_before_its_first_checkpoint_starts_again(train_toy, tmp_path, half_run):
    for path in half_run.iterdir():
        if path.name not in ("config.toml", "tensorboard"):
            path.unlink()
    assert_equal_runs(train_toy(half_run, "baseline", resume=True), train_toy(tmp_path / "unbroken", "baseline"))


def test_a_checkpoint_that_is_damaged_is_an_error_and_nothing_is_changed(train_toy, half_run):
    last = half_run / "last.ckpt"
    last.write_bytes(last.read_bytes()[:500])
    before = {path: path.read_bytes() for path in half_run.rglob("*") if path.is_file()}
    with pytest.raises(AfieldError, match="truncated"):
        train_toy(half_run, "baseline", resume=True)
    assert {path: path.read_bytes() for path in half_run.rglob("*") if path.is_file()} == before


def test_resuming_a_finished_run_changes_nothing(train_toy, tmp_path):
    finished = train_toy(tmp_path / "run")
    before = {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()}
    assert train_toy(tmp_path / "run", resume=True) == finished
    assert {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()} == before


def test_resuming_needs_no_option_but_the_folder(half_run, train_toy, tmp_path):
    from afield import train

    resumed = train(out=half_run, resume=True, progress=False)
    assert_equal_runs(resumed, train_toy(tmp_path / "unbroken", "baseline"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 13}, r"training\.steps = 13: the run was started with 12"),
        ({"method": "far"}, r"method\.name = far: the run was started with baseline"),
        ({"target": "fog"}, r"task\.target = fog"),
        ({"task": "dg"}, r"task\.kind = dg"),
        ({"sources": ["day"]}, r"task\.sources"),
        ({"settings": {"network.width": 16}}, r"network\.width = 16: the run was started with 8"),
        ({"settings": {"training.lr": 0.3}}, r"training\.lr = 0\.3"),
        ({"settings": {"training.setps": 3}}, r"training\.setps"),
        ({"settings": {"trainig.steps": 3}}, r"did you mean 'training'"),
    ],
)
def test_a_resumed_run_cannot_become_another(train_toy, half_run, options, message):
    with pytest.raises(AfieldError, match=message):
        train_toy(half_run, **{"method": "baseline", "resume": True, **options})
    assert load_checkpoint(half_run / "last.ckpt").step == 8


def test_there_must_be_a_run_to_resume(train_toy, tmp_path):
    with pytest.raises(AfieldError, match="no run to resume"):
        train_toy(tmp_path, resume=True)


def test_a_run_that_lost_its_last_checkpoint_is_not_thrown_away(train_toy, tmp_path):
    run = train_toy(tmp_path / "run")
    run.checkpoint.unlink()
    records = (tmp_path / "run/records.jsonl").read_bytes()
    with pytest.raises(AfieldError, match=r"last\.ckpt is gone.*overwrite starts anew"):
        train_toy(tmp_path / "run", resume=True)
    assert (tmp_path / "run/records.jsonl").read_bytes() == records
    assert (tmp_path / "run/source-val.ckpt").exists()


def test_a_run_begun_before_there_were_some_options_goes_on_with_their_defaults(train_toy, tmp_path, half_run):
    new = {"accumulate", "optimiser", "pretrained_rate", "nesterov", "betas", "milestones", "gamma"}
    checkpoint = load_checkpoint(half_run / "last.ckpt")
    names = list(checkpoint.state["model"])
    remembered = checkpoint.state["optimiser"]
    # As it was stored then: by the numbers of parameters, with the settings of torch's optimiser.
    numbers = {name: number for number, name in enumerate(n for n in names if n in remembered)}
    checkpoint.state["optimiser"] = {
        "state": {numbers[name]: state for name, state in remembered.items()},
        "param_groups": [{"lr": torch.tensor(0.01), "momentum": 0.9, "params": list(numbers.values())}],
    }
    config = tomllib.loads((half_run / "config.toml").read_text("utf-8"))
    for values in (checkpoint.config, config):
        values["training"] = {key: value for key, value in values["training"].items() if key not in new}
    save_checkpoint(half_run / "last.ckpt", checkpoint)
    (half_run / "config.toml").write_text(tomli_w.dumps(config), "utf-8")
    resumed, unbroken = train_toy(half_run, "baseline", resume=True), train_toy(tmp_path / "unbroken", "baseline")
    assert_equal_checkpoints(resumed.checkpoint, unbroken.checkpoint)


@pytest.mark.parametrize("damage", [{"method": {}}, {"training": 3}, {"training": {"no_such_option": 1}}, {}])
def test_a_checkpoint_of_another_config_is_an_error(train_toy, half_run, damage):
    checkpoint = load_checkpoint(half_run / "last.ckpt")
    checkpoint.config.update(damage or {"network": {**checkpoint.config["network"], "width": 9}})
    save_checkpoint(half_run / "last.ckpt", checkpoint)
    with pytest.raises(AfieldError, match="are not of one run: their configs differ"):
        train_toy(half_run, "baseline", resume=True)


def test_a_stored_config_without_a_method_is_an_error(train_toy, half_run):
    config = tomllib.loads((half_run / "config.toml").read_text("utf-8"))
    config["method"] = {}
    (half_run / "config.toml").write_text(tomli_w.dumps(config), "utf-8")
    with pytest.raises(AfieldError, match=r"'method\.name'"):
        train_toy(half_run, "baseline", resume=True)


DYING_WRITER = """
import os, signal, sys
from pathlib import Path
from afield.files import replacing

with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    temporary.with_name(".tmpA1").write_bytes(b"half")  # safetensors writes into a temporary file of its own
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_left_half_written_is_swept_away(train_toy, half_run):
    names = {path.name for path in half_run.iterdir()}
    for name in ("last.ckpt", "source-val.ckpt", "records.jsonl"):
        subprocess.run([sys.executable, "-c", DYING_WRITER, half_run / name], check=False)
    assert len(list(half_run.iterdir())) == len(names) + 3
    train_toy(half_run, "baseline", resume=True)
    assert {path.name for path in half_run.iterdir()} == names
