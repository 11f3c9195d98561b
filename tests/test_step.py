"""A step gives the same losses however it runs: eagerly, recorded as a CUDA graph, or compiled."""

import pytest
import torch

from afield import list_methods
from afield.results.records import evaluations
from afield.training import rates
from afield.training.loop import Loop

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses_of_20_steps(train_toy, folder, method, way, device):
    # A small rate: rounding differs between the ways, and a large one makes chaos of it.
    settings = {
        "training.execution": way,
        "training.device": device,
        "training.evaluate_every": 1,
        "training.lr": 0.005,
    }
    run = train_toy(folder / way, method, steps=20, settings=settings)
    return [value for record in evaluations(run.records) for value in record["losses"].values()]


@pytest.mark.parametrize("method", ["far"])
def test_a_compiled_step_equals_the_eager_one(train_toy, tmp_path, method):
    eager, compiled = (losses_of_20_steps(train_toy, tmp_path, method, way, "cpu") for way in ("eager", "compiled"))
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(eager), rtol=1e-4, atol=1e-5)


WAYS = [
    *((method, "graph") for method in list_methods() if not method.startswith("far-")),
    *((method, "compiled") for method in ("baseline", "far")),
]


@on_gpu
@pytest.mark.parametrize(("method", "way"), WAYS)
def test_a_recorded_step_equals_the_eager_one(train_toy, tmp_path, method, way):
    eager, recorded = (losses_of_20_steps(train_toy, tmp_path, method, name, "cuda") for name in ("eager", way))
    # Rounding grows with the updates of a step, of which these two take six; one of their losses is close to 0.
    rtol, atol = (0.1, 1e-2) if method in ("mcd", "m3sda-beta") else (1e-2, 1e-3)
    torch.testing.assert_close(torch.tensor(recorded), torch.tensor(eager), rtol=rtol, atol=atol)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_step_reads_its_own_rates_across_blocks_of_them(train_toy, tmp_path, monkeypatch, device):
    monkeypatch.setattr(rates, "STEPS_OF_RATES", 6)
    used, plain = [], Loop._train_step

    def noting(loop):
        plain(loop)
        used.append((loop.training.lr.item(), loop.training.weight.item()))

    monkeypatch.setattr(Loop, "_train_step", noting)
    run = train_toy(
        tmp_path / "run", "far", steps=20, settings={"training.device": device, "training.evaluate_every": 1}
    )
    recorded = [(line["lr"], line["adaptation_weight"]) for line in evaluations(run.records)]
    torch.testing.assert_close(torch.tensor(used), torch.tensor(recorded))


@on_gpu
def test_a_recorded_run_killed_and_resumed_goes_on(train_toy, tmp_path, monkeypatch):
    # A small rate, as above.
    settings = {
        "training.execution": "graph",
        "training.device": "cuda",
        "training.evaluate_every": 1,
        "training.lr": 0.005,
    }
    unbroken = train_toy(tmp_path / "unbroken", steps=20, settings=settings)
    step = Loop._train_step

    def killed(loop):
        if loop.step == 13:
            raise KeyboardInterrupt
        step(loop)

    monkeypatch.setattr(Loop, "_train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path / "killed", steps=20, settings=settings)
    monkeypatch.setattr(Loop, "_train_step", step)
    resumed = train_toy(tmp_path / "killed", steps=20, settings=settings, resume=True)
    for one, other in zip(evaluations(unbroken.records), evaluations(resumed.records), strict=True):
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-2, abs=1e-3)
