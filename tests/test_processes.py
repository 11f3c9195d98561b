"""Training in several processes: equal weights everywhere, kills that change nothing, and what is refused."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import afield
from afield.config.layers import resolve
from afield.results.run import read_run
from afield.training.checkpoint import load_checkpoint, save_checkpoint
from afield.training.devices import make_fabric
from support.benching import saved_step, wait_for
from support.children import alive, descendants
from support.in_processes import killed, unbroken_killed_and_resumed
from support.resuming import assert_equal_runs
from support.two_processes import STEPS, ranks_of, start_two, wait_until_further

TWO = {
    "training.devices": 2, "training.device": "cpu", "training.batch_size": 4, "training.evaluate_every": 3,
    "training.checkpoint_every": 2, "training.steps": 5, "network.width": 8,
}  # fmt: skip


RECIPES = {"adda": {"accumulate": 2}, "dctn": {"optimiser": "adam", "lr": 0.001}}


def as_layer(method, precision):
    layer = {"data": {"name": "digits"}, "task": {"target": "uci"}, "method": {"name": method}, "network": {}}
    layer["training"] = {"precision": precision, **RECIPES.get(method, {})}
    for key, value in TWO.items():
        section, name = key.split(".")
        layer[section][name] = value
    return layer


# Methods of several updates per step, and of two phases.
@pytest.mark.parametrize(("precision", "methods"), [("fp32", ["m3sda-beta", "adda", "dctn"]), ("bf16", ["mcd"])])
def test_alternating_updates_keep_processes_equal_and_a_resumed_run_equals_the_unbroken_one(
    tmp_path, precision, methods
):
    layers = [as_layer(method, precision) for method in methods]
    fabric = make_fabric(resolve(layers[0]).training)
    assert fabric.launch(partial(unbroken_killed_and_resumed, layers, str(tmp_path))) == [True] * len(layers)
    for number in range(len(layers)):
        assert_equal_runs(*(read_run(tmp_path / str(number) / name) for name in ("killed", "unbroken")))


def test_a_run_goes_on_in_another_number_of_processes_as_if_it_had_always_had_it(tmp_path):
    layer = as_layer("far", "fp32")
    layer["training"]["lr"] = 0.005  # with larger steps the last bits of weights soon matter
    make_fabric(resolve(layer).training).launch(partial(killed, layer, str(tmp_path / "run")))
    settings = TWO | {"training.devices": 1, "training.lr": 0.005}
    given = {"data": "digits", "target": "uci", "method": "far", "settings": settings, "progress": False}
    afield.train(**given, out=tmp_path / "run", resume=True)
    afield.train(**given, out=tmp_path / "one")
    resumed, one = (load_checkpoint(tmp_path / name / "last.ckpt") for name in ("run", "one"))
    assert resumed.step == one.step == 5
    for name, value in one.state["model"].items():
        torch.testing.assert_close(resumed.state["model"][name], value, rtol=1e-5, atol=1e-5)


def test_a_run_of_an_older_version_with_a_batch_for_each_process_is_not_resumed(tmp_path):
    settings = TWO | {"training.devices": 1}
    afield.train("digits", "uda", "uci", "baseline", out=tmp_path, settings=settings, progress=False)
    old = load_checkpoint(tmp_path / "last.ckpt")
    save_checkpoint(tmp_path / "last.ckpt", replace(old, state=old.state | {"others": [{"stream": {"step": 5}}]}))
    with pytest.raises(afield.AfieldError, match="an older version began it in several processes with a batch each"):
        afield.train(out=tmp_path, resume=True, progress=False)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"devices": 100_000, "batch_size": 100_000}, "'training.devices': 100000 are asked for, and there are"),
        ({"devices": 2, "batch_size": 5}, r"batch_size \(5\) cannot be divided among 2 processes"),
        ({"nodes": 2, "batch_size": 4}, "'training.nodes': to train on 2 machines, call on each of them torchrun"),
    ],
)
def test_processes_that_cannot_be_had_are_refused_before_any_starts(tmp_path, settings, why):
    settings = {f"training.{key}": value for key, value in settings.items()} | {"training.device": "cpu"}
    with pytest.raises(afield.AfieldError, match=why):
        afield.train("digits", target="uci", out=tmp_path / "run", settings=settings, progress=False)
    assert not (tmp_path / "run").exists()


def imports_torch(process):
    return "libtorch" in Path(f"/proc/{process}/maps").read_text("utf-8")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes by way of /proc")
def test_when_one_process_is_killed_the_others_end_in_one_line_and_leave_no_orphan(tmp_path):
    process = start_two(tmp_path / "run")
    wait_until_further(tmp_path / "run", 0)
    ranks = ranks_of(process)
    os.kill(ranks[1], signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 2
    assert said.splitlines()[-1] == (
        "afield: one of the run's processes was killed by SIGKILL; resuming the run goes on from its last checkpoint"
    )
    assert "Traceback" not in said
    assert not any(map(alive, ranks))

    # If the process is killed that has started them, even before they train, they save where they stand and go.
    reached = saved_step(tmp_path / "run")
    process = start_two(tmp_path / "run", resume=True)
    wait_for(lambda: len(ranks := descendants(process.pid, "spawn_main")) == 2 and all(map(imports_torch, ranks)))
    ranks = ranks_of(process)
    process.kill()
    wait_for(lambda: not any(map(alive, ranks)))
    process.communicate()
    assert reached < saved_step(tmp_path / "run") < STEPS


def test_two_processes_from_python_and_a_divergence_in_one_line(tmp_path):
    run = afield.train("digits", "uda", "uci", "far", out=tmp_path / "run", settings=TWO, progress=False)
    assert run.step == 5
    with pytest.raises(afield.AfieldError, match="training diverged"):
        wild = TWO | {"training.lr": 1e30}
        afield.train("digits", "uda", "uci", "far", out=tmp_path / "wild", settings=wild, progress=False)


def test_a_script_without_a_guard_is_told_so_and_begins_nothing_twice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import afield\n"
        "print('began', flush=True)\n"
        "settings = {'training.devices': 2, 'training.device': 'cpu', 'network.width': 8, 'training.batch_size': 4}\n"
        f"afield.train('digits', target='street', method='baseline', steps=1, out={str(tmp_path / 'run')!r},\n"
        "             settings=settings, progress=False, overwrite=True)\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1].startswith("afield.errors.AfieldError: one of the run's processes")
    assert "if __name__ == '__main__':" in result.stderr
    assert not (tmp_path / "run").exists()
