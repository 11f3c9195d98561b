"""Every method goes through the same doors: trained, killed, resumed, benchmarked, and on networks of other kinds."""

import sys
from pathlib import Path

import pytest
import tomli_w

import afield
from afield.app.cli import main
from afield.config.catalogue import find_entry
from afield.results.run import read_run
from afield.results.table import make_table
from support.networks import FAMILIES
from support.resuming import Killed, assert_equal_runs, kill_before_step

DROPOUT = {"network.hidden": [8], "network.dropout": 0.5}  # the generators' states matter too
SMALL = {"network.width": 8, "training.batch_size": 4, "training.evaluate_every": 2, "training.checkpoint_every": 2}
# Recipes of papers are settings of methods that are here: test_paper_presets.py has them.
# FAR's variants are options of one code: test_far.py has them.
VARIANTS = [method for method in afield.list_methods() if method.endswith("-paper") or method.startswith("far-")]
CODES = [method for method in afield.list_methods() if method not in VARIANTS]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["afield", *words])
        with pytest.raises((SystemExit, Killed)) as end:
            main()
        assert getattr(end.value, "code", 0) in (0, None)

    return run


def few(method):
    """Settings of a small run; MEDA solves for as many unknowns as it has images."""
    return SMALL | ({"method.samples": 20} if method == "meda" else {})


@pytest.mark.parametrize("method", CODES)
def test_trained_from_the_command_line_killed_and_resumed_it_ends_as_if_never_killed(command, tmp_path, method):
    # Without a target where a method can do without: test_resume has runs with one.
    task = find_entry(method).as_dict()["tasks"][-1]
    words = ["train", "--data", "digits", "--task", task, "--target", "uci", "--method", method, "--steps", "5"]
    words += ["--device", "cpu"]  # where the bits are the same every time
    # One evaluation at the end: test_resume has some on the way.
    for setting, value in (few(method) | DROPOUT | {"training.evaluate_every": 5}).items():
        words += ["--set", f"{setting}={value}"]
    command(*words, "--out", "unbroken")
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 3)
        command(*words, "--out", "killed")
    command("train", "--out", "killed", "--resume")
    assert_equal_runs(read_run(tmp_path / "killed"), read_run(tmp_path / "unbroken"))


@pytest.mark.parametrize("backbone", ["vit", "resnet"])
@pytest.mark.parametrize("method", CODES)
def test_it_trains_on_maps_of_tokens_and_on_those_of_convolutions(train_toy, tmp_path, method, backbone):
    name, size, _ = FAMILIES[backbone]
    settings = few(method) | {"network.backbone": name, "data.image_size": size, "training.lr": 0.01}
    if (method, backbone) == ("mixstyle", "vit"):  # the one that acts inside a backbone, on maps of channels
        with pytest.raises(afield.AfieldError, match="has 0 early stages that give maps"):
            train_toy(tmp_path / "run", method, 2, settings=settings)
        return
    run = train_toy(tmp_path / "run", method, 2, settings=settings)
    assert run.step == 2
    assert run.evaluation["losses"]


@pytest.mark.parametrize("task", ["uda", "dg"])
def test_one_benchmark_ranks_them_all(command, task):
    methods = [method for method in CODES if task in find_entry(method).as_dict()["tasks"]]
    rows = [{"label": f"small {m}", "method": m, "settings": {"method.samples": 20}} for m in methods if m == "meda"]
    plan = {
        "protocol": {"uda": "digits/embedded", "dg": "digits/dg"}[task],
        "methods": [method for method in methods if method != "meda"],
        "rows": rows, "seeds": [0], "targets": ["uci"], "settings": SMALL | {"training.steps": 1},
    }  # fmt: skip
    Path("plan.toml").write_text(tomli_w.dumps(plan), "utf-8")
    command("bench", "plan.toml", "--out", "out")
    ranked = {row.name.removeprefix("small ") for row in make_table([Path("out")], plan=Path("plan.toml")).rows}
    assert ranked == set(methods)
