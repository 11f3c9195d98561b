"""`afield evaluate`: figures of each class, calibration, and the errors as a picture."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from afield import AfieldError
from afield.app.evaluate import evaluate_checkpoint
from afield.app.model import check_numbers
from afield.app.show import evaluation_tables
from afield.data import registry as data_registry
from afield.data.domain import Domain, DomainSet, Split
from afield.data.error_sheet import MOST_IMAGES, Mistake, error_sheet, shown_mistakes
from afield.results.quality import Quality


def quality_of(probabilities, labels, parts=1):
    quality = Quality(probabilities.shape[1])
    for some, truth in zip(np.array_split(probabilities, parts), np.array_split(labels, parts), strict=True):
        quality.add(some, truth)
    return quality


# The figures


@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 9), n=st.integers(2, 60))
def test_the_figures_are_those_of_other_libraries_however_the_images_are_divided(seed, classes, n):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, 0.5), n)
    labels = rng.integers(0, classes, n)
    quality = quality_of(probabilities, labels, parts=3)
    truth = np.eye(classes)[labels]
    assert quality.n == n
    assert quality.brier_score == pytest.approx(np.square(probabilities - truth).sum(axis=1).mean())
    expected = log_loss(labels, probabilities.clip(1e-15), labels=range(classes))
    assert quality.negative_log_likelihood == pytest.approx(expected, rel=1e-3, abs=1e-6)
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    accuracies, confidences = calibration_curve(right, sure, n_bins=15)  # of the bins that are not empty
    counts = np.histogram(sure, bins=15, range=(0, 1))[0]
    expected = (counts[counts > 0] / n * np.abs(accuracies - confidences)).sum()
    assert quality.calibration_error == pytest.approx(expected, abs=1e-4)


def test_a_certain_and_right_prediction_has_no_error_and_a_certain_and_wrong_one_a_finite_one():
    certain = np.eye(3)
    right, wrong = quality_of(certain, np.array([0, 1, 2])), quality_of(certain, np.array([1, 2, 0]))
    assert (right.calibration_error, right.brier_score, right.negative_log_likelihood) == (0, 0, 0)
    assert (wrong.calibration_error, wrong.brier_score) == (1, 2)
    assert 80 < wrong.negative_log_likelihood < 90


def test_predictions_that_are_right_as_often_as_they_say_are_calibrated():
    labels = np.arange(20) % 4
    assert quality_of(np.full((20, 4), 0.25), labels).calibration_error == pytest.approx(0)


def test_a_class_without_images_has_no_accuracy():
    values = quality_of(np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]), np.array([0, 0])).as_values(("a", "b", "c"))
    assert values["classes"] == {
        "a": {"accuracy": 0.5, "n": 2},
        "b": {"accuracy": None, "n": 0},
        "c": {"accuracy": None, "n": 0},
    }


def test_predictions_that_are_no_numbers_are_refused():
    with pytest.raises(AfieldError, match="no numbers"):
        check_numbers(torch.tensor([[0.5, float("nan")]]))


# A trained network


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run", "baseline", 2)


@pytest.fixture(scope="module")
def evaluation(run):
    return evaluate_checkpoint(run.folder)


def test_classes_and_accuracy_agree_and_errors_are_all_there(evaluation, toy):
    for name, result in evaluation.results.items():
        of_classes = result["classes"]
        assert list(of_classes) == list(toy.classes)
        assert sum(one["n"] for one in of_classes.values()) == result["n"] == len(toy[name].test)
        right = sum(one["n"] * one["accuracy"] for one in of_classes.values())
        assert right / result["n"] == pytest.approx(result["accuracy"])
        assert result["calibration"].keys() == {"ece", "brier", "nll"}
        assert "unlabelled" not in result
        mistakes = [mistake for mistake in evaluation.mistakes if mistake.domain == name]
        assert len(mistakes) == result["n"] - round(right)
        for mistake in mistakes:
            assert mistake.truth == toy.classes[toy[name].test.labels[mistake.index]] != mistake.predicted
            assert 1 / 3 <= mistake.confidence <= 1


def test_the_command_prints_calibration_and_classes(run, evaluation, call):
    code, shown, said = call("evaluate", run.folder, "--domain", "night,day")
    assert (code, said) == (0, "")
    night = evaluation.results["night"]
    row = next(line for line in shown.splitlines() if " night " in line)
    for value in night["calibration"].values():
        assert f"{value:.3f}" in row
    assert "accuracy (test images) per class" in shown
    row = next(line for line in shown.splitlines() if " square " in line)
    for result in (night, evaluation.results["day"]):
        of_class = result["classes"]["square"]
        assert f"{of_class['accuracy']:.1%} ({of_class['n']})" in row
    code, shown, _ = call("evaluate", run.folder, "--json")
    assert json.loads(shown) == evaluation.results


def test_of_many_classes_the_worst_are_shown():
    names = [f"class {number}" for number in range(30)]
    classes = {name: {"accuracy": 1 - number / 100, "n": 5} for number, name in enumerate(names)}
    classes["empty"] = {"accuracy": None, "n": 0}
    results = {"far": {"accuracy": 0.8, "n": 150, "classes": classes}, "bare": {"accuracy": None, "n": 9}}
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for table in evaluation_tables("many", results):
        console.print(table)
    text = console.export_text()
    assert "the lowest 12 of 30 (--json has all)" in " ".join(text.split())
    assert [name for name in (*names, "empty") if f" {name} " in text] == names[18:]


# The sheet of errors


def test_the_errors_are_written_as_a_picture(run, evaluation, call, tmp_path):
    file = tmp_path / "new" / "errors.png"
    code, shown, said = call("evaluate", run.folder, "--domain", "night", "--errors", file)
    assert (code, said) == (0, "")
    assert f"errors: {file}" in shown
    assert [path.name for path in file.parent.iterdir()] == ["errors.png"]
    with Image.open(file) as sheet:
        assert sheet.format == "PNG"
    json.loads(call("evaluate", run.folder, "--domain", "night", "--errors", file, "--json")[1])


def test_the_sheet_shows_each_image_with_its_classes():
    red, green = (np.full((1, 9, 9, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 255, 0)))
    labels = np.zeros(1, np.int64)
    domains = {name: Domain(name, split, split, "") for name, split in
               (("one", Split.of_array(red, labels)), ("two", Split.of_array(green, labels)))}  # fmt: skip
    data = DomainSet("two", ("bus", "car"), domains)
    mistakes = [Mistake("one", 0, "bus", "car", 0.9)]
    alone = error_sheet(data, mistakes)
    pixels = np.asarray(alone)
    assert (pixels == (255, 0, 0)).all(axis=2).sum() >= 96 * 96
    both = error_sheet(data, [*mistakes, Mistake("two", 0, "bus", "car", 0.9)])
    assert both.height > alone.height
    assert (np.asarray(both) == (0, 255, 0)).all(axis=2).sum() >= 96 * 96
    other = error_sheet(data, [replace(mistakes[0], predicted="a very long name of a class indeed")])
    assert other.size == alone.size
    assert np.asarray(other).tobytes() != pixels.tobytes(), "what was predicted is written on it"


def test_of_many_errors_the_surest_are_shown():
    mistakes = [Mistake(name, i, "a", "b", 0.5 + i / 1000) for name in ("x", "y") for i in range(MOST_IMAGES)]
    shown = shown_mistakes(mistakes)
    assert {name: len(own) for name, own in shown.items()} == {"x": MOST_IMAGES // 2, "y": MOST_IMAGES // 2}
    assert [mistake.index for mistake in shown["x"][:2]] == [MOST_IMAGES - 1, MOST_IMAGES - 2]


def test_without_errors_no_sheet_is_written(run, toy, call, monkeypatch, tmp_path):
    blind = Split(toy["night"].test.images, None)
    data = DomainSet("toy", toy.classes, {"night": Domain("night", blind, blind, "rendered")})
    monkeypatch.setitem(data_registry._builders, "toy", lambda: data)
    code, shown, _ = call("evaluate", run.folder, "--errors", tmp_path / "new" / "errors.png")
    assert (code, "no errors" in shown) == (0, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "part"), [("errors.jpg", ".png"), ("taken.png", "is a folder")])
def test_a_sheet_that_cannot_be_written_is_refused_before_anything_is_measured(run, call, tmp_path, name, part):
    (tmp_path / "taken.png").mkdir()
    code, shown, said = call("evaluate", run.folder, "--errors", tmp_path / name)
    assert (code, shown, len(said.splitlines())) == (2, "", 1)
    assert part in said
