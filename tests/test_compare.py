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


def test_a_few_labels_decide_and_are_named():
    runs = contender("plain") | contender("better", **BETTER)
    found = Ranking(runs, 10, {"plain": 8, "better": 6})
    assert found.order == ["plain", "better"]
    assert (
        "plain is chosen by 10 labelled images of the target, used for nothing but choosing: 8 right" in found.verdict
    )
    assert "without labels it would be better" in found.verdict
    assert Ranking(runs, 10, {"plain": 8, "better": 8}).order[0] == "better", "equal ones go by mean place"


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
    (tmp_path / "few.csv").write_text("path,label\n0.png,sqare\n")
    with pytest.raises(AfieldError, match="unknown class 'sqare'; did you mean 'square'"):
        compare("toy", "night", ["baseline", "dann"], out, labelled=tmp_path / "few.csv", **call)
    (tmp_path / "few.csv").write_text("path,domain\n0.png,night\n")
    with pytest.raises(AfieldError, match="each row has a path and a label"):
        compare("toy", "night", ["baseline", "dann"], out, labelled=tmp_path / "few.csv", **call)


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
    assert f"checkpoint: {out / 'chosen.ckpt'}" in printed
    assert f"report: {out / 'report.html'}" in printed
    page = (out / "report.html").read_text("utf-8")
    assert page.index(found.order[0]) < page.index(found.order[1])
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert 'no report: a report needs plotly and jinja2: pip install "afield[report]"' in capsys.readouterr().out


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
