"""Training in several processes: one batch in parts, equal weights everywhere, and a kill that changes nothing."""

import subprocess
import sys
from functools import partial

import pytest
import torch

import afield
from afield.config.layers import resolve
from afield.data.batches import BatchStream
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.results.run import read_run
from afield.training.checkpoint import load_checkpoint
from afield.training.devices import make_fabric
from support.in_processes import unbroken_killed_and_resumed
from support.resuming import assert_equal_runs

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


def test_the_parts_of_a_batch_are_together_the_batch_of_one_process(toy):
    task, _ = make_task(toy, "uda", "night")
    preprocessing = Preprocessing(16, (0.5,) * 3, (0.5,) * 3)

    def stream(per_domain, share):
        return BatchStream(task, per_domain, preprocessing, torch.device("cpu"), 0, part=share)

    whole, parts = stream(6, (0, 1)), [stream(3, (which, 2)) for which in (0, 1)]
    for _ in range(20):  # over the ends of all domains
        batch, (first, second) = whole.next(), (part.next() for part in parts)
        together = torch.cat((first.by_domain(first.images), second.by_domain(second.images)), dim=1)
        assert torch.equal(together, batch.by_domain(batch.images))
        assert torch.equal(
            torch.cat((first.by_domain(first.labels), second.by_domain(second.labels)), dim=1).flatten(), batch.labels
        )


def test_processes_that_share_a_batch_augment_it_differently(toy):
    task, _ = make_task(toy, "uda", "night")
    preprocessing = Preprocessing(16, (0.5,) * 3, (0.5,) * 3)
    noises = [BatchStream(task, 3, preprocessing, torch.device("cpu"), 0, part=(n, 2)).noise for n in (0, 1)]
    assert not torch.equal(*(torch.rand(4, generator=noise) for noise in noises))


# Methods of several updates per step, and of two phases.
@pytest.mark.parametrize(("precision", "methods"), [("fp32", ["m3sda-beta", "adda", "dctn"]), ("bf16", ["mcd"])])
def test_alternating_updates_keep_processes_equal_and_a_resumed_run_equals_the_unbroken_one(
    tmp_path, precision, methods
):
    layers = [as_layer(method, precision) for method in methods]
    fabric = make_fabric(resolve(layers[0]).training)
    assert fabric.launch(partial(unbroken_killed_and_resumed, layers, str(tmp_path))) == [True] * len(layers)
    for number in range(len(layers)):
        killed, unbroken = (read_run(tmp_path / str(number) / name) for name in ("killed", "unbroken"))
        assert_equal_runs(killed, unbroken)
    for number, method in enumerate(methods):
        (other,) = load_checkpoint(tmp_path / str(number) / "unbroken/last.ckpt").state["others"]
        assert other["stream"]["step"] == 5 * RECIPES.get(method, {}).get("accumulate", 1)


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
