"""Loggers that a config names get the records' numbers, and a resumed run goes on in the same one."""

import importlib.util
import json
import sys
import tomllib

import pytest
import tomli_w

import afield
from afield.config.plan import plan_jobs, read_plan_file
from afield.config.upgrade import upgraded
from afield.results.curves import curves_of
from afield.results.folder import RunFolder
from afield.results.records import evaluations
from afield.training.checkpoint import load_checkpoint, save_checkpoint
from support.resuming import Killed, every, kill_before_step
from support.wandb_files import logged_in

STEPS = [3, 6, 9, 12]


def chosen(*names):
    """The settings of a run that is evaluated at STEPS, and whose last checkpoint is older than some evaluations."""
    return every(3, 5) | {"training.loggers": names}


@pytest.fixture
def quiet_wandb(monkeypatch):
    """W&B without a network."""
    pytest.importorskip("wandb")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    """Where MLflow's store is, which takes seconds to make."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/store.db"


@pytest.fixture
def found_in_mlflow(mlflow_store, monkeypatch, request):
    """The only run of the test's experiment; and a client to ask more."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)

    def find():
        client = mlflow.MlflowClient()
        (found,) = client.search_runs([client.get_experiment_by_name(request.node.name).experiment_id])
        return found, client

    return find


def train_in_two_parts(train_toy, folder, settings):
    """A run that is killed after the evaluation of step 9 and goes on from the checkpoint of step 5."""
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 9)
        with pytest.raises(Killed):
            train_toy(folder, settings=settings)
    return afield.train(out=folder, resume=True, progress=False)


def test_wandb_gets_the_recorded_numbers_and_a_resumed_run_stays_one(train_toy, tmp_path, quiet_wandb):
    run = train_in_two_parts(train_toy, tmp_path / "x", chosen("wandb"))
    sys.modules["wandb"].teardown()  # waits for what is still being written
    files = sorted((tmp_path / "x/wandb").glob("offline-run-*/run-*.wandb"))
    (first, before), (second, after) = map(logged_in, files)
    assert first == second == RunFolder(run.folder).logger_ids["wandb"]
    assert sorted(before) == [3, 6, 9]
    assert sorted(before | after) == STEPS
    for line in evaluations(run.records):
        logged = (before | after)[line["step"]]
        assert {name: json.loads(logged[name]) for name in curves_of(line)} == pytest.approx(curves_of(line))
    assert not (tmp_path / "x/tensorboard").exists()

    (tmp_path / "x/wandb/mine.txt").write_text("mine")
    train_toy(tmp_path / "x", settings=chosen("wandb"), overwrite=True)
    (new,) = (tmp_path / "x/wandb").glob("offline-run-*")
    assert not new.name.endswith(first)
    assert (tmp_path / "x/wandb/mine.txt").exists()


def test_mlflow_gets_the_recorded_numbers_and_a_resumed_run_stays_one(train_toy, tmp_path, found_in_mlflow):
    run = train_in_two_parts(train_toy, tmp_path / "x", chosen("mlflow", "tensorboard"))
    found, client = found_in_mlflow()
    assert (found.info.run_name, found.info.status) == ("x", "FINISHED")
    assert found.data.params["training.steps"] == "12"
    assert found.data.params["method.name"] == "far"
    for name, key in (("target/night", "target/night"), ("sources-from/day/A+R+", "sources-from/day/A plus R plus")):
        logged = client.get_metric_history(found.info.run_id, key)
        assert [(one.step, one.value) for one in logged] == list(run.history()[name].items())
    assert (tmp_path / "x/tensorboard").is_dir()


def test_mlflow_knows_a_run_that_was_stopped_and_says_where_it_looked_for_one_to_go_on(
    train_toy, tmp_path, found_in_mlflow, monkeypatch
):
    settings = chosen("mlflow")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 6)
        train_toy(tmp_path / "x", settings=settings)
    assert found_in_mlflow()[0].info.status == "KILLED"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/another.db")
    with pytest.raises(afield.AfieldError, match=r"another\.db lacks the MLflow run of .*x: set MLFLOW_TRACKING_URI"):
        afield.train(out=tmp_path / "x", resume=True, progress=False)


