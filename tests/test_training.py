"""The loop: schedules, what enters the sum, what is recorded and saved, and what stops it."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import afield
from afield import AfieldError
from afield.config import resolve
from afield.domains import registry as data_registry
from afield.methods.baseline import Baseline
from afield.records import evaluations
from afield.run import make_plan
from afield.selection import information_score, select
from afield.training import Evaluator, Loop, RunFolder, TrainingOptions, load_checkpoint
from afield.training.checkpoint import save_checkpoint
from afield.training.schedules import adaptation_weight, learning_rate
from afield.training.step import TrainingStep

METHODS = ("baseline", "baseline-align", "baseline-att-align", "far")


def weights(path):
    return load_checkpoint(path).state["model"]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_cosine_schedule_falls_from_lr_to_nothing():
    options = TrainingOptions(steps=100, lr=0.2)
    assert learning_rate(options, 0) == 0.2
    assert learning_rate(options, 50) == pytest.approx(0.1)
    assert learning_rate(options, 25) == pytest.approx(0.1 * (1 + math.sqrt(0.5)))
    assert learning_rate(options, 100) == pytest.approx(0)
    assert 0 < learning_rate(options, 99) < 1e-4


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_warm_up_rises_in_equal_steps_and_hands_over_at_lr(schedule):
    options = TrainingOptions(steps=20, lr=0.4, warmup_steps=4, schedule=schedule)
    assert [learning_rate(options, step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert learning_rate(options, 12) == pytest.approx(0.2 if schedule == "cosine" else 0.4)


def test_the_constant_schedule_is_constant():
    options = TrainingOptions(steps=20, lr=0.4, schedule="constant")
    assert {learning_rate(options, step) for step in range(20)} == {0.4}


def test_each_phase_has_the_schedule_and_the_ramp_to_itself():
    options, half = (
        TrainingOptions(steps=100, lr=0.2, warmup_steps=2),
        TrainingOptions(steps=50, lr=0.2, warmup_steps=2),
    )
    for of in (learning_rate, adaptation_weight):
        one = [of(half, step) for step in range(50)]
        assert [of(options, step, (0.5,)) for step in range(100)] == one + one


def test_a_phase_begins_once_and_without_the_momentum_of_the_one_before(train_toy, tmp_path, monkeypatch):
    forgotten = []

    def forget(self):
        original(self)
        buffers = [state["momentum_buffer"] for state in self.optimiser.state.values()]
        forgotten.append((self.stream.step, any(buffer.any() for buffer in buffers)))
        assert self.rates[6:].tolist() == self.rates[:6].tolist(), "and with the rates that the first began with"

    original = TrainingStep._forget
    monkeypatch.setattr(TrainingStep, "_forget", forget)
    train_toy(tmp_path / "run", "adda", settings={"method.discriminator_width": 16})
    assert forgotten == [(6, False)]


def test_a_warm_up_that_a_phase_would_not_see_the_end_of_is_refused(train_toy, tmp_path):
    settings = {"method.discriminator_width": 16, "training.warmup_steps": 6}
    with pytest.raises(AfieldError, match=r"warmup_steps \(6\) must be smaller than any of the method's 2 phases"):
        train_toy(tmp_path / "run", "adda", 12, settings=settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shares", [(0.0,), (0.5, 0.5), (0.7, 0.3), (0.5, 1.0)])
def test_phases_begin_one_after_the_other_within_training(shares):
    from afield.methods.registry import register_method

    with pytest.raises(ValueError, match="ascending shares between 0 and 1"):
        register_method("backwards", summary="a test", reference="none")(type("B", (Baseline,), {"phases": shares}))


def test_adaptation_weights_follow_danns_ramp():
    options = TrainingOptions(steps=100)
    assert adaptation_weight(options, 0) == 0
    assert adaptation_weight(options, 50) == pytest.approx(math.tanh(2.5))
    assert adaptation_weight(options, 100) == pytest.approx(0.9999092, abs=1e-7)
    assert {adaptation_weight(TrainingOptions(steps=9, ramp="constant"), step) for step in range(9)} == {1.0}


@pytest.mark.parametrize("ramp", ["dann", "constant"])
def test_ramped_losses_weigh_nothing_at_the_first_step(train_toy, tmp_path, ramp):
    for weight in (0.0, 50.0):
        settings = {"method.align_weight": weight, "training.ramp": ramp}
        train_toy(tmp_path / str(weight), "baseline-align", 1, settings=settings)
    without, heavy = (weights(tmp_path / name / "last.ckpt") for name in ("0.0", "50.0"))
    assert same(without, heavy) == (ramp == "dann")


@pytest.mark.parametrize("clip", [0.0, 0.001])
def test_clipping_limits_the_update(toy, tmp_path, clip):
    recipe = {"momentum": 0.0, "weight_decay": 0.0, "lr": 2.0, "clip_norm": clip, "schedule": "constant"}
    layers = {"data": {"name": "toy"}, "task": {"target": "night"}, "network": {"width": 8}, "training": recipe}
    loop = Loop(make_plan(resolve(layers), toy), RunFolder(tmp_path), shown=False)
    before = torch.cat([p.detach().flatten().clone() for p in loop.method.parameters()])
    loop._train_step()
    moved = (torch.cat([p.detach().flatten() for p in loop.method.parameters()]) - before).norm().item()
    assert moved == pytest.approx(2.0 * clip, rel=1e-2) if clip else moved > 0.1


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(12, 5, [5, 10, 12]), (10, 5, [5, 10]), (3, 100, [3]), (3, 1, [1, 2, 3])]
)
def test_evaluations_come_every_so_many_steps_and_at_the_last(train_toy, tmp_path, steps, every, expected):
    run = train_toy(tmp_path / "run", "baseline", steps, settings={"training.evaluate_every": every})
    assert [line["step"] for line in evaluations(run.records)] == expected
    assert run.step == steps


def test_recorded_losses_are_means_since_the_evaluation_before(train_toy, tmp_path, monkeypatch):
    values = iter([1.0, 2.0, 3.0, 10.0, 20.0])
    plain = Baseline.losses

    def numbered(self, batch):
        loss = plain(self, batch)["classification"]
        return {"classification": loss * 0 + next(values)}

    monkeypatch.setattr(Baseline, "losses", numbered)
    run = train_toy(tmp_path / "run", "baseline", 5, settings={"training.evaluate_every": 3})
    assert [line["losses"]["classification"] for line in evaluations(run.records)] == pytest.approx([2.0, 15.0])


@pytest.fixture(scope="module")
def far_run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("far") / "run")


def test_the_first_record_says_what_was_run(far_run, toy):
    header = far_run.records[0]
    assert header["event"] == "run"
    assert header["config"] == resolve(header["config"]).as_dict()
    assert header["config"]["training"]["steps"] == 12
    assert header["protocol"]["checksum"] == toy.checksum()
    assert header["protocol"]["test_images"] == {"day": 15, "dusk": 16, "fog": 17, "night": 18}
    assert header["versions"]["afield"] == afield.__version__
    assert torch.__version__.startswith(header["versions"]["torch"])
    assert (header["seed"], header["device"]) == (0, "cpu, 1 threads")


def test_what_an_evaluation_says_without_labels_is_of_the_target_alone(far_run):
    for line in evaluations(far_run.records):
        (said,) = line["unlabelled"].values()
        assert line["unlabelled"].keys() == line["oracle"].keys()
        assert 0 <= said["entropy"] <= said["diversity"] <= math.log(3) + 1e-9


def test_information_prefers_sure_and_varied_predictions():
    def score(entropy, diversity):
        return information_score({"unlabelled": {"t": {"entropy": entropy, "diversity": diversity}}})

    blurred, one_class, sure = score(1.0, 1.1), score(0.0, 0.0), score(0.2, 1.0)
    assert sure > blurred > one_class


def test_an_evaluation_keeps_the_oracle_apart_and_counts_its_images(far_run):
    for line in evaluations(far_run.records):
        assert {name: result["n"] for name, result in line["sources"].items()} == {"day": 15, "dusk": 16, "fog": 17}
        assert {name: result["n"] for name, result in line["oracle"].items()} == {"night": 18}
        assert line["losses"].keys() == {"classification", "aligned", "align", "dre", "experts", "consistency"}
        for result in [*line["sources"].values(), *line["oracle"].values()]:
            assert result["views"].keys() == {"F", "A", "A+R+", "A+R-"}
            assert result["views"]["A+R+"] == result["accuracy"]
            assert (result["accuracy"] * result["n"]) == pytest.approx(round(result["accuracy"] * result["n"]))
            assert result["gates"].keys() == {"kept", "restored"}
            assert 0 < result["gates"]["restored"] < 1
    assert far_run.records[-1].keys() == {"event", "step", "seconds"}
    assert far_run.records[-1]["event"] == "end"


def test_recorded_accuracies_are_those_of_the_saved_model(far_run, toy):
    model = afield.load(far_run.checkpoint)
    for name, accuracy in far_run.accuracy.items():
        truth = [toy.classes[label] for label in toy[name].test.labels]
        right = [a == b for a, b in zip(model.predict(toy[name].test.images), truth, strict=True)]
        assert accuracy == sum(right) / len(right)


def test_a_run_leaves_these_files_and_no_others(far_run):
    names = {path.name for path in far_run.folder.iterdir()}
    assert names == {"config.toml", "records.jsonl", "last.ckpt", "best.ckpt", "tensorboard"}


def test_tensorboard_holds_the_recorded_numbers(far_run):
    board = EventAccumulator(str(far_run.folder / "tensorboard"))
    board.Reload()
    for tag, numbers in {
        "sources/dusk": lambda line: line["sources"]["dusk"]["accuracy"],
        "oracle/night": lambda line: line["oracle"]["night"]["accuracy"],
        "oracle-from/night/A": lambda line: line["oracle"]["night"]["views"]["A"],
        "gates/fog/kept": lambda line: line["sources"]["fog"]["gates"]["kept"],
        "loss/align": lambda line: line["losses"]["align"],
        "schedule/lr": lambda line: line["lr"],
    }.items():
        lines = evaluations(far_run.records)
        assert [event.step for event in board.Scalars(tag)] == [line["step"] for line in lines]
        assert [event.value for event in board.Scalars(tag)] == pytest.approx([numbers(line) for line in lines])


def test_best_is_chosen_on_the_sources_and_last_is_the_last(train_toy, tmp_path, monkeypatch):
    script = iter([(0.2, 0.9), (0.8, 0.1), (0.8, 0.2), (0.5, 1.0)])

    def scripted(self, method):
        source, target = next(script)
        return {"sources": {"day": {"accuracy": source, "n": 10}}, "oracle": {"night": {"accuracy": target, "n": 10}}}

    monkeypatch.setattr(Evaluator, "__call__", scripted)
    run = train_toy(tmp_path / "run", "baseline", 8, settings={"training.evaluate_every": 2})
    assert load_checkpoint(run.folder / "best.ckpt").step == 4 == select(evaluations(run.records), "source-val")["step"]
    assert load_checkpoint(run.folder / "last.ckpt").step == 8
    assert run.select("source-val").accuracy == {"day": 0.8, "night": 0.1}


def test_bf16_trains_on_the_cpu(train_toy, far_run, tmp_path):
    run = train_toy(tmp_path / "run", settings={"training.precision": "bf16"})
    for line in evaluations(run.records):
        assert all(math.isfinite(value) for value in line["losses"].values())
    trained = weights(run.checkpoint)
    assert all(value.isfinite().all() and value.dtype != torch.bfloat16 for value in trained.values())
    assert not same(trained, weights(far_run.checkpoint))


def test_equal_seeds_give_equal_runs_and_other_seeds_others(train_toy, far_run, tmp_path):
    assert same(weights(train_toy(tmp_path / "again").checkpoint), weights(far_run.checkpoint))
    other = train_toy(tmp_path / "other", settings={"training.seed": 1})
    assert not same(weights(other.checkpoint), weights(far_run.checkpoint))


def check_last_good(folder, step):
    assert load_checkpoint(folder / "last.ckpt").step == step
    for name in ("last.ckpt", "best.ckpt"):
        if (folder / name).exists():
            afield.load(folder / name)
            assert all(value.isfinite().all() for value in weights(folder / name).values())


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_checkpoint(train_toy, tmp_path, monkeypatch):
    plain, calls = Baseline.losses, []

    def broken(self, batch):
        calls.append(1)
        losses = plain(self, batch)
        return {name: value * float("nan") if len(calls) == 7 else value for name, value in losses.items()}

    monkeypatch.setattr(Baseline, "losses", broken)
    with pytest.raises(
        AfieldError, match=r"by step 7 in classification.*last\.ckpt keeps the good weights of step 4"
    ) as caught:
        train_toy(tmp_path / "run", "baseline")
    assert "\n" not in str(caught.value)
    assert load_checkpoint(tmp_path / "run" / "best.ckpt").step == 5
    check_last_good(tmp_path / "run", 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [1e6, 1e12, 1e30])
def test_a_learning_rate_that_is_far_too_large_stops_the_run(train_toy, tmp_path, method, rate):
    settings = {"training.lr": rate, "training.checkpoint_every": 1, "training.evaluate_every": 1}
    with pytest.raises(AfieldError, match=r"diverged: NaN or infinity by step \d+ .*training\.lr"):
        train_toy(tmp_path / "run", method, settings=settings)
    check_last_good(tmp_path / "run", load_checkpoint(tmp_path / "run" / "last.ckpt").step)


def test_training_leaves_the_callers_generators_alone(train_toy, tmp_path):
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    train_toy(tmp_path / "run", settings={"network.hidden": [16], "network.dropout": 0.5})
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_a_gpu_that_is_not_there_is_an_error(train_toy, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AfieldError, match=r"'training\.device': this machine has no CUDA device"):
        train_toy(tmp_path / "run", settings={"training.device": "cuda"})
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_left_alone_unless_overwritten(train_toy, tmp_path):
    folder = tmp_path / "run"
    train_toy(folder, "baseline", 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(AfieldError, match="already holds a run; --resume continues it, --overwrite replaces it"):
        train_toy(folder, "baseline", 3)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with pytest.raises(AfieldError, match="unknown method"):
        train_toy(folder, "nothing", 3, overwrite=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "notes.txt").write_text("mine")
    assert train_toy(folder, "baseline", 3, overwrite=True).step == 3
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_a_folder_without_a_run_keeps_all_that_is_in_it(train_toy, tmp_path):
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)
    (tmp_path / "run" / "tensorboard" / "notes.txt").write_text("mine")
    train_toy(tmp_path / "run", "baseline", 2)
    assert (tmp_path / "run" / "tensorboard" / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_an_error(train_toy, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(AfieldError, match="file"):
            train_toy(out, "baseline", 2)


@pytest.mark.parametrize("method", METHODS)
def test_the_labels_of_the_target_change_nothing_that_is_learned(toy, train_toy, tmp_path, monkeypatch, method):
    honest = train_toy(tmp_path / "honest", method)
    rng = np.random.default_rng(0)
    night = toy["night"]
    for part in ("train", "test"):
        split = getattr(night, part)
        night = replace(night, **{part: replace(split, labels=rng.permutation(split.labels))})
    permuted = replace(toy, domains={**toy.domains, "night": night})
    monkeypatch.setitem(data_registry._builders, "toy", lambda: permuted)
    blind = train_toy(tmp_path / "permuted", method)
    assert honest.records[0]["protocol"]["checksum"] != blind.records[0]["protocol"]["checksum"]
    for name in ("last.ckpt", "best.ckpt"):
        assert same(weights(honest.folder / name), weights(blind.folder / name))
    for one, other in zip(evaluations(honest.records), evaluations(blind.records), strict=True):
        assert (one["sources"], one["losses"]) == (other["sources"], other["losses"])


def test_in_bf16_a_second_descent_of_a_step_sees_the_weights_of_the_first(train_toy, tmp_path, monkeypatch):
    seen = []

    def twice(self, batch, descend):
        for _ in range(2):
            losses = self.losses(batch)
            descend(losses)
            seen.append(losses["classification"].item())
        return losses

    monkeypatch.setattr(Baseline, "update", twice)
    settings = {"training.precision": "bf16", "training.schedule": "constant", "training.momentum": 0.0}
    train_toy(tmp_path / "run", "baseline", steps=1, settings=settings)
    assert seen[1] < seen[0], "the same batch again, after one step of gradient descent"


def test_a_bf16_record_says_what_its_checkpoint_does(train_toy, toy, tmp_path):
    run = train_toy(tmp_path / "run", settings={"training.precision": "bf16"})
    night = toy["night"].test
    right = [toy.classes.index(said) for said in afield.load(run.checkpoint).predict(night.images)] == night.labels
    assert run.accuracy["night"] == right.mean()


def test_a_run_of_another_device_does_not_resume_here(train_toy, tmp_path):
    run = train_toy(tmp_path / "run")
    checkpoint = load_checkpoint(run.checkpoint)
    checkpoint.state["generators"]["cuda"] = torch.zeros(16, dtype=torch.uint8)
    save_checkpoint(run.checkpoint, checkpoint)
    with pytest.raises(AfieldError, match=r"cannot resume .* on cpu: it was begun on cuda"):
        train_toy(tmp_path / "run", resume=True)


def test_a_method_of_two_phases_changes_at_its_share_of_training_and_so_does_a_resumed_run(
    train_toy, tmp_path, monkeypatch
):
    from afield.methods import registry

    class TwoPhases(Baseline):
        phases = (0.5, 0.75)

        def losses_of(self, F, batch):
            loss = super().losses_of(F, batch)["classification"]
            extra = {"late": loss.detach() * 0 + 1} if self.phase == 2 else {}
            return {"classification": loss, "phase": loss.detach() * 0 + self.phase, **extra}

    before = dict(registry._methods)
    registry.register_method("two-phases", summary="a test", reference="none")(TwoPhases)
    try:
        settings = {"training.evaluate_every": 1, "training.checkpoint_every": 7}
        run = train_toy(tmp_path / "run", "two-phases", steps=12, settings=settings)
        seen = [line["losses"]["phase"] for line in evaluations(run.records)]
        assert seen == [0] * 6 + [1] * 3 + [2] * 3
        full = run.records[0]["config"]["training"]["lr"]
        highest = [line["step"] for line in evaluations(run.records) if line["lr"] == full]
        none = [line["step"] for line in evaluations(run.records) if line["adaptation_weight"] == 0]
        assert highest == none == [1, 7, 10], "each phase begins at the full rate, with nothing of what is ramped"
        loop_step = Loop._train_step

        def killed(loop):
            if loop.step == 8:
                raise KeyboardInterrupt
            loop_step(loop)

        monkeypatch.setattr(Loop, "_train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            train_toy(tmp_path / "killed", "two-phases", steps=12, settings=settings)
        monkeypatch.setattr(Loop, "_train_step", loop_step)
        resumed = train_toy(tmp_path / "killed", "two-phases", steps=12, settings=settings, resume=True)
        assert [line["losses"]["phase"] for line in evaluations(resumed.records)] == seen
    finally:
        registry._methods.clear()
        registry._methods.update(before)


def test_losses_that_begin_between_two_evaluations_are_averaged_over_their_own_steps(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "adda", steps=12, settings={"training.evaluate_every": 8})
    first, second = evaluations(run.records)
    assert first["losses"].keys() == second["losses"].keys() == {"discriminator", "encoder"}
    # Of an undecided discriminator on sources and target; two steps of eight, not two eighths of it.
    assert first["losses"]["discriminator"] == pytest.approx(second["losses"]["discriminator"], rel=0.3)


def test_parameters_that_join_late_are_updated_beside_those_that_were_there(train_toy, tmp_path):
    from afield.methods import registry

    class Late(Baseline):
        phases = (0.5,)

        def __init__(self, shape, options):
            super().__init__(shape, options)
            self.late = torch.nn.Parameter(torch.ones(3))

        def losses_of(self, F, batch):
            joined = {"late": self.late.square().sum()} if self.phase else {}
            return super().losses_of(F, batch) | joined

    before = dict(registry._methods)
    registry.register_method("late", summary="a test", reference="none")(Late)
    try:
        run = train_toy(tmp_path / "run", "late", steps=6)
        assert load_checkpoint(run.checkpoint).state["model"]["late"].max() < 1
    finally:
        registry._methods.clear()
        registry._methods.update(before)
