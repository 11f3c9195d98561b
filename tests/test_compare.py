"""Several methods trained on one target, and one chosen among them without labels."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

import afield
from afield import AfieldError
from afield.app import compare as compare_module
from afield.app.cli import main
from afield.app.compare import compare
from afield.app.model import find_checkpoint
from afield.data.registry import _builders
from afield.methods.baseline import Baseline
from afield.results.ranking import Ranking
from afield.results.run import Run
from conftest import SMALL
from support.resuming import Killed, kill_before_step


def contender(name, source=0.5, accuracy=0.5, **numbers):
    said = {"entropy": 0.5, "diversity": 1.0, "snd": 1.0, "nuclear": 0.5, "dev": 0.5} | numbers
    evaluation = {
        "step": 1, "sources": {"a": {"accuracy": source}}, "target": {"t": {"accuracy": accuracy}},
        "unlabelled": {"t": said},
    }  # fmt: skip
    return {name: Run(Path(name), "last", evaluation, [])}


BETTER = {"source": 0.9, "entropy": 0.1, "snd": 2.0, "nuclear": 0.9, "dev": 0.1}


def test_the_best_mean_place_is_chosen_and_agreement_is_whole_where_all_agree():
    found = Ranking(contender("plain", accuracy=0.9) | contender("better", accuracy=0.1, **BETTER))
    assert found.order == ["better", "plain"]
    assert found.agreement == pytest.approx(1)
    assert found.mean_places == {"plain": 2, "better": 1}
    assert "better is chosen without labels: 6 of 6 selectors put it first" in found.verdict


def test_selectors_that_contradict_each_other_do_not_agree():
    sources = {"source": 0.9, "snd": 2.0, "dev": 0.1}
    sure = {"entropy": 0.1, "nuclear": 0.9}
    opposed = Ranking(contender("one", **sources) | contender("other", **sure))
    assert opposed.agreement == pytest.approx(0)
    assert "3 of 6 selectors" in opposed.verdict


def test_selectors_that_rank_alike_agree_wholly_though_they_find_some_runs_equally_good():
    alike = Ranking(contender("one") | contender("better", **BETTER) | contender("other"))
    assert set(alike.places["snd"].values()) == {1, 2.5}
    assert alike.agreement == pytest.approx(1)
    equal = Ranking(contender("one") | contender("other"))
    assert equal.agreement is None
    assert "6 of 6 selectors put it first, 6 with others as good; every selector finds all equally" in equal.verdict


def test_it_is_said_how_many_selectors_put_the_first_run_before_all_others():
    one, other = contender("one", source=0.9, snd=2.0), contender("other")
    found = Ranking(one | other)
    assert found.alone_first == ["source-val", "snd"]
    assert "one is chosen without labels: 6 of 6 selectors put it first, 4 with others as good;" in found.verdict
    assert found.as_values()["alone_first"] == ["source-val", "snd"]


def test_a_few_labels_decide_and_are_named():
    runs = contender("plain") | contender("better", **BETTER)
    found = Ranking(runs, 10, {"plain": 8, "better": 6})
    assert found.order == ["plain", "better"]
    assert (
        "plain is chosen by 10 labelled images of the target, used for nothing but choosing: 8 right" in found.verdict
    )
    assert "without labels it would be better; the selectors' agreement is 1.00" in found.verdict
    assert found.tie == ""
    assert "chosen by 1 labelled image of the target" in Ranking(runs, 1, {"plain": 1, "better": 0}).verdict
    equal = Ranking(runs, 10, {"plain": 8, "better": 8})
    assert equal.order[0] == "better", "equal ones go by mean place"
    told = "better and plain have equally many labelled images right; better, of the best mean place, is taken"
    assert equal.tie == told


def test_equally_good_ones_are_named_and_the_first_is_taken():
    runs = contender("one", **BETTER) | contender("poor") | contender("two", **BETTER) | contender("three", **BETTER)
    blind = Ranking(runs)
    assert blind.tie == "one, two and three are equally good without labels; one, named first, is taken"
    assert Ranking(contender("plain") | contender("better", **BETTER)).tie == ""
    few = Ranking(runs, 5, {"one": 2, "poor": 3, "two": 4, "three": 4})
    assert few.order[0] == "two"
    assert "without labels it would be one, two or three" in few.verdict
    assert few.tie == (
        "two and three have equally many labelled images right and the same mean place; two, named first, is taken"
    )


@pytest.fixture(scope="module")
def compared(toy, tmp_path_factory):
    """The baseline and DANN, the second killed on the way and continued by the same call."""
    out = tmp_path_factory.mktemp("compared") / "c"
    call = lambda: compare("toy", "night", ["baseline", "DANN"], out, steps=6, settings=SMALL, progress=False)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        plain = compare_module.train

        def killed(method, **others):
            with pytest.MonkeyPatch.context() as inner:
                if method == "dann":
                    kill_before_step(inner, 5)
                return plain(method=method, **others)

        patch.setattr(compare_module, "train", killed)
        with pytest.raises(Killed):
            call()
    return out, *call()


def test_all_methods_train_and_the_winners_checkpoint_is_at_hand(compared, toy):
    out, found, failures = compared
    assert failures == {}
    assert set(found.runs) == {"baseline", "dann"}
    chosen, winner = afield.load(out / "chosen.ckpt"), afield.load(found.runs[found.order[0]].folder)
    images = toy["night"].test.images.array[:4]
    assert chosen.predict_proba(images).equal(winner.predict_proba(images))
    values = json.loads((out / "comparison.json").read_text())
    assert (values["chosen"], [row["method"] for row in values["rows"]]) == (found.order[0], found.order)


def test_what_has_ended_is_not_trained_again(compared, monkeypatch):
    out, found, _ = compared
    before = {path: path.stat().st_mtime_ns for path in out.rglob("last.ckpt")}
    again, _ = compare("toy", "night", ["baseline", "dann"], out, steps=6, settings=SMALL, progress=False)
    assert again.order == found.order
    assert {path: path.stat().st_mtime_ns for path in out.rglob("last.ckpt")} == before


def test_labelled_images_choose_and_nothing_else(compared, toy, tmp_path):
    out, found, _ = compared
    rows = ["path,label"]
    loser = afield.load(found.runs[found.order[-1]].folder)
    for number, image in enumerate(toy["night"].train.images.array[:6]):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{loser.predict(image)[0]}")
    (tmp_path / "few.csv").write_text("\n".join(rows))
    before = (out / "dann" / "records.jsonl").read_bytes()
    call = {"steps": 6, "settings": SMALL, "progress": False}
    chosen, _ = compare("toy", "night", ["baseline", "dann"], out, labelled=tmp_path / "few.csv", **call)
    assert chosen.right[found.order[-1]] == chosen.labelled == 6
    assert (out / "dann" / "records.jsonl").read_bytes() == before


def test_a_comparison_with_other_settings_is_refused_once_and_before_training(compared):
    out = compared[0]
    with pytest.raises(AfieldError, match=r"c holds a comparison with other settings; another folder.*steps = 9"):
        compare("toy", "night", ["baseline", "dann"], out, steps=9, settings=SMALL, progress=False)


def test_a_comparisons_folder_is_the_model_that_it_chose(compared):
    out = compared[0]
    assert find_checkpoint(out) == out / "chosen.ckpt"
    assert afield.load(out).config.method_name == json.loads((out / "comparison.json").read_text())["chosen"]


SMALL_WORDS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def check_refused(call, out, words, message):
    """The command says so in one line, before it trains anything."""
    usual = {"data": "toy", "--target": "night"}
    given = {key: words.pop(key, value) for key, value in usual.items()}
    options = [word for pair in words.items() for word in pair]
    code, said, error = call(
        "compare", given["data"], "--target", given["--target"], "--methods", "baseline,coral", "--steps", "2",
        "--out", out, *SMALL_WORDS, *options,
    )  # fmt: skip
    assert (code, said, error.count("\n"), message in error) == (2, "", 1, True), error
    assert not out.exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("path,label\n0.png,sqare\n", "unknown class 'sqare'; did you mean 'square'"),
        ("path,domain\n0.png,night\n", "each row has a path and a label"),
        ("path,label\n1.png,down\n", "names a file that cannot be found"),
        ("path,label\n0.png,down\nbad.png,down\n", "cannot read image"),
        ("path,label\n0.png,down\n./0.png,across\n", "twice, as 'down' and as 'across'"),
    ],
)
def test_labelled_images_that_cannot_be_used_are_refused_before_training(rows, message, toy, call, tmp_path):
    Image.fromarray(toy["night"].train.images.array[0]).save(tmp_path / "0.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    (tmp_path / "few.csv").write_text(rows)
    check_refused(call, tmp_path / "c", {"--labelled": tmp_path / "few.csv"}, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"data": "./nowhere"}, "no such file or folder: ./nowhere"),
        ({"data": "toi"}, "unknown data set 'toi'"),
        ({"--target": "nihgt"}, "unknown domain 'nihgt'; did you mean 'night'"),
        ({"--sources": "day,nowhere"}, "unknown domain 'nowhere'"),
        ({"--set": "task.kind=dg"}, "a comparison needs a uda task, not dg"),
        ({"--set": "task.target=fog"}, "the target is 'night', and task.target is set to 'fog'"),
    ],
)
def test_a_task_that_cannot_be_is_refused_once_and_before_training(words, message, toy, call, tmp_path):
    check_refused(call, tmp_path / "c", dict(words), message)


def test_sources_that_are_too_few_in_the_data_are_said_before_training(toy, tmp_path):
    day, night = toy["day"].train, toy["night"].train
    data = afield.from_arrays({"day": (day.images.array, day.labels), "night": (night.images.array, None)})
    with pytest.raises(AfieldError, match="'far' needs at least 2 source domains, not 1"):
        compare(data, "night", ["baseline", "far"], tmp_path / "c", steps=2, settings=SMALL, progress=False)
    assert not (tmp_path / "c").exists()


def test_without_a_choice_of_methods_those_are_compared_that_one_source_suffices_for(toy, tmp_path, monkeypatch, call):
    day, night = toy["day"].train, toy["night"].train
    data = afield.from_arrays({"day": (day.images.array, day.labels), "night": (night.images.array, None)})
    monkeypatch.setitem(_builders, "one-source", lambda: data)
    small = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    code, printed, said = call(
        "compare", "one-source", "--target", "night", "--steps", "1", "--out", tmp_path / "c", *small
    )
    assert code == 0, said
    assert "left out, because they need more than 1 source domain: far, far+" in said
    assert all(method in printed for method in ("baseline", "dann", "mcd"))
    assert sorted(path.name for path in (tmp_path / "c").iterdir() if path.is_dir()) == ["baseline", "dann", "mcd"]


def test_the_command_prints_a_table_and_a_verdict_and_names_what_failed(compared, monkeypatch, capsys):
    out, found, _ = compared
    words = ["afield", "compare", "toy", "--target", "night", "--methods", "baseline,dann,far", "--out", str(out)]
    words += ["--steps", "6", "--sources", "day", *(w for k, v in SMALL.items() for w in ("--set", f"{k}={v}"))]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stopped:
        main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2, "far needs two sources, which is known before anything trains"
    assert "'far' needs" in error
    words.remove("--sources")
    words.remove("day")
    words[words.index("baseline,dann,far")] = "baseline,dann"
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr().out
    assert stopped.value.code == 0
    assert found.verdict in printed
    assert "target night (its test labels were not used to choose)" in printed
    assert f"checkpoint: {out / 'chosen.ckpt'}" in printed
    assert f"report: {out / 'report.html'}" in printed
    page = (out / "report.html").read_text("utf-8")
    assert page.index(found.order[0]) < page.index(found.order[1])
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert 'no report: a report needs plotly and jinja2: pip install "afield[report]"' in capsys.readouterr().out


def test_the_command_says_that_two_methods_are_equally_good(toy, register, call, tmp_path):
    for name in ("twin", "other-twin"):
        register(name, type("Twin", (Baseline,), {}))
    words = ["--methods", "twin,other-twin", "--steps", "2", "--out", tmp_path / "c", *SMALL_WORDS]
    code, said, _ = call("compare", "toy", "--target", "night", *words)
    assert code == 0
    assert "twin and other-twin are equally good without labels; twin, named first, is taken" in said


def test_one_method_is_not_a_comparison(tmp_path):
    with pytest.raises(AfieldError, match="two methods or more"):
        compare("digits", "street", ["far", "FAR"], tmp_path / "c")
    with pytest.raises(AfieldError, match="unknown method 'dnan'; did you mean 'dan'"):
        compare("digits", "street", ["far", "dnan"], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_method_that_fails_does_not_stop_the_others(toy, tmp_path, monkeypatch):
    plain = compare_module.train

    def failing(method, **others):
        if method == "mcc":
            raise AfieldError("training diverged")
        return plain(method=method, **others)

    monkeypatch.setattr(compare_module, "train", failing)
    names = ["baseline", "mcc", "coral"]
    found, failures = compare("toy", "night", names, tmp_path / "c", steps=2, settings=SMALL, progress=False)
    assert (set(found.runs), failures) == ({"baseline", "coral"}, {"mcc": "training diverged"})
    with pytest.raises(AfieldError, match="mcc: training diverged"):
        compare("toy", "night", names[:2], tmp_path / "d", steps=2, settings=SMALL, progress=False)


DIES_ONCE = """
import os, signal
from pathlib import Path
from afield import register_method
from afield.methods.baseline import Baseline


