"""Averaged weights: their closed form, that training does not see them, and that all who ask the network do."""

import pytest
import torch
from torch import nn

import afield
from afield.config.training import TrainingOptions
from afield.results.records import evaluations
from afield.training.averaging import WeightAverage
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop
from support.resuming import Killed, assert_equal_runs, every, kill_before_step

MOVING = {"training.average": "moving", "training.average_decay": 0.8}
UNIFORM = {"training.average": "uniform", "training.average_from": 0.5}


@pytest.fixture
def weights_after(monkeypatch):
    """The weights and running statistics after each step of the runs that a test trains."""
    seen = []
    plain = Loop._train_step

    def watched(self):
        plain(self)
        seen.append({name: value.clone() for name, value in self.method.state_dict().items()})

    monkeypatch.setattr(Loop, "_train_step", watched)
    return seen


def mean_of(states, shares):
    """The average of states, each counted by its share."""
    total = sum(shares)
    return {
        name: sum(share * state[name].double() for share, state in zip(shares, states, strict=True)) / total
        for name, value in states[0].items()
        if value.is_floating_point()
    }


def assert_close(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-6, msg=name)


def shares_of(settings, steps):
    if settings["training.average"] == "uniform":
        return [0] * (steps // 2) + [1] * (steps - steps // 2)
    return [0.8 ** (steps - step) for step in range(1, steps + 1)]


# The average.


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({"average": "moving", "average_decay": 0.9}, [0.9**4, 0.9**3, 0.9**2, 0.9, 1]),
        ({"average": "moving", "average_decay": 0.0}, [0, 0, 0, 0, 1]),
        ({"average": "moving", "average_decay": 0.5, "average_from": 0.4}, [0, 0, 0.25, 0.5, 1]),
        ({"average": "uniform"}, [1, 1, 1, 1, 1]),
        ({"average": "uniform", "average_from": 0.6}, [0, 0, 0, 1, 1]),
    ],
)
def test_it_is_the_weighted_mean_of_the_weights_after_each_step(options, shares):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    average = WeightAverage(network, TrainingOptions(steps=5, **options))
    states = []
    for step in range(1, 6):
        for tensor in (*network.parameters(), network[1].running_mean, network[1].running_var):
            tensor.data.copy_(torch.rand_like(tensor))
        average.update(step)
        states.append({name: value.clone() for name, value in network.state_dict().items()})
    with average.in_place():
        assert_close(network.state_dict(), mean_of(states, shares))
    for name, value in network.state_dict().items():
        assert torch.equal(value, states[-1][name]), "training goes on with its own weights"


def test_at_first_it_is_the_trained_weights_themselves():
    network = nn.Linear(3, 2)
    average = WeightAverage(network, TrainingOptions(steps=5, average="moving", average_from=0.4))
    with torch.no_grad():
        network.weight.fill_(7)
    for step in (1, 2, 3):  # none of which lets anything of the start in
        average.update(step)
        with average.in_place():
            assert torch.equal(network.weight, torch.full((2, 3), 7.0))


def test_it_comes_into_the_same_memory_and_leaves_it_when_something_fails():
    network = nn.Linear(3, 2)
    average = WeightAverage(network, TrainingOptions(steps=5, average="uniform"))
    average.update(1)
    with torch.no_grad():
        network.weight.add_(1)
    average.update(2)
    place, trained = network.weight.data_ptr(), network.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), average.in_place():
        assert network.weight.data_ptr() == place
        assert torch.allclose(network.weight, trained - 0.5)
        1 / 0  # noqa: B018
    assert torch.equal(network.weight, trained)


def test_buffers_of_a_method_stay_as_they_are():
    network = nn.BatchNorm1d(2)
    network.register_module("own", nn.Module())
    network.own.register_buffer("note", torch.zeros(()))
    average = WeightAverage(network, TrainingOptions(steps=5, average="uniform"))
    for step in (1, 2):
        network.own.note.fill_(step)
        average.update(step)
    with average.in_place():
        assert network.own.note == 2
        network.own.note.fill_(3)  # as a method does that solves for something before an evaluation
    assert network.own.note == 3


def test_to_begin_late_there_must_be_an_average():
    with pytest.raises(ValueError, match="average_from needs an average"):
        TrainingOptions(average_from=0.5)


# In a run.


@pytest.mark.parametrize("settings", [MOVING, UNIFORM], ids=["moving", "uniform"])
@pytest.mark.parametrize("method", ["baseline", "far", "adda"])
def test_a_checkpoint_has_the_average_and_training_is_as_without_it(
    train_toy, tmp_path, weights_after, method, settings
):
    averaged = train_toy(tmp_path / "averaged", method, 8, settings=settings)
    states = list(weights_after)
    plain = train_toy(tmp_path / "plain", method, 8)
    state = load_checkpoint(averaged.checkpoint).state
    parts = ("backbone", "classifier")
    expected = {n: v for n, v in mean_of(states, shares_of(settings, 8)).items() if n.startswith(parts)}
    assert_close(state["model"], expected)
    for name, value in load_checkpoint(plain.checkpoint).state["model"].items():
        assert torch.equal(state["trained"].get(name, state["model"][name]), value), name
    first, second = (evaluations(run.records)[-1]["losses"] for run in (averaged, plain))
    assert first == second


def test_evaluations_and_predictions_are_by_the_average(train_toy, toy, tmp_path):
    run = train_toy(tmp_path / "run", "baseline", 8, settings=MOVING)
    model = afield.load(run.checkpoint)
    split = toy.domains["night"].test
    labels = [toy.classes[label] for label in split.labels]
    images = split.images.read(torch.arange(len(split)).numpy())
    right = [found == label for found, label in zip(model.predict(list(images)), labels, strict=True)]
    assert evaluations(run.records)[-1]["target"]["night"]["accuracy"] == sum(right) / len(right)
    kept = load_checkpoint(run.checkpoint).state
    for name, value in model.method.state_dict().items():
        assert torch.equal(value, kept["model"][name])
    assert not torch.equal(kept["model"]["backbone.0.weight"], kept["trained"]["backbone.0.weight"])


def test_before_it_begins_a_checkpoint_is_as_without_it(train_toy, tmp_path):
    settings = UNIFORM | every(5, 4) | {"training.average_from": 0.9}
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            train_toy(tmp_path / "run", "baseline", settings=settings)
    assert "trained" not in load_checkpoint(tmp_path / "run" / "last.ckpt").state


@pytest.mark.parametrize(
    ("method", "settings", "step"),
    [
        ("far", MOVING | every(5, 4), 7),
        ("baseline", UNIFORM | every(5, 4), 5),  # before it begins
        ("baseline", UNIFORM | every(3, 4), 11),
        ("adda", MOVING | every(5, 4), 11),  # in its second phase
        ("meda", MOVING | every(4, 3) | {"method.samples": 20}, 10),
    ],
)
def test_a_killed_and_resumed_run_equals_the_unbroken_one(train_toy, tmp_path, method, settings, step):
    unbroken = train_toy(tmp_path / "unbroken", method, settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, step)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", method, settings=settings)
    assert_equal_runs(train_toy(tmp_path / "killed", method, settings=settings, resume=True), unbroken)
