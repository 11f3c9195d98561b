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
from afield.results.records import evaluations
from afield.results.run import read_run
from afield.training.checkpoint import load_checkpoint
from support import dying_rank
from support.resuming import assert_equal_states

SETTINGS = {
    "training.device": "cpu", "training.batch_size": 4, "training.evaluate_every": 2, "training.checkpoint_every": 2,
    "network.width": 8, "training.lr": 0.005,
}  # fmt: skip
WORDS = ["train", "--data", "digits", "--target", "uci", "--method", "far", "--steps", "5"]
WORDS += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(port, *words):
    """Start a machine's torchrun."""
    place = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *place, *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of a run on two machines."""
    out = tmp_path_factory.mktemp("torchrun") / "two"
    port = free_port()
    place = ["--nnodes=2", "--nproc-per-node=1"]
    words = ["-m", "afield", *WORDS, "--out", out]
    nodes = [start(port, *place, f"--node-rank={number}", *words) for number in (0, 1)]
    said = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "held-out images" in said[0][0]
    assert said[1][0] == "", "the first process speaks for all"
    return out


def test_two_machines_of_torchrun_train_as_one_process_does(two, tmp_path):
    run = afield.train(
        "digits", target="uci", method="far", steps=5, out=tmp_path / "one", settings=SETTINGS, progress=False
    )
    several, one = load_checkpoint(two / "last.ckpt"), load_checkpoint(tmp_path / "one/last.ckpt")
    assert (several.config["training"]["devices"], several.config["training"]["nodes"]) == (1, 2)
    for name, value in one.state["model"].items():
        torch.testing.assert_close(several.state["model"][name], value, rtol=1e-5, atol=1e-5)
    expected = run.evaluation["losses"]
    assert read_run(two).evaluation["losses"] == pytest.approx(expected, rel=1e-5)


def test_a_run_that_torchrun_starts_anew_after_a_kill_equals_the_unbroken_one(two, tmp_path):
    out = tmp_path / "killed"
    words = ["--nproc-per-node=2", "--max-restarts=1", dying_rank.__file__, *WORDS, "--out", out]
    process = start(free_port(), *words)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert "failed (exitcode: -9) local_rank: 1" in said
    killed, unbroken = (load_checkpoint(folder / "last.ckpt") for folder in (out, two))
    assert_equal_states(killed.state, unbroken.state)  # configs differ: it has its two processes on one machine
    evaluated = [evaluations(read_run(folder).records) for folder in (out, two)]
    assert evaluated[0] == evaluated[1]


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
