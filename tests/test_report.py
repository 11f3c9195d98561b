"""`afield report`: one page with every section, which says what a run lacks; and errors that leave no page."""

import json
import re
import shutil
import sys

import pytest

import afield
from support.images import write_folder
from support.reporting import call
from support.resuming import Killed, kill_before_step

pytest.importorskip("plotly")
SECTIONS = ("training", "gates", "classes", "tsne", "maps", "divergence", "unsure", "complexity", "config")
TINY = {"network.width": 8, "training.batch_size": 4, "training.device": "cpu"}


@pytest.fixture(scope="module")
def runs(train_toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("far", "baseline"):
        train_toy(folder / method, method)
    return folder


@pytest.fixture(scope="module")
def both(runs):
    assert call("report", runs / "far", runs / "baseline", "--out", runs / "new" / "both.html") == 0
    return (runs / "new" / "both.html").read_text("utf-8")


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """A run whose target nobody has labelled, and its folder of images."""
    folder = tmp_path_factory.mktemp("unlabelled")
    classes = {"bus": 6, "car": 6}
    write_folder(folder / "photos", {"camera1": classes, "camera2": classes, "camera3": 8}, size=(24, 24))
    names = {"data": str(folder / "photos"), "target": "camera3", "steps": 2, "out": folder / "run"}
    afield.train(**names, settings=TINY, progress=False)
    return folder


def written(*words, out):
    assert call("report", *words, "--out", out) == 0
    return out.read_text("utf-8")


def without_script(page):
    """The page's own text, without Plotly's."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def headings(page):
    return set(re.findall(r'<h3 id="(run-\d-\w+)"', page))


def test_a_page_has_every_section_and_only_far_has_gates(both):
    assert headings(both) == {
        f"run-{number}-{name}" for number in (1, 2) for name in SECTIONS if (number, name) != (2, "gates")
    }
    assert {'id="compared"', 'id="glossary"'} <= set(re.findall(r'id="\w+"', both))


def test_a_page_holds_all_it_needs(both):
    assert not re.findall(r'(?:src|href)="(?!data:|#)', without_script(both))
    assert "@import" not in without_script(both)
    assert "url(" not in without_script(both)
    assert both.count("Plotly.newPlot(") >= 1
    assert len(re.findall(r"plotly\.js v\d", both)) == 1, "Plotly's script is there once"


def test_a_page_shows_the_selectors_choices_and_the_resolved_config(both, runs):
    assert "last (step 12)" in both
    assert "source-val (step" in both
    assert "steps = 12" in both
    for chart in re.findall(r'<script type="application/json" id="chart-\d+-spec">(.*?)</script>', both):
        assert {"data", "layout"} <= json.loads(chart).keys()


def test_only_selectors_that_choose_are_explained(runs, both, tmp_path):
    assert "<b>ensemble</b>, the evaluation with" in both
    older = shutil.copytree(runs / "baseline", tmp_path / "older")
    records = [json.loads(line) for line in (older / "records.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        record.pop("unlabelled", None)
    (older / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    (older / "last.ckpt").unlink()
    page = written(older, out=tmp_path / "page.html")
    assert re.findall(r"<b>([\w-]+)</b>, the ", without_script(page)) == ["last", "source-val"]
    assert "labels were not used in training.</p>" in page


def test_the_glossary_shows_commands_as_code_and_only_long_tables_are_cut(both):
    assert "<code>afield methods</code>" in both
    assert "<dt>losses of FAR</dt>" in both
    compared = both[both.index('id="compared"') :]
    assert compared.index('<div class="wide"><table') < compared.index('class="wide long"')


def test_a_quote_in_a_name_stays_one_on_a_chart():
    from afield.analysis.charts import text

    assert text('6" & <b>') == '6" &amp; &lt;b&gt;'


def test_a_run_that_was_cut_is_shown_as_far_as_it_came(train_toy, tmp_path):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 7)
        train_toy(tmp_path / "cut")
    page = written(tmp_path / "cut", out=tmp_path / "cut.html")
    assert "was cut before its end; evaluated up to step 5 of 12" in page
    assert "checkpoint of step 5" in page
    assert {"run-1-tsne", "run-1-config"} <= headings(page)


def test_a_run_that_has_only_begun_has_no_curves_but_a_page(train_toy, tmp_path):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 0)
        train_toy(tmp_path / "begun")
    page = written(tmp_path / "begun", out=tmp_path / "begun.html")
    assert "There is no evaluation yet" in page
    assert "run-1-maps" in headings(page)


def test_without_target_labels_the_page_says_what_is_unknown(unlabelled, tmp_path):
    page = written(unlabelled / "run", out=tmp_path / "page.html")
    assert "Domain camera3 has no labels" in page
    assert "Target camera3 has no labels, so that its accuracy is unknown" in page
    assert "labels were not used in training.</p>" not in page, "there are none"
    assert "class unknown" in page
    assert {"run-1-classes", "run-1-tsne", "run-1-unsure"} <= headings(page)


def test_a_figure_names_the_runs_whose_curve_it_cannot_draw(unlabelled, runs, tmp_path, capsys):
    assert call("figure", "curves", unlabelled / "run", runs / "far", "--out", tmp_path / "curves.png") == 0
    assert capsys.readouterr().err == "note: left out, because the accuracy on their target is not known: run\n"


def test_without_the_images_the_page_has_what_the_records_say(unlabelled, tmp_path):
    moved = shutil.copytree(unlabelled / "run", tmp_path / "run")
    (unlabelled / "photos").rename(tmp_path / "elsewhere")
    try:
        page = written(moved, out=tmp_path / "page.html")
    finally:
        (tmp_path / "elsewhere").rename(unlabelled / "photos")
    assert "is not shown: the images of" in page
    assert headings(page) == {f"run-1-{name}" for name in ("training", "gates", "network", "config")}


def test_images_that_have_changed_since_training_are_noted(unlabelled, tmp_path):
    moved = shutil.copytree(unlabelled / "run", tmp_path / "run")
    lines = (moved / "records.jsonl").read_text("utf-8").split("\n")
    header = json.loads(lines[0])
    header["protocol"]["checksum"] = "0" * 64
    (moved / "records.jsonl").write_text("\n".join([json.dumps(header), *lines[1:]]), "utf-8")
    assert "the images are others than those it was trained on" in written(moved, out=tmp_path / "page.html")


def test_names_are_shown_as_they_are_written(runs, tmp_path):
    odd = shutil.copytree(runs / "baseline", tmp_path / "<img src=x onerror=alert(1)>")
    page = written(odd, runs / "far", out=tmp_path / "page.html")
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


def test_records_of_a_benchmark_give_its_tables_and_all_runs(runs, tmp_path):
    records = []
    for method in ("far", "baseline"):
        for seed in (0, 1):
            lines = (runs / method / "records.jsonl").read_text("utf-8").splitlines()
            header = {**json.loads(lines[0]), "label": method, "seed": seed}
            header["config"]["training"]["seed"] = seed
            header["protocol"] |= {"name": "toy/test", "version": 1}
            records += [json.dumps(header), *lines[1:]]
    (tmp_path / "records.jsonl").write_text("\n".join(records) + "\n", "utf-8")
    page = written(tmp_path, out=tmp_path / "page.html")
    assert "toy/test" in page
    assert "4 runs" in page
    assert "far (2)" in page
    assert not headings(page), "a benchmark keeps no checkpoints"


def refused(capsys, out, *words):
    """The one line of an error, which leaves no file."""
    assert call("report", *words, "--out", out) == 2
    assert not out.exists()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_what_cannot_be_read_is_one_line_and_leaves_no_page(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert "no run at" in refused(capsys, out, tmp_path / "nowhere")
    assert "no records at" in refused(capsys, out, tmp_path)
    assert "not as 'page.pdf'" in refused(capsys, tmp_path / "page.pdf", runs / "far")
    broken = shutil.copytree(runs / "far", tmp_path / "broken")
    (broken / "last.ckpt").write_bytes((broken / "last.ckpt").read_bytes()[:5000])
    assert "is truncated" in refused(capsys, out, runs / "baseline", broken)
    whole = (runs / "far" / "last.ckpt").read_bytes()
    (broken / "last.ckpt").write_bytes(whole.replace(b'\\"format\\": 1', b'\\"format\\": 9', 1))
    assert "checkpoint format 9" in refused(capsys, out, broken)


def test_without_plotly_the_extra_is_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert 'pip install "afield[report]"' in refused(capsys, tmp_path / "page.html", runs / "far")
