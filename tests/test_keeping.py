"""Checkpoints of every selector asked for, and training that stops when a selector sees no improvement."""

import pytest

import afield
from afield import AfieldError
from afield.app.evaluate import evaluate_checkpoint
from afield.config.selectors import LABEL_FREE
from afield.results.records import evaluations
from afield.results.selection import evaluations_since_best
from afield.training.checkpoint import load_checkpoint
from afield.training.evaluation import Evaluator
from afield.training.keeping import undominated
from support.resuming import Killed, assert_equal_runs, every, kill_after_record, kill_before_step, kill_while_saving

ALL = {"training.keep": list(LABEL_FREE)} | every(2, 3)
SCORES = ("entropy", "diversity", "snd", "nuclear", "dev")


def files(run):
    return {path.name for path in run.folder.glob("*.ckpt")}


@pytest.fixture(scope="module")
def kept(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("kept") / "run", "far", settings=ALL)


def test_a_run_keeps_the_checkpoint_of_every_selector_asked_for_and_no_other(kept):
    assert files(kept) == {f"{name}.ckpt" for name in LABEL_FREE}
    for name in LABEL_FREE:
        chosen = kept.select(name)
        assert load_checkpoint(chosen.checkpoint).step == chosen.step


def test_a_model_is_loaded_and_evaluated_by_its_selector(kept, toy):
    for name in ("information", "dev", "ensemble"):
        results = evaluate_checkpoint(kept.folder, domains=["night"], selector=name).results
        assert results["night"]["accuracy"] == kept.select(name).accuracy["night"]
    images = toy["night"].test.images.array[:3]
    by_path, by_name = afield.load(kept.folder / "snd.ckpt"), afield.load(kept.folder, selector="snd")
    assert by_path.predict_proba(images).equal(by_name.predict_proba(images))


def test_a_checkpoint_that_was_not_kept_is_one_line_that_says_which_were(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "baseline", 2, selector="snd")
    assert files(run) == {"last.ckpt", "source-val.ckpt", "snd.ckpt"}
    assert run.checkpoint.name == "snd.ckpt"
    with pytest.raises(AfieldError, match=r"no checkpoint of 'dev', only of last, source-val, snd: training\.keep"):
        afield.load(run.folder, selector="dev")
    with pytest.raises(AfieldError, match="chooses among the checkpoints in a run's folder"):
        afield.load(run.folder / "last.ckpt", selector="snd")
    with pytest.raises(AfieldError, match="never chosen by 'oracle'"):
        afield.load(run.folder, selector="oracle")
    with pytest.raises(AfieldError, match=r"cannot resume with selector 'dev': the run keeps .* source-val, snd"):
        train_toy(run.folder, "baseline", 2, selector="dev", resume=True)
    assert train_toy(run.folder, "baseline", 2, selector="snd", resume=True).step == 2


def test_the_same_command_resumes_a_run_that_keeps_what_it_asked_for(train_toy, tmp_path):
    asked = {"settings": {"training.keep": ["information"]}, "selector": "dev"}
    run = train_toy(tmp_path / "run", "baseline", 2, **asked)
    assert files(run) == {"last.ckpt", "information.ckpt", "dev.ckpt"}
    assert train_toy(tmp_path / "run", "baseline", 2, resume=True, **asked).selector == "dev"


@pytest.mark.parametrize(
    "settings",
    [{"training.keep": ["information"]}, {"training.patience": 2, "training.stop_by": "dev"}],
)
def test_without_target_images_a_selector_that_needs_them_is_an_error(train_toy, tmp_path, settings):
    with pytest.raises(AfieldError, match="looks at the target's training images, and a dg task has none"):
        train_toy(tmp_path / "run", "baseline", 2, task="dg", settings=settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kill", "where"),
    [(kill_before_step, (7,)), (kill_after_record, (8,)), (kill_while_saving, ("last.ckpt", 9)),
     (kill_while_saving, ("source-val.ckpt", 2)), (kill_after_record, (12,))],
)  # fmt: skip
def test_a_resumed_run_keeps_the_same_checkpoints(train_toy, tmp_path, kept, kill, where):
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, *where)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", "far", settings=ALL)
    resumed = train_toy(tmp_path / "killed", "far", settings=ALL, resume=True)
    assert_equal_runs(resumed, kept)
    for name in LABEL_FREE:
        assert load_checkpoint(resumed.folder / f"{name}.ckpt").step == kept.select(name).step


def scripted(monkeypatch, *scores, target=0.5):
    """Evaluations with these source accuracies, and all other scores equal to them."""
    script = iter(scores)

    def evaluate(self, method):
        score = next(script)
        sources, night = ({name: {"accuracy": value, "n": 10}} for name, value in (("day", score), ("night", target)))
        return {
            "sources": sources,
            "target": night,
            "unlabelled": {"night": {**dict.fromkeys(SCORES, score), "entropy": 0.0}},
        }

    monkeypatch.setattr(Evaluator, "__call__", evaluate)


def test_a_kept_checkpoint_is_that_of_its_evaluation_although_a_resumed_run_measures_otherwise(
    train_toy, tmp_path, monkeypatch
):
    settings = every(2, 3) | {"training.keep": ["source-val"]}
    with pytest.MonkeyPatch.context() as patch:
        scripted(patch, 0.5, 0.9)
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            train_toy(tmp_path / "run", "baseline", 8, settings=settings)
    scripted(monkeypatch, 0.3, 0.3, 0.3)  # as other hardware may
    run = train_toy(tmp_path / "run", "baseline", 8, settings=settings, resume=True).select("source-val")
    assert run.step == load_checkpoint(run.checkpoint).step == 4


