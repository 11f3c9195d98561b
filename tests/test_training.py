"""The loop: what enters the sum, what is recorded and saved, and what stops it."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import afield
from afield import AfieldError
from afield.config.layers import resolve
from afield.config.training import TrainingOptions
from afield.data import registry as data_registry
from afield.methods.baseline import Baseline
from afield.results.folder import RunFolder
from afield.results.records import evaluations
from afield.results.selection import select
from afield.training import assemble
from afield.training.assemble import make_setup
from afield.training.checkpoint import load_checkpoint, save_checkpoint
from afield.training.devices import precision_of
from afield.training.evaluation import Evaluator
from afield.training.loop import Loop

METHODS = ("baseline", "baseline-align", "baseline-att-align", "far")


def weights(path):
    return load_checkpoint(path).state["model"]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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
    loop = Loop(make_setup(resolve(layers), toy), RunFolder(tmp_path), shown=False)
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


LOSSES = {"classification", "aligned", "align", "domain", "dre", "prototypes", "experts", "consistency"}


def test_an_evaluation_keeps_the_target_apart_and_counts_its_images(far_run):
    for line in evaluations(far_run.records):
        assert {name: result["n"] for name, result in line["sources"].items()} == {"day": 15, "dusk": 16, "fog": 17}
        assert {name: result["n"] for name, result in line["target"].items()} == {"night": 18}
        assert line["losses"].keys() == LOSSES
        for result in [*line["sources"].values(), *line["target"].values()]:
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
        right = [a == b for a, b in zip(model.predict(toy[name].test.images.array), truth, strict=True)]
        assert accuracy == sum(right) / len(right)


def test_a_run_leaves_these_files_and_no_others(far_run):
    names = {path.name for path in far_run.folder.iterdir()}
    assert names == {"config.toml", "records.jsonl", "last.ckpt", "source-val.ckpt", "tensorboard"}


def test_tensorboard_holds_the_recorded_numbers(far_run):
    board = EventAccumulator(str(far_run.folder / "tensorboard"))
    board.Reload()
    for tag, numbers in {
        "sources/dusk": lambda line: line["sources"]["dusk"]["accuracy"],
        "target/night": lambda line: line["target"]["night"]["accuracy"],
        "target-from/night/A": lambda line: line["target"]["night"]["views"]["A"],
        "gates/fog/kept": lambda line: line["sources"]["fog"]["gates"]["kept"],
        "loss/align": lambda line: line["losses"]["align"],
        "unlabelled/night/snd": lambda line: line["unlabelled"]["night"]["snd"],
        "schedule/lr": lambda line: line["lr"],
    }.items():
        lines = evaluations(far_run.records)
        assert [event.step for event in board.Scalars(tag)] == [line["step"] for line in lines]
        assert [event.value for event in board.Scalars(tag)] == pytest.approx([numbers(line) for line in lines])


def test_best_is_chosen_on_the_sources_and_last_is_the_last(train_toy, tmp_path, monkeypatch):
    script = iter([(0.2, 0.9), (0.8, 0.1), (0.8, 0.2), (0.5, 1.0)])

    def scripted(self, method):
        source, target = next(script)
        return {"sources": {"day": {"accuracy": source, "n": 10}}, "target": {"night": {"accuracy": target, "n": 10}}}

    monkeypatch.setattr(Evaluator, "__call__", scripted)
    run = train_toy(tmp_path / "run", "baseline", 8, settings={"training.evaluate_every": 2})
    assert (
        load_checkpoint(run.folder / "source-val.ckpt").step
        == 4
        == select(evaluations(run.records), "source-val")["step"]
    )
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
    for name in ("last.ckpt", "source-val.ckpt"):
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
        AfieldError, match=r"by step 7 in classification.*last\.ckpt keeps the good weights of step 5"
    ) as caught:
        train_toy(tmp_path / "run", "baseline")
    assert "\n" not in str(caught.value)
    assert load_checkpoint(tmp_path / "run" / "source-val.ckpt").step == 5
    check_last_good(tmp_path / "run", 5)  # that of the chosen evaluation, later than that of step 4


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


@pytest.mark.parametrize(("execution", "precision"), [("eager", "bf16"), ("compiled", "fp32")])
def test_training_leaves_torchs_settings_as_they_were(train_toy, tmp_path, monkeypatch, execution, precision):
    from torch._dynamo import config

    def settings():
        return torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision(), config.recompile_limit

    during, plain = [], Loop._train_step
    monkeypatch.setattr(Loop, "_train_step", lambda self: (during.append(settings()), plain(self)))
    torch.set_float32_matmul_precision("medium")  # neither of the two that training chooses
    try:
        before = settings()
        options = {"training.execution": execution, "training.precision": precision}
        train_toy(tmp_path / "run", "baseline", 2, settings=options)
        assert settings() == before
        with pytest.raises(AfieldError, match="diverged"):
            train_toy(tmp_path / "broken", "baseline", settings=options | {"training.lr": 1e30})
        assert settings() == before
    finally:
        torch.set_float32_matmul_precision("highest")
    wanted = (True, "high", before[2]) if execution == "eager" else (True, "highest", 1000)
    assert set(during) == {wanted}


@pytest.mark.parametrize(
    ("device", "gpu", "has_bf16", "expected"),
    [("auto", True, True, "bf16"), ("auto", True, False, "fp32"), ("auto", False, True, "fp32"),
     ("cpu", True, True, "fp32"), ("cuda", True, True, "bf16")],
)  # fmt: skip
def test_the_precision_that_auto_means_depends_on_the_gpu(monkeypatch, device, gpu, has_bf16, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16)
    assert precision_of(TrainingOptions(precision="auto", device=device)) == expected
    for given in ("fp32", "bf16"):
        assert precision_of(TrainingOptions(precision=given, device=device)) == given


def test_a_run_whose_precision_was_left_open_records_which_it_was_and_keeps_it(train_toy, tmp_path, monkeypatch):
    run = train_toy(tmp_path / "run", "baseline", 2, settings={"training.precision": "auto"})
    assert run.records[0]["precision"] == "fp32"
    assert run.records[0]["config"]["training"]["precision"] == "auto"
    fixed = train_toy(tmp_path / "fixed", "baseline", 2)
    assert "precision" not in fixed.records[0]
    assert same(weights(run.checkpoint), weights(fixed.checkpoint))
    monkeypatch.setattr(assemble, "precision_of", lambda options: "bf16")
    with pytest.raises(AfieldError, match="it was begun in fp32, and here precision 'auto' is bf16"):
        train_toy(tmp_path / "run", "baseline", 2, resume=True)


def test_a_gpu_that_is_not_there_is_an_error(train_toy, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AfieldError, match=r"'training\.device': this machine has no CUDA device"):
        train_toy(tmp_path / "run", settings={"training.device": "cuda"})
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_left_alone_unless_overwritten(train_toy, tmp_path):
    folder = tmp_path / "run"
    train_toy(folder, "baseline", 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(AfieldError, match="already holds a run; resume continues it, overwrite replaces it"):
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
    for name in ("last.ckpt", "source-val.ckpt"):
        assert same(weights(honest.folder / name), weights(blind.folder / name))
    for one, other in zip(evaluations(honest.records), evaluations(blind.records), strict=True):
        for key in ("sources", "losses", "unlabelled"):
            assert one[key] == other[key]


def test_in_bf16_a_second_descent_of_a_step_sees_the_weights_of_the_first(train_toy, tmp_path, monkeypatch):
    seen = []

    def twice(self, batch):
        for _ in range(2):
            losses = self.losses(batch)
            seen.append(losses["classification"].item())
            yield losses

    monkeypatch.setattr(Baseline, "updates", twice)
    settings = {"training.precision": "bf16", "training.schedule": "constant", "training.momentum": 0.0}
    train_toy(tmp_path / "run", "baseline", steps=1, settings=settings)
    assert seen[1] < seen[0], "the same batch again, after one step of gradient descent"


def test_a_bf16_record_says_what_its_checkpoint_does(train_toy, toy, tmp_path):
    run = train_toy(tmp_path / "run", settings={"training.precision": "bf16"})
    night = toy["night"].test
    right = [
        toy.classes.index(said) for said in afield.load(run.checkpoint).predict(night.images.array)
    ] == night.labels
    assert run.accuracy["night"] == right.mean()


def test_a_run_of_another_device_does_not_resume_here(train_toy, tmp_path):
    run = train_toy(tmp_path / "run")
    checkpoint = load_checkpoint(run.checkpoint)
    checkpoint.state["generators"]["cuda"] = torch.zeros(16, dtype=torch.uint8)
    save_checkpoint(run.checkpoint, checkpoint)
    with pytest.raises(AfieldError, match=r"cannot resume .* on cpu: it was begun on cuda"):
        train_toy(tmp_path / "run", resume=True)
