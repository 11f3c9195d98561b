"""The demonstration on a user's own photographs: which target, what is trained, the picture, and bad input."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

import afield
from afield.app import demo
from afield.app.demo import check_sources, run_demo, usual_target
from afield.app.demo_picture import chosen_images, heading, picture, short
from afield.data.domain import Split
from afield.errors import AfieldError
from support.images import write_folder
from support.resuming import Killed, kill_before_step

CLASSES = {"bus": 6, "car": 6, "tram": 6}
TINY = [
    "--backbone", "mobilenetv3_small_050", "--no-pretrained", "--batch-size", "4", "--device", "cpu",
    "--set", "data.image_size=72",
]  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Oblong JPEG files, too large for the small network: three cameras with labels, and one without."""
    folder = tmp_path_factory.mktemp("demo") / "photos"
    cameras = {"north": CLASSES, "east": CLASSES, "south": CLASSES, "dark": 8}
    return write_folder(folder, cameras, size=(96, 72), suffix=".jpg")


@pytest.fixture
def call_here(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return call


def config_of(folder):
    return json.loads((folder / "records.jsonl").read_text("utf-8").splitlines()[0])["config"]


def test_photographs_train_both_methods_alike_and_give_a_table_and_a_picture(call_here, photos, tmp_path):
    code, out, errors = call_here("demo", "--photos", photos, "--target", "south", "--steps", "2", *TINY, "--out", "d")
    assert code == 0, errors
    rows = {line.split()[1]: line.split() for line in out.splitlines() if line.startswith("│")}
    assert set(rows) == {"baseline", "far"}
    assert "target south" in out
    configs = [config_of(tmp_path / "d" / f"{method}-seed0") for method in rows]
    for section in ("data", "task", "network", "training"):
        assert configs[0][section] == configs[1][section]
    assert configs[0]["data"]["preset"] == "photos"
    assert (configs[0]["task"]["kind"], configs[0]["task"]["target"]) == ("uda", "south")
    with Image.open(tmp_path / "d/predictions.png") as image:
        image.load()
        assert min(image.size) > 200
    assert "d/predictions.png" in out


def test_called_again_it_goes_on_where_it_was_stopped(photos, tmp_path):
    asked = {"target": "south", "steps": 2, "backbone": "mobilenetv3_small_050", "pretrained": False, "batch_size": 4}
    again = partial(run_demo, tmp_path / "d", photos=photos, progress=False, settings={"data.image_size": 72}, **asked)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 1)
        with pytest.raises(Killed):
            again()
    assert not (tmp_path / "d/far-seed0").exists()
    runs = again().runs
    assert {method: run.step for method, (run,) in runs.items()} == {"baseline": 2, "far": 2}
    before = (tmp_path / "d/far-seed0/records.jsonl").read_bytes()
    again()
    assert (tmp_path / "d/far-seed0/records.jsonl").read_bytes() == before, "what has ended is not trained again"
    with pytest.raises(AfieldError, match=r"d holds a demo with other settings; overwrite replaces it: .*steps = 3"):
        again(steps=3)


def test_without_a_word_it_adapts_to_the_domain_without_labels_in_few_steps(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "STEPS", 2)
    options = {"backbone": "mobilenetv3_small_050", "pretrained": False, "batch_size": 4, "device": "cpu"}
    result = run_demo(tmp_path / "d", photos=str(photos), progress=False, settings={"data.image_size": 72}, **options)
    assert result.target == "dark"
    assert [run.step for runs in result.runs.values() for run in runs] == [2, 2]
    table = result.table()
    assert "no labels" in str(table.title)
    assert next(list(column.cells) for column in table.columns if column.header == "target accuracy") == ["-", "-"]
    assert "unknown" in heading(result, 8)
    picture(result, tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as image:
        assert min(image.size) > 200


def domains(**labelled):
    images = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), np.uint8)
    return afield.from_arrays({name: (images, [0, 1] * 3 if known else None) for name, known in labelled.items()})


def test_the_usual_target_has_no_labels_or_is_the_last():
    assert usual_target(domains(a=True, b=False, c=True)) == "b"
    assert usual_target(domains(a=True, b=True, c=True)) == "c"


def test_far_needs_two_sources_and_says_so_before_the_baseline_is_trained():
    check_sources(domains(a=True, b=True, c=True), "c")
    with pytest.raises(AfieldError, match=r"2 labelled domains or more beside the target 'c'.*has a;"):
        check_sources(domains(a=True, c=True), "c")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--photos", "nowhere/"], ["nowhere/"]),
        (["--photos", "pacz"], ["'pacz'", "'pacs'"]),
        (["--photos", "PHOTOS", "--target", "sooth"], ["'sooth'", "'south'"]),
        (["--photos", "PHOTOS", "--weights", "missing.pth"], ["network.weights", "missing.pth"]),
        (["--photos", "PHOTOS", "--backbone", "resnet81"], ["'resnet81'"]),
        (["--photos", "PHOTOS", "--steps", "0"], ["training.steps"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_bad_input_is_one_line_and_leaves_nothing(call_here, photos, tmp_path, words, parts):
    words = [str(photos) if word == "PHOTOS" else word for word in words]
    code, _, errors = call_here("demo", *words, "--out", "d")
    assert code == 2
    last = errors.strip().splitlines()[-1]
    for part in parts:
        assert part in last
    assert not (tmp_path / "d").exists()


def split_of(labels):
    images = np.zeros((len(labels), 4, 4, 3), np.uint8)
    return Split.of_array(images, np.array(labels, np.int64))


def test_images_are_chosen_by_their_place_class_by_class_in_turn():
    assert chosen_images(split_of([1, 0, 1, 0, 2]), 3) == [1, 0, 4, 3, 2]
    assert chosen_images(split_of([1, 1, 1]), 7) == [0, 1, 2]
    ten = split_of(np.repeat(np.arange(10), 5))
    assert chosen_images(ten, 10) == [*range(0, 50, 5), *range(1, 50, 5)]


def test_of_many_classes_or_no_labels_images_are_spread_evenly():
    chosen = chosen_images(split_of(np.arange(65)), 65)
    assert (len(chosen), chosen[0], chosen[-1]) == (20, 0, 64)
    assert chosen_images(Split.of_array(np.zeros((3, 4, 4, 3), np.uint8), None), 2) == [0, 1, 2]
    assert len(chosen_images(Split.of_array(np.zeros((100, 4, 4, 3), np.uint8), None), 2)) == 20


def test_a_strange_name_is_shown_as_text():
    assert short("a$b") == "a$b"
    assert "\x1b" not in short("\x1b[31mred")
    assert short("x" * 40) == "x" * 15 + "…"
