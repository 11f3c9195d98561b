"""What a user sees while a run trains."""

import io

import pytest
import torch
from rich.console import Console

from afield.training.callbacks import RunStart
from afield.training.loggers.tensorboard import TensorBoardLogger
from afield.training.progress import RunProgress, accuracies

EVALUATION = {
    "step": 50,
    "sources": {"day": {"accuracy": 0.9, "n": 10}, "dusk": {"accuracy": 0.8, "n": 10}},
    "target": {"night": {"accuracy": 0.5, "n": 10, "views": {"F": 0.4, "A": 0.45}, "gates": {"kept": 0.97}}},
    "losses": {"classification": 1.5},
    "lr": 0.1,
    "adaptation_weight": 0.5,
}
UNLABELLED = {**EVALUATION, "target": {"night": {"accuracy": None, "n": 10, "gates": {"kept": 0.97}}}}
LOSSES = {name: torch.tensor(1.25) for name in ("classification", "aligned", "align", "dre", "experts", "consistency")}


def on_screen(progress, width):
    """Let the progress write to a terminal of some width, and return what it has written so far."""
    progress.console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    return progress.console.file.getvalue


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("title", ["far", "far-without-ranking", "mine [/x] {y}"])
def test_bar_speed_losses_and_gates_are_all_seen_even_in_a_narrow_terminal(title, width):
    progress = RunProgress(title, 100)
    shown = on_screen(progress, width)
    progress.evaluated(EVALUATION)
    progress.update(55, LOSSES)
    progress.update(60, LOSSES)
    progress.console.print(progress._render())
    assert max(map(len, shown().splitlines())) <= width
    for text in (title, "60/100", "0:00", "steps/s", "classification 1.250", "consistency 1.250", "kept 0.97"):
        assert text in shown().replace("\n", " ")


def test_the_speed_is_that_of_the_last_steps_and_unknown_at_first():
    progress = RunProgress("far", 100, start=40)
    progress.bar.get_time = iter(range(100)).__next__
    (column,) = [column for column in progress.bar.columns if type(column).__name__ == "StepsPerSecond"]
    assert str(column.render(progress.bar.tasks[0])) == "- steps/s"
    for step in (50, 60, 70):
        progress.update(step, LOSSES)
    assert float(str(column.render(progress.bar.tasks[0])).split()[0]) > 0


def test_an_evaluation_is_a_line_that_says_the_targets_labels_are_not_trained_on(capsys):
    RunProgress("far", 100).evaluated(EVALUATION)
    line = (
        "far step 50/100: sources 85.0%, target night 50.0% (labels not used in training); "
        "night from F 40.0%, A 45.0%; gates kept 0.97"
    )
    assert capsys.readouterr().err.strip() == line


def test_a_target_without_labels_has_a_dash_for_its_accuracy(capsys):
    RunProgress("far", 100).evaluated(UNLABELLED)
    assert capsys.readouterr().err.strip() == (
        "far step 50/100: sources 85.0%, target night - (no labels); gates kept 0.97"
    )
    assert accuracies({**EVALUATION, "target": {}}) == "sources 85.0%"


@pytest.mark.parametrize("width", range(30, 90, 7))
def test_a_terminals_line_breaks_between_words_only(width):
    progress = RunProgress("far", 100)
    shown = on_screen(progress, width)
    progress.evaluated(EVALUATION)
    words = shown().split()
    for number in ("50/100:", "85.0%,", "50.0%", "40.0%,", "45.0%;", "0.97"):
        assert number in words


def test_tensorboard_gets_no_accuracy_where_there_is_none(tmp_path):
    logger = TensorBoardLogger()
    logger.on_start(RunStart(tmp_path, {}, 0, 100, shown=False))
    logger.on_evaluation(UNLABELLED)
    logger.on_end(None)
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"sources/day" in file.read_bytes()
    assert b"target/night" not in file.read_bytes()


def test_silence_is_silent(capsys):
    with RunProgress("far", 100, shown=False) as progress:
        progress.evaluated(EVALUATION)
        progress.update(60, LOSSES)
    assert capsys.readouterr() == ("", "")
