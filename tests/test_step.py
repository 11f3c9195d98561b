"""A step gives the same losses however it runs: eagerly, recorded as a CUDA graph, or compiled."""

import warnings
from copy import deepcopy

import pytest
import torch

from afield import AfieldError, kernels, list_methods
from afield.config.training import TrainingOptions
from afield.methods import Learning
from afield.methods.baseline import Baseline
from afield.results.records import evaluations
from afield.training import rates
from afield.training.loop import Loop
from afield.training.optimisers import Optimisers
from afield.training.schedules import learning_rate
from support.recipes import Small, build, make_batches, make_step, weights

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses_of_20_steps(train_toy, folder, method, way, device, **others):
    # A small rate: rounding differs between the ways, and a large one makes chaos of it.
    settings = {
        "training.execution": way,
        "training.device": device,
        "training.evaluate_every": 1,
        "training.lr": 0.005,
        **others,
    }
    run = train_toy(folder / way, method, steps=20, settings=settings)
    return [value for record in evaluations(run.records) for value in record["losses"].values()]


@pytest.mark.parametrize("method", ["far"])
def test_a_compiled_step_equals_the_eager_one(train_toy, tmp_path, method):
    eager, compiled = (losses_of_20_steps(train_toy, tmp_path, method, way, "cpu") for way in ("eager", "compiled"))
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(eager), rtol=1e-4, atol=1e-5)


WAYS = [
    *((name, "graph") for name in list_methods() if not (name.startswith("far-") or name.endswith("-paper"))),
    *((method, "compiled") for method in ("baseline", "far")),
]


@on_gpu
@pytest.mark.parametrize(("method", "way"), WAYS)
def test_a_recorded_step_equals_the_eager_one(train_toy, tmp_path, method, way):
    eager, recorded = (losses_of_20_steps(train_toy, tmp_path, method, name, "cuda") for name in ("eager", way))
    # Rounding grows with the updates of a step, of which two of these take six; one of their losses is close to 0. The
    # third is a product of kernels.
    rtol, atol = (0.1, 1e-2) if method in ("mcd", "m3sda-beta", "jan") else (1e-2, 1e-3)
    torch.testing.assert_close(torch.tensor(recorded), torch.tensor(eager), rtol=rtol, atol=atol)


class Grouped(Baseline):
    """Five groups of two optimisers, and a part that stands still, in the second phase another; one joins late."""

    phases = (0.5,)

    def __init__(self, shape, options):
        super().__init__(shape, options)
        self.late = torch.nn.Parameter(torch.ones(3))

    def learning(self):
        return {
            "backbone.0": Learning(rate=0.5 if self.phase else 0.0),
            "backbone.1": Learning(rate=0.0 if self.phase else 0.5),
            "backbone.2": Learning(rate=2.0, weight_decay=0.01),
            "late": Learning(rate=3.0, optimiser="adam"),
            "classifier": Learning(rate=0.1, optimiser="adam", weight_decay=0.0),
        }

    def losses_of(self, F, batch):
        joined = {"late": self.late.square().sum()} if self.phase else {}
        return super().losses_of(F, batch) | joined


# Adam moves a weight by the whole rate however small its gradient is; so its rate is smaller than the others'.
ADAM, ADAMW = ({"training.optimiser": name, "training.lr": 0.0005} for name in ("adam", "adamw"))
SEVERAL = {"training.accumulate": 2}
STREAMED = {"data.placement": "streamed"}
RECIPES = [
    ("far", ADAM),
    ("far", ADAMW | {"training.clip_norm": 1.0}),
    ("far", {"training.nesterov": True, "training.schedule": "inverse"}),
    ("adda", ADAM | {"training.schedule": "steps", "training.milestones": [4, 8]}),
    ("m3sda-beta", ADAM),
    ("grouped", {}),
    ("grouped", ADAMW | SEVERAL),
    ("far", SEVERAL),
    ("far", {"training.accumulate": 3} | STREAMED),
    ("far", SEVERAL | ADAM | {"training.precision": "bf16"}),
    ("adda", SEVERAL),
    ("mcd", SEVERAL | STREAMED),
    ("mcd", {"network.batch_norm": "apart"}),  # where the target passes alone
]


