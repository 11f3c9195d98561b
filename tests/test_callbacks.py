"""Callbacks: what they are told, that one which raises ends the run with a checkpoint, and one process that calls."""

import json
import signal
import sys

import pytest

import afield
from afield.results.records import end_of, evaluations, read_records
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop
from support.resuming import DROPOUT, assert_equal_runs, every


class Noting(afield.Callback):
    """Notes all it is told."""

    def __init__(self):
        self.told = []

    def on_start(self, run):
        self.told.append(("start", run.step, run.steps, run.config["method"]["name"], run.folder.name))

    def on_losses(self, step, losses):
        self.told.append(("losses", step, sorted(losses), all(isinstance(value, float) for value in losses.values())))

    def on_evaluation(self, evaluation):
        self.told.append(("evaluation", evaluation["step"], evaluation["target"]["night"]["accuracy"]))
        evaluation.clear()  # which is its own

    def on_end(self, error):
        self.told.append(("end", error))


class Raising(afield.Callback):
    """Raises in one event, at one step."""

    def __init__(self, event, step=0):
        self.event, self.step = event, step

    def _maybe(self, event, step=0):
        if event == self.event and step == self.step:
            raise ZeroDivisionError("no more\nof this")

    def on_start(self, run):
        self._maybe("on_start")

    def on_losses(self, step, losses):
        self._maybe("on_losses", step)

    def on_evaluation(self, evaluation):
        self._maybe("on_evaluation", evaluation["step"])

    def on_end(self, error):
        self._maybe("on_end")


class Filing(afield.Callback):
    """Writes what it is told to a file, and raises at an evaluation."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_evaluation(self, evaluation):
        with self.path.open("a") as file:
            file.write(json.dumps(evaluation["step"]) + "\n")
        if evaluation["step"] == self.step:
            raise RuntimeError("enough")

    def on_end(self, error):
        with self.path.open("a") as file:
            file.write(json.dumps(type(error).__name__) + "\n")


def test_callbacks_are_told_of_the_start_losses_evaluations_and_the_end_and_change_nothing(train_toy, tmp_path):
    first, second = Noting(), Noting()
    plain = train_toy(tmp_path / "plain", "baseline", settings=every(6, 4) | DROPOUT)
    run = train_toy(tmp_path / "x", "baseline", settings=every(6, 4) | DROPOUT, callbacks=[first, second])
    accuracy = {line["step"]: line["target"]["night"]["accuracy"] for line in evaluations(run.records)}
    assert first.told == [
        ("start", 0, 12, "baseline", "x"),
        ("evaluation", 6, accuracy[6]),
        ("losses", 10, ["classification"], True),
        ("losses", 12, ["classification"], True),
        ("evaluation", 12, accuracy[12]),
        ("end", None),
    ]
    assert second.told == first.told
    assert_equal_runs(run, plain)


@pytest.mark.parametrize(
    ("event", "step", "saved"),
    [("on_start", 0, 0), ("on_losses", 10, 10), ("on_evaluation", 6, 6), ("on_evaluation", 12, 12), ("on_end", 0, 12)],
)
def test_a_callback_that_raises_ends_the_run_with_a_checkpoint_from_which_it_goes_on(
    train_toy, tmp_path, event, step, saved
):
    noting, settings = Noting(), every(6, 4) | DROPOUT
    said = f"^callback Raising has ended the run in {event}: ZeroDivisionError: no more of this$"
    with pytest.raises(afield.AfieldError, match=said) as caught:
        train_toy(tmp_path / "x", "baseline", settings=settings, callbacks=[noting, Raising(event, step)])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert noting.told[-1] == ("end", None if event == "on_end" else caught.value)
    assert load_checkpoint(tmp_path / "x/last.ckpt").step == saved
    assert (end_of(read_records(tmp_path / "x/records.jsonl")) is not None) == (event == "on_end")
    again = Noting()
    run = afield.train(out=tmp_path / "x", resume=True, progress=False, callbacks=[again])
    assert not again.told or again.told[0][:2] == ("start", saved)
    unbroken = train_toy(tmp_path / "unbroken", "baseline", settings=settings)
    assert_equal_runs(run, unbroken)


def test_an_interrupted_run_tells_its_callbacks(train_toy, tmp_path, monkeypatch):
    plain, noting = Loop._train_step, Noting()

    def interrupting(loop):
        plain(loop)
        if loop.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Loop, "_train_step", interrupting)
    with pytest.raises(KeyboardInterrupt) as caught:
        train_toy(tmp_path / "x", "baseline", callbacks=[noting])
    assert noting.told[-1] == ("end", caught.value)


def test_of_several_processes_the_first_calls_and_all_end_together(tmp_path):
    two = {"training.devices": 2, "training.device": "cpu", "training.batch_size": 4, "network.width": 8}
    file = tmp_path / "told"
    with pytest.raises(afield.AfieldError, match=r"^callback Filing has ended the run in on_evaluation: .* enough$"):
        afield.train(
            "digits", "uda", "uci", "baseline", 4, 0, tmp_path / "x", settings=two | every(2, 3), progress=False,
            callbacks=[Filing(file, 2)],
        )  # fmt: skip
    assert file.read_text().split() == ["2", '"AfieldError"']
    assert load_checkpoint(tmp_path / "x/last.ckpt").step == 2


@pytest.mark.parametrize("given", [[print], [afield.Callback], afield.Callback(), "mine"])
def test_what_is_no_callback_is_refused_before_anything_is_written(tmp_path, given):
    with pytest.raises(afield.AfieldError, match=r"^callbacks is a list of instances of afield\.Callback"):
        afield.train("digits", out=tmp_path / "x", target="uci", callbacks=given)
    assert not (tmp_path / "x").exists()


def test_a_callback_that_cannot_travel_is_refused_in_one_line(tmp_path):
    callback = Noting()
    callback.held = sys._getframe()
    with pytest.raises(afield.AfieldError, match=r"^a callback cannot be sent to the processes of training\.devices"):
        afield.train(
            "digits", out=tmp_path / "x", target="uci", steps=1, settings={"training.devices": 2}, callbacks=[callback]
        )
    assert not (tmp_path / "x").exists()