def test_a_run_without_loggers_leaves_its_records(train_toy, tmp_path):
    run = train_toy(tmp_path / "x", "baseline", settings=chosen())
    assert list(run.history().index) == STEPS
    assert {file.name for file in run.folder.iterdir()} == {
        "config.toml", "records.jsonl", "last.ckpt", "source-val.ckpt"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_line_before_anything_is_read_or_written(name, tmp_path, monkeypatch, call):
    plain = importlib.util.find_spec
    monkeypatch.setattr("afield.training.loggers.find_spec", lambda asked: None if asked == name else plain(asked))
    monkeypatch.delitem(sys.modules, name, raising=False)
    words = ["--data", tmp_path / "photos", "--target", "night", "--set", f'training.loggers=["{name}"]']
    code, out, err = call("train", *words, "--out", tmp_path / "x")
    said = f'the logger {name} needs the package {name}: pip install "afield[{name}]"'
    assert (code, out) == (2, "")
    assert err.strip().endswith(said)
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "x").exists()
    plan = tmp_path / "plan.toml"
    settings = {"training": {"loggers": [name]}}
    plan.write_text(
        tomli_w.dumps({"protocol": "digits/embedded", "seeds": [0], "methods": ["far"], "settings": settings})
    )
    with pytest.raises(afield.AfieldError, match="pip install"):
        afield.run_bench(plan, tmp_path / "bench", progress=False)
    assert not (tmp_path / "bench").exists()


@pytest.mark.parametrize("damaged", ["", "[]", "{", '{"wandb": "../*"}', '{"wandb": 3}', "null"])
def test_of_a_damaged_list_of_names_nothing_is_taken_and_nothing_removed(tmp_path, damaged):
    folder = RunFolder(tmp_path)
    (folder.wandb / "offline-run-20260101_000000-theirs").mkdir(parents=True)
    folder.loggers.write_text(damaged)
    assert folder.logger_ids == {}
    folder.clear()
    assert (folder.wandb / "offline-run-20260101_000000-theirs").is_dir()


def test_an_unknown_logger_is_refused_with_the_names_there_are(train_toy, tmp_path):
    with pytest.raises(afield.AfieldError, match=r"training\.loggers.*tensorboard.*wandb.*mlflow"):
        train_toy(tmp_path / "x", settings={"training.loggers": ("tensorbord",)})


def test_loggers_do_not_make_another_row_or_another_run_of_a_benchmark(tmp_path):
    plan = {"protocol": "digits/embedded", "seeds": [0], "methods": ["far"], "targets": ["uci"]}
    (tmp_path / "a.toml").write_text(tomli_w.dumps(plan))
    (tmp_path / "b.toml").write_text(tomli_w.dumps(plan | {"settings": {"training": {"loggers": ["mlflow"]}}}))
    (first,), (second,) = (plan_jobs(read_plan_file(tmp_path / name)) for name in ("a.toml", "b.toml"))
    assert first.identity == second.identity


def test_a_run_begun_before_loggers_could_be_chosen_goes_on_with_tensorboard(train_toy, tmp_path):
    folder = RunFolder(tmp_path / "x")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 9)
        train_toy(folder.path, "baseline", settings=every(3, 5))
    config = tomllib.loads(folder.config.read_text("utf-8"))
    assert config["training"].pop("loggers") == ["tensorboard"]
    assert upgraded(config) == config
    folder.config.write_text(tomli_w.dumps(config), "utf-8")
    saved = load_checkpoint(folder.last)
    del saved.config["training"]["loggers"]
    save_checkpoint(folder.last, saved)
    run = afield.train(out=folder.path, resume=True, progress=False)
    assert run.step == 12
    assert len(list(folder.tensorboard.iterdir())) == 2
