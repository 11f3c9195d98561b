"""`afield predict`: several guesses, forms, and results that are written while they come."""

import csv
import io
import json
from functools import partial

import pytest
from PIL import Image

import afield
from afield import AfieldError
from afield.app import model as model_module
from afield.app.predict import csv_pieces, json_pieces, predict_files, write_predictions


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run", "baseline", 2)


@pytest.fixture(scope="module")
def photos(toy, tmp_path_factory):
    """Ten images."""
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(toy["night"].test.images.array[:10]):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def command(call):
    """Call `afield predict`: exit code, standard output and standard error."""
    return partial(call, "predict")


@pytest.fixture
def three_at_a_time(monkeypatch):
    monkeypatch.setattr(model_module, "MOST_IMAGES", 3)


def test_top_has_the_most_probable_classes_in_order(run, photos, command):
    model = afield.load(run.folder)
    code, shown, said = command(run.folder, photos, "--top", 3, "--json")
    assert (code, said) == (0, "")
    for prediction in json.loads(shown):
        (probabilities,) = model.predict_proba(prediction["file"]).tolist()
        expected = sorted(zip(probabilities, model.classes, strict=True), reverse=True)
        assert [guess["class"] for guess in prediction["top"]] == [name for _, name in expected]
        assert [guess["probability"] for guess in prediction["top"]] == pytest.approx(
            [p for p, _ in expected], abs=1e-5
        )
        assert {key: prediction[key] for key in ("class", "probability")} == prediction["top"][0]


def test_csv_of_several_guesses_has_columns_for_each(run, photos, command, tmp_path):
    code, shown, _ = command(run.folder, photos, "--top", 2)
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert (code, len(rows)) == (0, 10)
    assert list(rows[0]) == ["file", "class", "probability", "class_2", "probability_2"]
    assert all(float(row["probability"]) >= float(row["probability_2"]) for row in rows)
    command(run.folder, photos, "--top", 2, "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text("utf-8") == shown


def test_json_on_the_screen_is_what_a_file_would_hold(run, photos, command, tmp_path):
    shown = command(run.folder, photos, "--json")[1]
    assert [set(row) for row in json.loads(shown)] == [{"file", "class", "probability"}] * 10
    for words in ([], ["--json"]):
        assert command(run.folder, photos, "--out", tmp_path / "p.json", *words) == (0, "", "")
        assert (tmp_path / "p.json").read_text("utf-8") == shown


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--top", "4"], "at most 3, the number of classes"),
        (["--top", "0"], "--top"),
        (["--json", "--out", "p.csv"], "--json contradicts the ending of 'p.csv'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run, photos, command, words, part):
    code, shown, said = command(run.folder, photos, *words)
    assert (code, shown, len(said.splitlines())) == (2, "", 1)
    assert part in said


# Streaming


def test_a_prediction_is_there_before_later_images_are_read(run, photos, three_at_a_time, tmp_path):
    files = [photos / f"{number}.png" for number in range(3)]
    (tmp_path / "broken.png").write_bytes(b"no image")
    coming = iter(predict_files(run.folder, [*files, tmp_path / "broken.png"]))
    assert [next(coming)["file"] for _ in files] == [str(file) for file in files]
    with pytest.raises(AfieldError, match=r"broken\.png"):
        next(coming)
    lines = csv_pieces(predict_files(run.folder, [*files, tmp_path / "broken.png"]))
    assert next(lines).startswith("file,class,probability\n")


@pytest.mark.parametrize("name", ["new/p.csv", "p.json"])
def test_a_failure_on_the_way_leaves_the_old_file_or_none(run, photos, command, three_at_a_time, tmp_path, name):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    (tmp_path / "p.json").write_text("old", "utf-8")
    before = sorted(tmp_path.rglob("*"))
    code, shown, said = command(run.folder, photos, broken, "--out", tmp_path / name)
    assert (code, shown, len(said.splitlines())) == (2, "", 1)
    assert "broken.png" in said
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "p.json").read_text("utf-8") == "old"


def test_skipped_images_are_named_and_the_others_written_in_order(run, photos, command, three_at_a_time, tmp_path):
    words = []
    for number in range(10):
        bad = tmp_path / f"bad{number}.png"
        bad.write_bytes(b"no image")
        words += [photos / f"{number}.png", bad]
    code, shown, said = command(run.folder, *words, "--skip-bad")
    assert code == 0
    assert [row["file"] for row in csv.DictReader(io.StringIO(shown))] == [str(word) for word in words[::2]]
    assert said.strip() == f"skipped 10 unreadable: {', '.join(map(str, words[1::2]))}"


def test_the_images_of_a_folder_are_those_that_training_finds(run, photos, command, tmp_path):
    folder = tmp_path / "photos"
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "linked").symlink_to(photos)
    (folder / "new" / "round").symlink_to(folder)
    (folder / "new" / "._0.jpg").write_bytes(b"what a Mac writes beside 0.jpg")
    (folder / ".trash").symlink_to(photos)
    (folder / "new" / "notes.txt").write_text("no image")
    code, shown, said = command(run.folder, folder)
    assert (code, said) == (0, "")
    found = [row["file"] for row in csv.DictReader(io.StringIO(shown))]
    assert found == [f"{folder}/new/linked/{number}.png" for number in range(10)]
    gone = folder / "gone.png"
    gone.symlink_to("nowhere.png")
    code, _, said = command(run.folder, folder)
    assert (code, said) == (2, f"afield: no file {gone}\n")
    code, shown, said = command(run.folder, folder, "--skip-bad")
    assert (code, said) == (0, f"skipped 1 unreadable: {gone}\n")
    assert len(shown.splitlines()) == 11


def test_a_name_that_is_no_text_does_not_lose_the_predictions(tmp_path):
    predictions = [{"file": "\udcff.png", "class": "a, b", "probability": 0.5}]
    write_predictions(predictions, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text("utf-8") == 'file,class,probability\n\\udcff.png,"a, b",0.5\n'
    assert json.loads("".join(json_pieces(predictions))) == predictions


def test_predictions_that_are_no_numbers_are_refused(run, photos):
    predictions = predict_files(run.folder, [photos])
    for parameter in predictions.model.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(AfieldError, match="no numbers"):
        next(iter(predictions))
