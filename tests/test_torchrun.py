"""`torchrun -m afield train`: processes that others have started share a run, on one machine or on several."""

import os
import socket
import subprocess
import sys

import pytest
import torch

import afield
from afield.app.stopped import say_stopped
from afield.config.torchrun import MARK, torchrun
from afield.results.run import read_run
from afield.training.checkpoint import load_checkpoint

SETTINGS = {
    "training.device": "cpu", "training.batch_size": 4, "training.evaluate_every": 2, "training.checkpoint_every": 2,
    "network.width": 8, "training.lr": 0.005,
}  # fmt: skip
WORDS = ["train", "--data", "digits", "--target", "uci", "--method", "far", "--steps", "3"]
WORDS += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_two_machines_of_torchrun_train_as_one_process_does(tmp_path):
    place = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *place]
    nodes = [
        subprocess.Popen(
            [*command, f"--node-rank={number}", "-m", "afield", *WORDS, "--out", str(tmp_path / "two")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for number in (0, 1)
    ]  # fmt: skip
    said = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "held-out images" in said[0][0]
    assert said[1][0] == "", "the first process speaks for all"
    run = afield.train(
        "digits", target="uci", method="far", steps=3, out=tmp_path / "one", settings=SETTINGS, progress=False
    )
    two, one = (load_checkpoint(tmp_path / name / "last.ckpt") for name in ("two", "one"))
    assert (two.config["training"]["devices"], two.config["training"]["nodes"]) == (1, 2)
    for name, value in one.state["model"].items():
        torch.testing.assert_close(two.state["model"][name], value, rtol=1e-5, atol=1e-5)
    expected = run.evaluation["losses"]
    assert read_run(tmp_path / "two").evaluation["losses"] == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def started(monkeypatch):
    """Makes this process one that torchrun has started."""

    def start(rank=0, processes=2, here=2, restarts=0):
        given = {
            MARK: "none", "RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": here,
            "TORCHELASTIC_RESTART_COUNT": restarts,
        }  # fmt: skip
        for name, value in given.items():
            monkeypatch.setenv(name, str(value))

    return start


@pytest.mark.parametrize(
    ("world", "settings", "why"),
    [
        ({"processes": 2}, {"training.devices": 4}, "'training.devices': 4, and torchrun has started 2"),
        ({"processes": 4}, {"training.nodes": 1}, "'training.nodes': 1, and torchrun has started 2"),
        ({"processes": 3}, {}, "torchrun has started 3 processes, 2 of them here: all machines must have as many"),
        ({"processes": 2}, {"training.batch_size": 5}, r"batch_size \(5\) cannot be divided among 2 processes"),
    ],
)
def test_what_does_not_fit_torchrun_is_refused(started, tmp_path, world, settings, why):
    started(**world)
    with pytest.raises(afield.AfieldError, match=why):
        afield.train("digits", target="uci", out=tmp_path / "run", settings=settings, progress=False)
    assert not (tmp_path / "run").exists()


def test_only_training_can_use_several_processes_and_only_the_first_says_that_it_was_stopped(started, call, capfd):
    assert torchrun() is None
    started(rank=1)
    assert call("methods") == (
        2, "", "afield (process 1): torchrun starts several processes, which only `afield train` can use\n",
    )  # fmt: skip
    say_stopped("interrupted")
    assert capfd.readouterr().err == ""


def test_a_run_that_torchrun_starts_anew_goes_on_from_its_checkpoint(started, tmp_path):
    settings = SETTINGS | {"training.device": "cpu"}
    given = {"data": "digits", "target": "uci", "method": "baseline", "settings": settings, "progress": False}
    started(processes=1, here=1)
    afield.train(**given, steps=2, out=tmp_path)
    with pytest.raises(afield.AfieldError, match="already holds a run"):
        afield.train(**given, steps=2, out=tmp_path)
    started(processes=1, here=1, restarts=1)
    assert afield.train(**given, steps=2, out=tmp_path).step == 2
