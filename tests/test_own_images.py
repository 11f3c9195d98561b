"""A user's own images, end to end through the installed command: trained, evaluated, predicted; and bad input."""

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import afield
from afield.results.records import evaluations
from support.command import COMMAND
from support.images import write_folder, write_image

CLASSES = {"bus": 10, "car": 10, "tram": 10}
TINY = {"network.width": 8, "training.batch_size": 6, "training.evaluate_every": 4, "training.checkpoint_every": 4}
SET = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


def afield_command(*words, cwd):
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1", "AFIELD_CACHE": str(cwd / "cache")}
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


@pytest.fixture
def call_here(tmp_path, monkeypatch, call):
    """The command in this process, which does not import torch again for each of many calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return lambda *words: subprocess.CompletedProcess(words, *call(*words))


def refused(result):
    """The one line of an error that is the user's to mend."""
    assert result.returncode == 2, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Three cameras with labels, and a fourth whose images lie in one folder."""
    home = tmp_path_factory.mktemp("own")
    cameras = {f"camera{number}": CLASSES for number in (1, 2, 3, 4)}
    write_folder(home / "photos", cameras)
    flat = home / "photos" / "camera4"
    for file in sorted(flat.rglob("*.png")):
        file.rename(flat / f"{file.parent.name}-{file.name}")
    for folder in [path for path in flat.iterdir() if path.is_dir()]:
        folder.rmdir()
    return home


@pytest.fixture(scope="module")
def trained(home):
    return afield_command(
        "train", "--data", "photos/", "--target", "camera4", "--steps", 120, "--out", "runs/a", *SET,
        "--set", "training.evaluate_every=60", cwd=home,
    )  # fmt: skip


def test_a_folder_with_an_unlabelled_target_is_trained_on(home, trained):
    assert trained.returncode == 0, trained.stderr
    records = [json.loads(line) for line in (home / "runs/a/records.jsonl").read_text().splitlines()]
    header, last = records[0], records[-2]
    assert header["config"]["data"]["name"] == "photos/"
    assert header["config"]["data"]["preset"] == "small"
    assert last["target"] == {"camera4": {**last["target"]["camera4"], "accuracy": None, "n": 30}}
    assert set(last["sources"]) == {"camera1", "camera2", "camera3"}
    assert all(result["n"] == 6 for result in last["sources"].values())
    assert len(header["protocol"]["checksum"]) == 64
    row = next(line for line in trained.stdout.splitlines() if "camera4" in line)
    assert "-" in row.split()
    assert "0.0" not in row


def test_the_run_is_evaluated_by_its_folder(home, trained):
    result = afield_command("evaluate", "runs/a", cwd=home)
    assert result.returncode == 0, result.stderr
    row = next(line for line in result.stdout.splitlines() if "camera4" in line)
    assert "%" not in row
    values = json.loads(afield_command("evaluate", "runs/a", "--data", "photos/", "--json", cwd=home).stdout)
    assert values["camera4"]["accuracy"] is None
    assert min(values[name]["accuracy"] for name in ("camera1", "camera2", "camera3")) > 0.5


def test_the_run_predicts_the_images_of_the_target(home, trained):
    result = afield_command("predict", "runs/a", "photos/camera4", "--out", "said.csv", cwd=home)
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader((home / "said.csv").open()))
    assert len(rows) == 30
    right = [row["class"] == Path(row["file"]).name.split("-")[0] for row in rows]
    assert sum(right) > 20, "one in three would be chance"


def test_python_says_the_same(home, trained, monkeypatch):
    monkeypatch.chdir(home)
    model = afield.load("runs/a")
    assert model.classes == ("bus", "car", "tram")
    files = sorted((home / "photos/camera4").iterdir())[:5]
    rows = {row["file"]: row["class"] for row in csv.DictReader((home / "said.csv").open())}
    assert model.predict(files) == [rows[f"photos/camera4/{file.name}"] for file in files]


def test_data_show_counts_what_there_is(home):
    result = afield_command("data", "show", "photos/", "--out", "sheet.png", cwd=home)
    assert result.returncode == 0, result.stderr
    assert "camera4" in result.stdout
    assert "no labels" in result.stdout
    assert (home / "sheet.png").stat().st_size > 1000


def test_resident_packed_and_streamed_runs_are_one_run_and_resume_in_the_same_bits(home, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))

    def train(name, steps=8, **settings):
        run = afield.train(
            data="photos/", target="camera4", steps=steps, out=tmp_path / name, progress=False,
            settings=TINY | {"training.device": "cpu"} | {f"data.{key}": value for key, value in settings.items()},
        )  # fmt: skip
        return evaluations(run.records)

    resident = train("resident", placement="resident", cache_gb=0.0)
    assert train("streamed", placement="streamed", cache_gb=0.0) == resident
    assert train("packed", placement="streamed", cache_gb=1.0) == resident
    assert train("packed-again", placement="streamed", cache_gb=1.0) == resident

    from afield.training.loop import Loop

    step = Loop._train_step

    def killed(loop):
        if loop.step == 6:
            raise KeyboardInterrupt
        step(loop)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            train("resumed", placement="streamed", cache_gb=0.0)
    run = afield.train(out=tmp_path / "resumed", resume=True, progress=False)
    assert evaluations(run.records) == resident


def test_a_domain_smaller_than_a_batch_works_and_is_noted(home, tmp_path):
    write_folder(tmp_path / "few", {"a": {"bus": 12, "car": 12}, "b": {"bus": 2, "car": 2}, "c": {"bus": 9, "car": 9}})
    words = ("train", "--data", "few", "--target", "c", "--steps", 2, "--out", "run", *SET)
    result = afield_command(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    note = "note: fewer training images than a batch has of them, so that some come twice: b (2 of 6)\n"
    assert note in result.stderr


def test_a_class_that_no_source_has_is_noted_where_it_is_trained(tmp_path, call_here):
    write_folder(
        tmp_path / "photos", {"a": {"bus": 6, "car": 6}, "b": {"bus": 6, "tram": 6}, "c": {"car": 6, "bus": 6}}
    )
    words = ("train", "--data", "photos", "--method", "baseline", "--steps", 1, "--out", "run", *SET)
    note = "note: no source has images of these classes, so they cannot be learned: tram\n"
    assert note in call_here(*words, "--target", "b").stderr
    taught = call_here(*words, "--target", "a", "--overwrite")
    assert (taught.returncode, "cannot be learned" in taught.stderr) == (0, False)
    untaught = call_here(*words, "--target", "a", "--sources", "c", "--overwrite")
    assert note in untaught.stderr


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, call_here):
    both = {"bus": 4, "car": 4}
    photos = write_folder(tmp_path / "photos", {"a": both, "b": both, "flat": 5})
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "alone", {"a": both})
    write_folder(tmp_path / "spelt", {"a": {"Bus": 4, "car": 4}, "b": both})
    write_folder(tmp_path / "single", {"a": {"bus": 4, "car": 1}, "b": both})
    corrupt = write_folder(tmp_path / "corrupt", {"a": both, "b": both, "c": both})  # far needs two sources
    broken = corrupt / "a" / "bus" / "000.png"
    broken.write_bytes(broken.read_bytes()[:100])
    (tmp_path / "columns.csv").write_text("path,domain\nx.png,a\n")
    (tmp_path / "missing.csv").write_text("path,domain,label\nnowhere.png,a,bus\n")
    cases = {
        ("nosuch/", "b"): "no such file or folder",
        ("photo", "b"): "unknown data set 'photo'",
        ("empty", "b"): "no images",
        ("alone", "a"): "one domain",
        ("photos", "c"): "unknown domain 'c'",
        ("spelt", "b"): "'Bus' in a and 'bus' in b",
        ("single", "b"): "one image",
        ("corrupt", "b"): "000.png",
        ("columns.csv", "b"): "label",
        ("missing.csv", "b"): "nowhere.png",
    }
    for (data, target), words in cases.items():
        result = call_here("train", "--data", data, "--target", target, "--steps", 2, "--out", "run", *SET)
        assert words in refused(result), (data, result.stderr)
        assert not (tmp_path / "run").exists(), data
    for sources, words in (("a,flat", "source 'flat' has no labels"), ("a,b", "among the sources")):
        result = call_here("train", "--data", "photos", "--target", "b", "--sources", sources, "--out", "run", *SET)
        assert words in refused(result)
    assert photos.exists()
    skipping = call_here(
        "train", "--data", "corrupt", "--target", "b", "--method", "baseline", "--steps", 1, "--out", "run",
        "--skip-bad", *SET,
    )  # fmt: skip
    assert skipping.returncode == 0, skipping.stderr
    assert "left out: 1 image" in skipping.stderr


def test_a_folder_may_be_named_from_home_and_hold_files_named_like_modules(tmp_path, monkeypatch):
    both = {"bus": 4, "car": 4}
    write_folder(tmp_path / "my photos [1]", {"a": both, "b": both})
    (tmp_path / "pickle.py").write_text("raise SystemExit('the wrong pickle')")
    monkeypatch.setenv("HOME", str(tmp_path))
    result = afield_command("data", "show", "~/my photos [1]", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    both = {"bus": 4, "car": 4}
    write_folder(tmp_path / "photos", {"a": both, "b": both})
    (tmp_path / "cache").write_text("no folder")
    result = afield_command("data", "show", "photos", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("afield: warning: cannot write ")
    assert result.stderr.count("\n") == 1


def test_an_evaluation_says_that_the_images_have_changed_since_training(tmp_path, call_here):
    both = {"bus": 6, "car": 6}
    write_folder(tmp_path / "photos", {"a": both, "b": both})
    words = ["--data", "photos", "--target", "b", "--method", "baseline", "--steps", 1]
    assert call_here("train", *words, "--out", "run", *SET).returncode == 0
    assert call_here("evaluate", "run").stderr == ""
    write_folder(tmp_path / "photos", {"a": {"bus": 9}}, seed=1)
    note = "has changed since run/last.ckpt was trained on it: test images may be among those it has learned from"
    changed = call_here("evaluate", "run/last.ckpt")
    assert (changed.returncode, changed.stderr) == (0, f"note: 'photos' {note}\n")
    write_folder(tmp_path / "others", {"c": both, "d": both}, seed=2)
    assert call_here("evaluate", "run", "--data", "others").stderr == ""


def test_a_run_whose_images_are_elsewhere_by_now_says_so(tmp_path, call_here):
    write_folder(tmp_path / "photos", {"a": CLASSES, "b": CLASSES, "c": CLASSES})
    done = call_here(
        "train", "--data", "photos", "--target", "c", "--method", "baseline", "--steps", "2", "--out", "r", *SET
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    lost = "the run's images cannot be opened: unknown data set 'photos'"
    said = refused(call_here("evaluate", "r"))
    assert lost in said
    assert said.endswith("data (--data) says where they are now")
    assert call_here("evaluate", "r", "--data", "elsewhere").returncode == 0
    assert lost in refused(call_here("train", "--out", "r", "--resume"))


def test_a_leak_is_named(tmp_path):
    both = {"bus": 4, "car": 4}
    write_folder(tmp_path / "photos", {"a": both, "b": both})
    shutil.copy(tmp_path / "photos/a/bus/000.png", tmp_path / "photos/b/bus/copy.png")
    result = afield_command("data", "show", "photos", cwd=tmp_path)
    assert "leak" in result.stdout
    assert "copy.png" in result.stdout


def test_a_manifest_trains_and_is_shown_whatever_its_columns_are_called(tmp_path):
    lines = ["path,domain,label"]
    for number in range(36):
        domain, label = "abc"[number % 3], ("bus", "car")[number % 2]
        write_image(tmp_path / "files" / f"{number}.png", number)
        lines.append(f"files/{number}.png,{domain},{'' if domain == 'c' else label}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    words = ("train", "--data", "list.csv", "--target", "c", "--steps", 2, "--out", "run", *SET)
    result = afield_command(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (tmp_path / "other.csv").write_text("\n".join(lines).replace("path,domain,label", "path,site,species"))
    columns = ("--set", "data.domain_column=site", "--set", "data.label_column=species")
    shown = afield_command("data", "show", "other.csv", *columns, cwd=tmp_path)
    assert "domain c has no labels" in shown.stdout


def test_arrays_train(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (36, 20, 20, 3), np.uint8)
    domains = ["abc"[number % 3] for number in range(36)]
    labels = [None if domain == "c" else ("bus", "car")[number % 2] for number, domain in enumerate(domains)]
    data = afield.from_arrays(images, labels, domains)
    run = afield.train(data=data, target="c", steps=2, out=tmp_path / "run", settings=TINY, progress=False)
    assert run.accuracy["c"] is None
    assert set(run.accuracy) == {"a", "b", "c"}
    assert afield.load(tmp_path / "run").classes == ("bus", "car")
