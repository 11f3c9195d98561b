"""What a person sees while a run trains."""

import io

import pytest
import torch
from rich.console import Console

from afield.training.progress import RunProgress

EVALUATION = {
    "step": 50,
    "sources": {"day": {"accuracy": 0.9, "n": 10}, "dusk": {"accuracy": 0.8, "n": 10}},
    "oracle": {"night": {"accuracy": 0.5, "n": 10, "views": {"F": 0.4, "A": 0.45}, "gates": {"kept": 0.97}}},
}
LOSSES = {name: torch.tensor(1.25) for name in ("classification", "aligned", "align", "dre", "experts", "consistency")}


@pytest.mark.parametrize("width", [80, 140])
def test_bar_losses_and_gates_are_all_seen_even_in_a_narrow_terminal(width):
    progress = RunProgress("far", 100)
    screen = progress.console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    progress.evaluated(EVALUATION)
    progress.update(60, LOSSES)
    screen.print(progress._render())
    shown = screen.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    for text in ("60/100", "0:00", "classification 1.250", "consistency 1.250", "kept 0.97"):
        assert text in shown.replace("\n", " ")


def test_an_evaluation_is_a_line_that_marks_the_target_as_oracle(capsys):
    RunProgress("far", 100).evaluated(EVALUATION)
    line = "far step 50/100: sources 85.0%, target night 50.0% (oracle); night from F 40.0%, A 45.0%; gates kept 0.97"
    assert capsys.readouterr().err.strip() == line


def test_silence_is_silent(capsys):
    with RunProgress("far", 100, shown=False) as progress:
        progress.evaluated(EVALUATION)
        progress.update(60, LOSSES)
    assert capsys.readouterr() == ("", "")
