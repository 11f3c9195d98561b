"""`afield figure`: every kind, as a vector or a picture, from runs or from a benchmark's records."""

import json

import pytest
from PIL import Image

from support.reporting import call


@pytest.fixture(scope="module")
def runs(train_toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("far", "baseline"):
        train_toy(folder / method, method)
    return folder


@pytest.mark.parametrize("kind", ["divergence", "maps", "tsne", "curves", "complexity"])
def test_every_kind_is_drawn_of_several_runs_with_text_as_text(kind, runs, tmp_path):
    assert call("figure", kind, runs / "far", runs / "baseline", "--out", tmp_path / "new" / "figure.svg") == 0
    drawn = (tmp_path / "new" / "figure.svg").read_text("utf-8")
    words = {"divergence": "feature divergence (nats)", "maps": "A+R+", "tsne": "night", "curves": "accuracy (%)"}
    assert f">{words.get(kind, 'parameters (millions)')}</text>" in drawn
    assert ">far" in drawn


def test_the_format_is_the_files_ending(runs, tmp_path):
    assert call("figure", "curves", runs / "far", "--out", tmp_path / "figure.pdf") == 0
    pdf = (tmp_path / "figure.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/Type3" not in pdf, "journals refuse fonts of type 3"
    assert call("figure", "tsne", runs / "far", "--colour", "class", "--out", tmp_path / "figure.png") == 0
    assert Image.open(tmp_path / "figure.png").width > 1000


def test_the_same_figure_is_the_same_file(runs, tmp_path):
    for name in ("one.pdf", "two.pdf"):
        assert call("figure", "divergence", runs / "far", "--out", tmp_path / name) == 0
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_curves_of_records_alone_show_each_target(runs, tmp_path):
    lines = (runs / "far" / "records.jsonl").read_text("utf-8").splitlines()
    headers = [{**json.loads(lines[0]), "label": label} for label in ("one", "one", "$two$")]
    text = "".join("\n".join([json.dumps(header), *lines[1:]]) + "\n" for header in headers)
    (tmp_path / "records.jsonl").write_text(text, "utf-8")
    assert call("figure", "curves", tmp_path, "--out", tmp_path / "figure.svg") == 0
    drawn = (tmp_path / "figure.svg").read_text("utf-8")
    assert ">target night</text>" in drawn
    assert ">$two$</text>" in drawn


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["maps", "runs/records"], "only curves are drawn"),
        (["tnse", "runs/far"], "did you mean 'tsne'"),
        (["tsne", "runs/far", "--colour", "clas"], "did you mean 'class'"),
        (["tsne", "nowhere"], "no run at nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_figure(words, said, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(runs)
    records = runs / "records"
    records.mkdir(exist_ok=True)
    lines = (runs / "far" / "records.jsonl").read_text("utf-8").splitlines()
    text = "\n".join([json.dumps({**json.loads(lines[0]), "label": "far"}), *lines[1:]]) + "\n"
    (records / "records.jsonl").write_text(text, "utf-8")
    assert call("figure", *words, "--out", "figure.pdf") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "figure.pdf").exists()


def test_a_figure_has_one_of_three_formats(runs, tmp_path, capsys):
    assert call("figure", "curves", runs / "far", "--out", tmp_path / "figure.jpg") == 2
    assert ".pdf or .svg or .png" in capsys.readouterr().err
