"""Several plans in one benchmark: each run is made once, and each plan has its table."""

from pathlib import Path

import pytest

from afield import AfieldError
from afield.app.bench_command import train_runs
from afield.bench.estimate import dry_run
from afield.bench.run import run_bench
from support.benching import recorded, register_toy_protocol, write_plan


@pytest.fixture(autouse=True)
def plans(toy, tmp_path, monkeypatch):
    """Two plans, with a run in common."""
    monkeypatch.chdir(tmp_path)
    register_toy_protocol(toy, monkeypatch)
    write_plan("first.toml", methods=["baseline"], targets=["night"], seeds=[0, 1])
    write_plan("second.toml", methods=["baseline", "far"], targets=["night"], seeds=[1])
    return ["first.toml", "second.toml"]


def test_runs_of_all_plans_are_made_and_those_in_common_once(plans):
    ahead = dry_run([Path(plan) for plan in plans], Path("out"))
    assert [one.state for one in ahead.forecasts] == ["to train"] * 3
    result = run_bench(plans, "out", 1, progress=False)
    assert (result.total, result.recorded) == (3, 3)
    assert sorted(recorded("out")) == [("baseline", "night", 0), ("baseline", "night", 1), ("far", "night", 1)]
    for plan, runs in (("first.toml", 2), ("second.toml", 2)):
        assert run_bench(plan, "out", 1, progress=False).recorded == runs


def test_a_label_that_stands_for_two_methods_in_two_plans_is_refused_before_anything_trains():
    write_plan("first.toml", methods=[], rows=[{"label": "ours", "method": "far"}], targets=["night"])
    write_plan("second.toml", methods=[], rows=[{"label": "ours", "method": "dann"}], targets=["night"])
    with pytest.raises(AfieldError, match="row 'ours' stands for two methods: far and dann"):
        run_bench(["first.toml", "second.toml"], "out", 1, progress=False)
    assert not Path("out").exists()


def test_the_command_names_the_table_of_each_plan(plans, capsys):
    train_runs([Path(plan) for plan in plans], Path("out"), {"workers": 1, "progress": False})
    said = (
        "3 of 3 runs are recorded; afield table out --plan first.toml and afield table out --plan second.toml show them"
    )
    assert capsys.readouterr().out == f"{said}\n"