@register_method("dies-once", summary="is killed in its fifth step, once", reference="a test")
class DiesOnce(Baseline):
    steps = 0

    def losses_of(self, F, batch):
        self.steps += 1
        mark = Path(__file__).with_name("died")
        if self.steps == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().losses_of(F, batch)
"""


def test_methods_trained_at_the_same_time_are_those_trained_in_turn_and_one_that_is_killed_goes_on(
    toy, compared, tmp_path, capsys
):
    _, in_turn, _ = compared
    file = tmp_path / "dies_once.py"
    file.write_text(DIES_ONCE)
    methods = ["baseline", "dann", str(file)]
    call = {"steps": 6, "settings": SMALL, "workers": 2}
    found, failures = compare("toy", "night", methods, tmp_path / "c", **call)
    assert failures == {"dies-once": "its process was killed by SIGKILL"}
    for name, run in in_turn.runs.items():
        assert found.runs[name].accuracy == run.accuracy
        assert found.runs[name].evaluation["losses"] == pytest.approx(run.evaluation["losses"], rel=1e-5)
    shown = capsys.readouterr().err
    assert "dies-once failed: its process was killed by SIGKILL" in shown
    assert "dann step 6/6: sources" in shown
    found, failures = compare("toy", "night", methods, tmp_path / "c", **call | {"workers": 1})
    assert (failures, set(found.runs)) == ({}, {"baseline", "dann", "dies-once"})
    assert found.runs["dies-once"].evaluation["step"] == 6