def test_the_checkpoint_of_an_ensemble_is_that_of_an_earlier_evaluation_where_ranks_say_so(
    train_toy, tmp_path, monkeypatch
):
    # The second is better than the first by one score of six and worse by another; the third decides between them.
    numbers = iter([(0.5, 0.5), (0.4, 0.6), (0.45, 0.4), (0.42, 0.3)])

    def evaluate(self, method):
        source, snd = next(numbers)
        said = {**dict.fromkeys(SCORES, 0.5), "snd": snd}
        sources, night = ({name: {"accuracy": value, "n": 10}} for name, value in (("day", source), ("night", 0.5)))
        return {"sources": sources, "target": night, "unlabelled": {"night": said}}

    monkeypatch.setattr(Evaluator, "__call__", evaluate)
    run = train_toy(tmp_path / "run", "baseline", 8, settings=every(2, 2) | {"training.keep": ["ensemble"]})
    chosen = run.select("ensemble")
    assert load_checkpoint(chosen.checkpoint).step == chosen.step == 2
    assert files(run) == {"last.ckpt", "ensemble.ckpt"}
    assert [line["step"] for line in undominated(evaluations(run.records))] == [2, 4]


@pytest.mark.parametrize("selector", ["source-val", "snd", "ensemble"])
def test_training_stops_after_so_many_evaluations_without_improvement(train_toy, tmp_path, monkeypatch, selector):
    settings = every(2, 100) | {"training.patience": 2, "training.stop_by": selector}
    scripted(monkeypatch, 0.2, 0.6, 0.5, 0.6, 0.9, 1.0)
    run = train_toy(tmp_path / "run", "baseline", 12, settings=settings)
    assert [line["step"] for line in evaluations(run.records)] == [2, 4, 6, 8]
    assert run.step == load_checkpoint(run.checkpoint).step == run.records[-1]["step"] == 8
    assert run.select("source-val").step == load_checkpoint(run.folder / "source-val.ckpt").step == 4
    chosen = run.select(selector)
    assert load_checkpoint(chosen.checkpoint).step == chosen.step == 4, "the one it stopped after"
    assert train_toy(tmp_path / "run", "baseline", 12, settings=settings, resume=True).step == 8, "it has ended"


def test_without_patience_training_goes_on(train_toy, tmp_path, monkeypatch):
    scripted(monkeypatch, *[0.5] * 6)
    assert train_toy(tmp_path / "run", "baseline", 12, settings=every(2, 100)).step == 12


def test_the_target_never_stops_training(train_toy, tmp_path, monkeypatch):
    scripted(monkeypatch, 0.1, 0.2, 0.3, target=0.0)
    settings = every(2, 100) | {"training.patience": 1}
    assert train_toy(tmp_path / "run", "baseline", 6, settings=settings).step == 6
    with pytest.raises(AfieldError, match=r"training\.stop_by"):
        train_toy(tmp_path / "oracle", "baseline", 6, settings={"training.patience": 1, "training.stop_by": "oracle"})


@pytest.mark.parametrize(
    "kill", [(kill_before_step, (3,)), (kill_after_record, (6,)), (kill_while_saving, ("last.ckpt", 6))]
)
def test_a_resumed_run_stops_where_the_unbroken_one_does(train_toy, tmp_path, kill):
    # Nothing is better than the first evaluation: the network learns nothing.
    settings = every(2, 3) | {"training.patience": 2, "training.lr": 1e-12}
    unbroken = train_toy(tmp_path / "unbroken", "baseline", 30, settings=settings)
    assert unbroken.step == 6
    with pytest.MonkeyPatch.context() as patch:
        kill[0](patch, *kill[1])
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", "baseline", 30, settings=settings)
    assert_equal_runs(train_toy(tmp_path / "killed", "baseline", 30, settings=settings, resume=True), unbroken)


def test_a_run_killed_between_its_last_checkpoint_and_its_end_does_not_train_on(train_toy, tmp_path):
    settings = every(2, 3) | {"training.patience": 2, "training.lr": 1e-12}
    run = train_toy(tmp_path / "run", "baseline", 30, settings=settings)
    lines = (run.folder / "records.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "records.jsonl").write_text("".join(lines[:-1]))
    again = train_toy(tmp_path / "run", "baseline", 30, settings=settings, resume=True)
    assert (again.step, len(again.records)) == (6, len(lines))


def test_evaluations_are_counted_from_the_one_that_is_chosen():
    run = [{"step": step, "sources": {"a": {"accuracy": score}}} for step, score in enumerate([0.1, 0.9, 0.9, 0.2])]
    assert evaluations_since_best(run, "source-val") == 2
    assert evaluations_since_best(run[:2], "source-val") == 0


def test_the_best_checkpoint_of_an_older_run_gets_its_present_name(train_toy, tmp_path):
    run = train_toy(tmp_path / "run", "baseline", 2)
    (run.folder / "source-val.ckpt").rename(run.folder / "best.ckpt")
    train_toy(tmp_path / "run", "baseline", 2, resume=True)
    assert files(run) == {"last.ckpt", "source-val.ckpt"}
    (run.folder / "source-val.ckpt").rename(run.folder / "best.ckpt")
    train_toy(tmp_path / "run", "baseline", 2, overwrite=True)
    assert files(run) == {"last.ckpt", "source-val.ckpt"}
