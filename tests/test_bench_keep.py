"""Checkpoints that a benchmark keeps: for figures afterwards, and no later benchmark removes them."""

from pathlib import Path

import pytest

import afield
from afield.app.looking import read_named
from afield.bench.folder import BenchFolder
from afield.bench.run import run_bench
from afield.results.run import read_run
from afield.training import loop
from support.benching import recorded, register_toy_protocol, write_plan


@pytest.fixture(scope="module")
def home(toy, tmp_path_factory):
    """A folder to stand in, with a plan of two runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("home"))
        register_toy_protocol(toy, patch)
        write_plan("plan.toml", methods=["far"], targets=["night"])
        yield


def bench(out, **options):
    return run_bench("plan.toml", out, 1, progress=False, **options)


@pytest.fixture(scope="module")
def kept(home):
    """The folders that a benchmark has kept."""
    bench("out", keep=["last", "information"])
    return sorted(Path("out/kept").iterdir())


def test_the_checkpoints_asked_for_stay_with_their_runs_and_no_others(kept):
    assert len(kept) == len(recorded("out")) == 2
    assert not Path("out/runs").exists()
    for folder in kept:
        assert {file.name for file in folder.glob("*.ckpt")} == {"last.ckpt", "information.ckpt"}
        assert read_run(folder, "information").step <= read_run(folder).step == 12
        assert afield.load(folder).step == 12


@pytest.mark.parametrize("kind", ["divergence", "maps", "tsne", "curves", "complexity"])
def test_every_figure_can_be_drawn_of_them(kept, call, kind, tmp_path):
    code, _, err = call("figure", kind, *kept, "--out", tmp_path / "figure.pdf")
    assert code == 0, err
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_seeds_of_one_row_are_told_apart_by_their_folders_and_are_one_mean_curve(kept, call, tmp_path):
    drawn = {}
    for kind in ("divergence", "curves"):
        code, _, err = call("figure", kind, *kept, "--out", tmp_path / "figure.svg")
        assert code == 0, err
        drawn[kind] = (tmp_path / "figure.svg").read_text("utf-8")
    assert all(f">{folder.name}</text>" in drawn["divergence"] for folder in kept)
    assert not any(folder.name in drawn["curves"] for folder in kept)
    assert ">far" in drawn["curves"]


def test_a_run_keeps_its_label_where_no_other_has_it(kept):
    assert [named.histories[0].name for named in read_named(kept[:1])] == ["far"]


def test_the_same_benchmark_without_keep_leaves_them(kept):
    bench("out")
    assert all((folder / "last.ckpt").is_file() for folder in kept)


def test_no_checkpoint_is_written_that_is_not_kept(home, monkeypatch):
    written = set()
    monkeypatch.setattr(loop, "save_checkpoint", lambda path, checkpoint: written.add(path.name))
    bench("unkept")
    assert written == {"last.ckpt"}


def test_a_kill_between_the_record_and_the_keeping_loses_nothing(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BenchFolder, "tidy", lambda self, job: None)
        bench("killed", keep=["last"])
    bench("killed", keep=["last"])
    assert len(list(Path("killed").glob("kept/*/last.ckpt"))) == 2
    assert not Path("killed/runs").exists()


def test_checkpoints_that_are_gone_are_noted(home, call):
    bench("gone")
    code, _, err = call("bench", "plan.toml", "--out", "gone", "--keep", "last")
    assert code == 0
    assert "note: 2 of the recorded runs lack checkpoints to keep" in err


@pytest.mark.parametrize(("name", "said"), [("lst", "did you mean 'last'"), ("oracle", "looks at the target's labels")])
def test_what_is_no_selector_is_one_line_before_anything_is_written(home, call, name, said):
    code, _, err = call("bench", "plan.toml", "--out", "never", "--keep", name)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not Path("never").exists()


def test_the_tasks_of_slurm_keep_them_too(home, call):
    words = ["--engine", "slurm", "--shards", "2", "--keep", "last", "--keep", "snd"]
    assert call("bench", "plan.toml", "--out", "slurm", *words)[0] == 0
    assert "--keep last --keep snd --shard" in Path("slurm/slurm.sh").read_text("utf-8")