@on_gpu
@pytest.mark.filterwarnings("error:.*capturable")  # of which a user need not know
@pytest.mark.parametrize(("method", "settings"), RECIPES)
def test_a_recorded_step_equals_the_eager_one_with_any_recipe(train_toy, tmp_path, register, method, settings):
    register("grouped", Grouped)
    eager, recorded = (
        losses_of_20_steps(train_toy, tmp_path, method, way, "cuda", **settings) for way in ("eager", "graph")
    )
    rough = method in ("mcd", "m3sda-beta") or "training.precision" in settings
    rtol, atol = (0.1, 1e-2) if rough else (1e-2, 1e-3)
    torch.testing.assert_close(torch.tensor(recorded), torch.tensor(eager), rtol=rtol, atol=atol)


@on_gpu
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_a_recorded_step_updates_as_torchs_own_loop_does(optimiser):
    """The same gradient, 20 times over: only the rate and what the optimiser remembers change from step to step."""
    torch.manual_seed(0)
    device, declared = torch.device("cuda"), {"classifier": Learning(rate=3.0, weight_decay=0.0)}
    method = build(declared=declared).to(device)
    plain = deepcopy(method)
    options = TrainingOptions(steps=20, lr=0.01, optimiser=optimiser, weight_decay=0.02)
    optimisers = Optimisers(method, options, device, pretrained=False, recorded=True)
    table = rates.RateTable(options, (), device)
    gradients = {name: torch.randn_like(parameter) for name, parameter in method.named_parameters()}

    def update():
        optimisers.set_rates(table.take()[0])
        optimisers.step()

    for name, parameter in method.named_parameters():
        parameter.grad = gradients[name].clone()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), warnings.catch_warnings(action="ignore"):
        for step in range(3):
            table.prepare(step)
            update()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        update()
    for step in range(3, 20):
        table.prepare(step)
        graph.replay()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimiser]
    extra = {"momentum": 0.9} if optimiser == "sgd" else {}
    parts = [(plain.backbone, 1.0, 0.02), (plain.classifier, 3.0, 0.0)]
    theirs = [(r, kind(m.parameters(), lr=1.0, weight_decay=d, foreach=False, **extra)) for m, r, d in parts]
    for name, parameter in plain.named_parameters():
        parameter.grad = gradients[name].clone()
    for step in range(20):
        for rate, one in theirs:
            one.param_groups[0]["lr"] = rate * learning_rate(options, step)
            one.step()
    torch.testing.assert_close(weights(method), weights(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_step_reads_its_own_rates_across_blocks_of_them(train_toy, tmp_path, monkeypatch, device):
    monkeypatch.setattr(rates, "STEPS_OF_RATES", 6)
    used, plain = [], Loop._train_step

    def noting(loop):
        plain(loop)
        used.append((loop.training.optimisers.rates.item(), loop.training.weight.item()))

    monkeypatch.setattr(Loop, "_train_step", noting)
    run = train_toy(
        tmp_path / "run", "far", steps=20, settings={"training.device": device, "training.evaluate_every": 1}
    )
    recorded = [(line["lr"], line["adaptation_weight"]) for line in evaluations(run.records)]
    torch.testing.assert_close(torch.tensor(used), torch.tensor(recorded))


@on_gpu
@pytest.mark.parametrize("recipe", [{}, ADAM | SEVERAL, {"training.accumulate": 3} | STREAMED])
def test_a_recorded_run_killed_and_resumed_goes_on(train_toy, tmp_path, monkeypatch, recipe):
    # A small rate, as above.
    settings = {
        "training.execution": "graph",
        "training.device": "cuda",
        "training.evaluate_every": 1,
        "training.lr": 0.005,
        **recipe,
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


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (None, "must be a dict of scalar tensors by name, not None"),
        ({"a": 0.5}, "loss 'a' of method Baseline must be a scalar tensor, not float"),
        ({"a": torch.zeros(3)}, r"loss 'a' of method Baseline must be a scalar tensor, not a tensor of shape \(3,\)"),
    ],
)
def test_losses_that_are_none_are_named(train_toy, tmp_path, monkeypatch, losses, message):
    monkeypatch.setattr(Baseline, "losses_of", lambda self, F, batch: losses)
    with pytest.raises(AfieldError, match=message):
        train_toy(tmp_path / "run", "baseline", steps=1)


def test_layers_use_kernels_in_steps_that_are_recorded_alone(monkeypatch):
    monkeypatch.setattr(kernels, "kernels_run", lambda device: True)
    device, seen = torch.device("cpu"), []

    class Watching(Small):
        def losses_of(self, F, batch):
            seen.append(kernels.layers_use_kernels(device))
            return super().losses_of(F, batch)

    step = make_step(build(Watching), make_batches(2))
    step()
    step.recorded = True
    monkeypatch.setattr(step, "_warm_up", step._step)  # which needs a GPU's streams
    step()
    assert seen == [False, True] and not kernels.layers_use_kernels(device)
