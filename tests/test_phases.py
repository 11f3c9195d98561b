"""Schedules of rate and adaptation weight, and methods whose training has several phases."""

import math
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch

from afield import AfieldError
from afield.config.training import TrainingOptions
from afield.methods import Learning
from afield.methods.baseline import Baseline
from afield.results.records import evaluations
from afield.training.checkpoint import load_checkpoint
from afield.training.rates import STEPS_OF_RATES, RateTable
from afield.training.schedules import adaptation_weight, learning_rate
from afield.training.step import TrainingStep
from support.resuming import Killed, assert_equal_runs, kill_before_step


def test_the_cosine_schedule_falls_from_lr_to_nothing():
    options = TrainingOptions(steps=100, lr=0.2)
    assert learning_rate(options, 0) == 0.2
    assert learning_rate(options, 50) == pytest.approx(0.1)
    assert learning_rate(options, 25) == pytest.approx(0.1 * (1 + math.sqrt(0.5)))
    assert learning_rate(options, 100) == pytest.approx(0)
    assert 0 < learning_rate(options, 99) < 1e-4


@pytest.mark.parametrize(
    ("schedule", "half_way"), [("cosine", 0.2), ("constant", 0.4), ("inverse", 0.4 * 6**-0.75), ("steps", 0.04)]
)
def test_warm_up_rises_in_equal_steps_and_hands_over_at_lr(schedule, half_way):
    milestones = (12,) if schedule == "steps" else ()
    options = TrainingOptions(steps=20, lr=0.4, warmup_steps=4, schedule=schedule, milestones=milestones)
    assert [learning_rate(options, step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert learning_rate(options, 12) == pytest.approx(half_way)


def test_the_constant_schedule_is_constant():
    options = TrainingOptions(steps=20, lr=0.4, schedule="constant")
    assert {learning_rate(options, step) for step in range(20)} == {0.4}


def test_the_inverse_schedule_is_danns():
    options = TrainingOptions(steps=100, lr=0.01, schedule="inverse")
    rates = [learning_rate(options, step) for step in (0, 10, 100)]
    assert rates == pytest.approx([0.01, 0.01 * 2**-0.75, 0.01 * 11**-0.75])


def test_the_schedule_of_steps_multiplies_by_gamma_from_each_milestone_on():
    options = TrainingOptions(steps=10, lr=0.8, schedule="steps", milestones=(3, 7), gamma=0.5)
    assert [learning_rate(options, step) for step in range(10)] == pytest.approx([0.8] * 3 + [0.4] * 4 + [0.2] * 3)


@pytest.mark.parametrize(
    "schedule", [{}, {"schedule": "inverse"}, {"schedule": "steps", "milestones": (10, 49), "gamma": 0.3}]
)
def test_each_phase_has_the_schedule_and_the_ramp_to_itself(schedule):
    options, half = (TrainingOptions(steps=steps, lr=0.2, warmup_steps=2, **schedule) for steps in (100, 50))
    for of in (learning_rate, adaptation_weight):
        one = [of(half, step) for step in range(50)]
        assert [of(options, step, (0.5,)) for step in range(100)] == one + one


@pytest.mark.parametrize(("steps", "phases", "begun_at"), [(2500, (0.5,), 0), (2500, (), 700), (40, (), 0)])
def test_the_table_of_rates_holds_a_block_of_steps_and_gives_each_its_own(steps, phases, begun_at):
    options = TrainingOptions(steps=steps, warmup_steps=5)
    table = RateTable(options, phases, torch.device("cpu"))
    rows = table.rows.data_ptr()
    for step in range(begun_at, steps):
        table.prepare(step)
        expected = learning_rate(options, step, phases), adaptation_weight(options, step, phases)
        assert table.take().tolist() == torch.tensor(expected).tolist(), step
    assert table.rows.data_ptr() == rows, "a recorded step reads from one place"
    assert len(table.rows) == STEPS_OF_RATES


def test_a_table_of_rates_goes_on_anywhere_and_does_not_grow_with_training():
    options = TrainingOptions(steps=20_000_000)
    table = RateTable(options, (), torch.device("cpu"))
    for step in (0, 12_345_678, 19_999_999, 3):
        table.restart()
        table.prepare(step)
        assert table.take()[0].item() == pytest.approx(learning_rate(options, step))
    assert table.rows.numel() == 2 * STEPS_OF_RATES


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_phase_begins_without_what_the_optimiser_remembers(train_toy, tmp_path, monkeypatch, optimiser):
    without, plain_step = [], TrainingStep._step

    def step(training):
        states = training.optimisers.state_dict().values()
        if not any(value.any() for state in states for value in state.values()):
            without.append(training.taken - 1)
        plain_step(training)
        rates = training.rates.rows.tolist()
        assert rates[6:12] == rates[:6], "and with the rates that the first began with"

    monkeypatch.setattr(TrainingStep, "_step", step)
    settings = {"method.discriminator_width": 16, "training.optimiser": optimiser, "training.lr": 0.001}
    train_toy(tmp_path / "run", "adda", settings=settings)
    assert without == [0, 6]


class Alternating(Baseline):
    """In its first phase all but the classifier learns; in its second the classifier alone, by another optimiser."""

    phases = (0.5,)

    def learning(self):
        if self.phase == 0:
            return {"classifier": Learning(rate=0)}
        return {"backbone": Learning(rate=0), "classifier": Learning(rate=0.1, weight_decay=0, optimiser="adam")}


def test_what_learns_and_how_is_asked_for_each_phase(train_toy, tmp_path, register):
    register("alternating", Alternating)
    settings = {"network.neck": [8], "network.hidden": [8], "training.checkpoint_every": 6}
    states = []
    for killed_at in (0, 6, 12):
        with pytest.MonkeyPatch.context() as patch:
            kill_before_step(patch, killed_at)
            with nullcontext() if killed_at == 12 else pytest.raises(Killed):
                train_toy(tmp_path / f"{killed_at}", "alternating", 12, settings=settings)
        states.append(load_checkpoint(tmp_path / f"{killed_at}" / "last.ckpt").state)
    for (before, after), still in zip(pairwise(states), ("classifier", "backbone"), strict=True):
        pairs = ((name, value, after["model"][name]) for name, value in before["model"].items())
        moved = {name for name, value, later in pairs if not torch.equal(value, later)}
        assert moved and not any(name.startswith(still) for name in moved), "its batch norm neither"
    assert all(name.startswith("classifier") for name in states[2]["optimiser"])
    assert all(state.keys() == {"step", "exp_avg", "exp_avg_sq"} for state in states[2]["optimiser"].values())


@pytest.mark.parametrize(("saved_every", "killed_before"), [(4, 6), (6, 7), (4, 10), (7, 12)])
def test_a_run_whose_phases_learn_otherwise_resumes_in_each_of_them(
    train_toy, tmp_path, register, saved_every, killed_before
):
    register("alternating", Alternating)
    settings = {"network.hidden": [8], "network.dropout": 0.5, "training.checkpoint_every": saved_every}
    unbroken = train_toy(tmp_path / "unbroken", "alternating", 14, settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, killed_before)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", "alternating", 14, settings=settings)
    assert_equal_runs(train_toy(tmp_path / "killed", "alternating", 14, settings=settings, resume=True), unbroken)


def test_what_a_later_phase_declares_and_cannot_be_is_found_before_training(train_toy, tmp_path, register):
    class Misspelt(Alternating):
        def learning(self):
            return {"clasifier": Learning(rate=0)} if self.phase else {}

    register("misspelt", Misspelt)
    with pytest.raises(AfieldError, match="method Misspelt declares how its part 'clasifier' learns"):
        train_toy(tmp_path / "run", "misspelt")
    assert not (tmp_path / "run").exists()


def test_a_warm_up_that_a_phase_would_not_see_the_end_of_is_refused(train_toy, tmp_path):
    settings = {"method.discriminator_width": 16, "training.warmup_steps": 6}
    with pytest.raises(AfieldError, match=r"warmup_steps \(6\) must be smaller than any of the method's 2 phases"):
        train_toy(tmp_path / "run", "adda", 12, settings=settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("milestones", "warmup", "message"),
    [
        ([2, 6], 0, "milestone 6 does not come within the shortest of the method's 2 phases, which has 6 of 12 steps"),
        ([2, 5], 3, r"milestone 2 comes before warmup_steps \(3\) end"),
    ],
)
def test_milestones_that_do_not_fit_the_phases_are_refused(train_toy, tmp_path, milestones, warmup, message):
    settings = {
        "method.discriminator_width": 16,
        "training.schedule": "steps",
        "training.milestones": milestones,
        "training.warmup_steps": warmup,
    }
    with pytest.raises(AfieldError, match=f"^{message}$"):
        train_toy(tmp_path / "run", "adda", 12, settings=settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shares", [(0.0,), (0.5, 0.5), (0.7, 0.3), (0.5, 1.0)])
def test_phases_begin_one_after_the_other_within_training(register, shares):
    with pytest.raises(ValueError, match="ascending shares between 0 and 1"):
        register("backwards", type("Backwards", (Baseline,), {"phases": shares}))


def test_adaptation_weights_follow_danns_ramp():
    options = TrainingOptions(steps=100)
    assert adaptation_weight(options, 0) == 0
    assert adaptation_weight(options, 50) == pytest.approx(math.tanh(2.5))
    assert adaptation_weight(options, 100) == pytest.approx(0.9999092, abs=1e-7)
    assert {adaptation_weight(TrainingOptions(steps=9, ramp="constant"), step) for step in range(9)} == {1.0}


def test_a_method_of_two_phases_changes_at_its_share_of_training_and_so_does_a_resumed_run(
    train_toy, tmp_path, register
):
    class TwoPhases(Baseline):
        phases = (0.5, 0.75)

        def losses_of(self, F, batch):
            loss = super().losses_of(F, batch)["classification"]
            extra = {"late": loss.detach() * 0 + 1} if self.phase == 2 else {}
            return {"classification": loss, "phase": loss.detach() * 0 + self.phase, **extra}

    register("two-phases", TwoPhases)
    settings = {"training.evaluate_every": 1, "training.checkpoint_every": 7}
    run = train_toy(tmp_path / "run", "two-phases", settings=settings)
    seen = [line["losses"]["phase"] for line in evaluations(run.records)]
    assert seen == [0] * 6 + [1] * 3 + [2] * 3
    full = run.records[0]["config"]["training"]["lr"]
    highest = [line["step"] for line in evaluations(run.records) if line["lr"] == full]
    none = [line["step"] for line in evaluations(run.records) if line["adaptation_weight"] == 0]
    assert highest == none == [1, 7, 10], "each phase begins at the full rate, with nothing of what is ramped"
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 8)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", "two-phases", settings=settings)
    resumed = train_toy(tmp_path / "killed", "two-phases", settings=settings, resume=True)
    assert [line["losses"]["phase"] for line in evaluations(resumed.records)] == seen


def test_losses_that_begin_between_two_evaluations_are_averaged_over_their_own_steps(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "adda", steps=12, settings={"training.evaluate_every": 8})
    first, second = evaluations(run.records)
    assert first["losses"].keys() == second["losses"].keys() == {"discriminator", "encoder"}
    # Of an undecided discriminator on sources and target; two steps of eight, not two eighths of it.
    assert first["losses"]["discriminator"] == pytest.approx(second["losses"]["discriminator"], rel=0.3)


def test_parameters_that_join_late_are_updated_beside_those_that_were_there(train_toy, tmp_path, register):
    class Late(Baseline):
        phases = (0.5,)

        def __init__(self, shape, options):
            super().__init__(shape, options)
            self.late = torch.nn.Parameter(torch.ones(3))

        def losses_of(self, F, batch):
            joined = {"late": self.late.square().sum()} if self.phase else {}
            return super().losses_of(F, batch) | joined

    register("late", Late)
    run = train_toy(tmp_path / "run", "late", steps=6)
    assert load_checkpoint(run.checkpoint).state["model"]["late"].max() < 1
