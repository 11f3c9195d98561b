"""The command line end to end, in processes of its own, on the embedded digits."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import afield
from afield.app.cli import main
from afield.app.demo import run_demo
from afield.app.demo_picture import picture
from afield.data import registry as data_registry
from afield.data.domain import Split
from afield.data.registry import load_data
from afield.results.run import read_run
from afield.training.checkpoint import load_checkpoint
from support.command import COMMAND
from support.images import write_folder

ROOT = Path(__file__).parents[1]
TINY = {"network.width": 8, "training.batch_size": 4, "training.evaluate_every": 3}
SET = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
PAPER_METHODS = {
    "baseline", "baseline-align", "baseline-att-align", "far", "far-without-dre", "far-without-dre-plus",
    "far-without-dre-minus", "far-conv", "far-channel-gate", "far-spatial-gate", "far-without-ranking",
    "far-without-experts", "far-without-prototypes", "far-paper",
}  # fmt: skip
RUN_FILES = {"config.toml", "records.jsonl", "last.ckpt", "source-val.ckpt"}


# The same whatever the terminal is; one thread, because other tests run beside these.
COLOURS = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in COLOURS}
ENVIRONMENT |= {"COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def afield_command(*words, cwd=None):
    """What the command did."""
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT)


def records_of(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def trained(home):
    """README's command, with fewer steps, a narrower network and smaller batches."""
    words = ["--data", "digits", "--task", "uda", "--target", "street", "--method", "far", "--steps", 6, "--seed", 0]
    return afield_command("train", *words, "--out", "runs/x", *SET, cwd=home)


@pytest.fixture(scope="module")
def run(home, trained):
    assert trained.returncode == 0, trained.stderr
    return home / "runs" / "x"


@pytest.fixture(scope="module")
def checkpoint(run):
    return run / "last.ckpt"


@pytest.fixture(scope="module")
def photos(home):
    """A folder of street digits, some of them in a folder inside, beside a file that is no image."""
    images = load_data("digits")["street"].test.images.read(np.arange(4))
    folder = home / "photos"
    (folder / "more" / "still").mkdir(parents=True)
    for place, image in zip(("a.png", "b.bmp", "more/c.png", "more/still/d.PNG"), images, strict=False):
        Image.fromarray(image).save(folder / place)
    (folder / "notes.txt").write_text("not an image", "utf-8")
    return folder


def test_train_fills_a_folder_and_prints_the_result(run, trained):
    assert {path.name for path in run.iterdir()} >= RUN_FILES
    assert not list(run.rglob("*.tmp"))
    evaluation = records_of(run)[-2]
    for domain, result in (evaluation["sources"] | evaluation["target"]).items():
        row = next(line for line in trained.stdout.splitlines() if f" {domain} " in line)
        assert ("target" if domain == "street" else "source") in row
        assert f"{result['accuracy']:.1%}" in row
    assert "selector last" in trained.stdout
    assert "runs/x/last.ckpt" in trained.stdout


def test_train_prints_one_line_and_each_evaluation_on_standard_error(trained):
    summary, *lines = trained.stderr.splitlines()
    assert summary == (
        "far, uda: mnist, photo, uci, fonts -> street; backbone digit, images of 32 x 32; 6 steps of 5 x 4 images; "
        "on cpu; images all in memory"
    )
    assert [line.split(":")[0] for line in lines] == ["far step 3/6", "far step 6/6"]
    assert all("target street" in line and "(labels not used in training)" in line for line in lines)
    assert "oracle" not in trained.stderr


def test_train_prints_the_resolved_config_when_asked(home):
    words = ["--target", "mnist", "--method", "baseline", "--steps", 1, "--out", "runs/shown", "--show-config"]
    done = afield_command("train", *words, *SET, cwd=home)
    assert done.returncode == 0, done.stderr
    text = done.stderr.partition("baseline, uda")[0]
    assert tomllib.loads(text) == tomllib.loads((home / "runs/shown/config.toml").read_text("utf-8"))


def test_sources_add_up_and_names_are_taken_in_any_case(home):
    words = ["--target", "street", "--method", "Baseline", "--task", "DG", "--steps", 1, "--out", "runs/sources"]
    done = afield_command("train", *words, "--sources", "uci, mnist", "--sources", "photo", *SET, cwd=home)
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((home / "runs/sources/config.toml").read_text("utf-8"))
    assert config["task"] == {"kind": "dg", "target": "street", "sources": ["uci", "mnist", "photo"]}
    assert config["method"]["name"] == "baseline"
    assert done.stderr.startswith("baseline, dg: uci, mnist, photo -> street;")


def test_a_target_without_labels_has_a_dash_for_its_accuracy_and_notes_are_shown(toy, tmp_path, monkeypatch, capfd):
    night = toy["night"]
    bare = Split(night.train.images, None)
    unlabelled = replace(night, train=bare, test=bare)
    data = replace(toy, name="bare", domains={**toy.domains, "night": unlabelled}, notes=("night [x] has no labels",))
    monkeypatch.setitem(data_registry._builders, "bare", lambda: data)
    words = ["train", "--data", "bare", "--target", "night", "--steps", "1", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["afield", *words, *SET])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capfd.readouterr()
    assert stopped.value.code == 0, said.err
    row = next(line for line in said.out.splitlines() if " night " in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["night", "target", "-", "33"]
    assert "note: night [x] has no labels" in said.err
    assert "target night - (no labels)" in said.err
    assert read_run(tmp_path / "run").accuracy["night"] is None
    assert "'night': None" in repr(read_run(tmp_path / "run"))


def test_the_stored_config_holds_what_was_asked_and_the_records_hold_it_too(run):
    config = tomllib.loads((run / "config.toml").read_text("utf-8"))
    assert config["data"]["name"] == "digits"
    assert (config["task"]["kind"], config["task"]["target"]) == ("uda", "street")
    assert config["method"]["name"] == "far"
    assert (config["training"]["steps"], config["training"]["seed"], config["network"]["width"]) == (6, 0, 8)
    records = records_of(run)
    assert [record["event"] for record in records] == ["run", "evaluation", "evaluation", "end"]
    assert records[0]["config"] == config


def test_settings_rank_above_options_and_options_above_a_file(home):
    (home / "mine.toml").write_text(
        '[task]\ntarget = "mnist"\n[method]\nname = "far-conv"\n[training]\nsteps = 5000\nlr = 0.1\n'
    )
    words = ["--config", "mine.toml", "--steps", 4000, "--method", "far-without-dre", "--out", "runs/config"]
    words += ["--lr", 0.02, "--batch-size", 99, "--backbone", "digit", "--no-pretrained", "--device", "cpu"]
    more = ["method.align_weight=0.3", "training.checkpoint_every=5", "training.steps=6"]
    more += ["task.sources=['uci','photo']"]
    done = afield_command("train", *words, *SET, *(word for text in more for word in ("--set", text)), cwd=home)
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((home / "runs/config/config.toml").read_text("utf-8"))
    assert config["task"] == {"kind": "uda", "target": "mnist", "sources": ["uci", "photo"]}
    assert (config["method"]["name"], config["method"]["align_weight"]) == ("far-without-dre", 0.3)
    assert (config["training"]["checkpoint_every"], config["training"]["steps"]) == (5, 6)
    assert [config["training"][key] for key in ("lr", "batch_size", "device")] == [0.02, 4, "cpu"]
    assert (config["network"]["backbone"], config["network"]["pretrained"]) == ("digit", False)
    again = afield_command("train", "--config", "runs/config/config.toml", "--out", "runs/again", cwd=home)
    assert again.returncode == 0, again.stderr
    assert records_of(home / "runs/again")[:-1] == records_of(home / "runs/config")[:-1]


def test_a_killed_run_goes_on_with_resume(home):
    folder = home / "runs" / "killed"
    words = ["--target", "street", "--method", "baseline", "--steps", "100", "--out", str(folder), *SET]
    often = ["--set", "training.checkpoint_every=2", "--set", "training.evaluate_every=50"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*COMMAND, "train", *words, *often], env=ENVIRONMENT, **quiet)
    last = folder / "last.ckpt"
    while process.poll() is None and not (last.exists() and load_checkpoint(last).step > 0):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    killed_at = load_checkpoint(last).step
    assert 0 < killed_at < 100
    assert "end" not in {record["event"] for record in records_of(folder)}

    done = afield_command("train", "--out", folder, "--resume")
    assert done.returncode == 0, done.stderr
    assert load_checkpoint(last).step == 100
    events = [(record["event"], record.get("step")) for record in records_of(folder)]
    assert events == [("run", None), ("evaluation", 50), ("evaluation", 100), ("end", 100)]


def test_overwrite_replaces_the_run_and_leaves_other_files_alone(home):
    folder = home / "runs" / "twice"
    for target in ("mnist", "uci"):
        afield.train(target=target, method="baseline", steps=1, out=folder, settings=TINY, overwrite=target == "uci")
        (folder / "notes.txt").write_text("mine", "utf-8")
    words = ["--target", "photo", "--task", "dg", "--method", "far", "--steps", "3", "--out", folder]
    done = afield_command("train", *words, *SET, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert (folder / "notes.txt").read_text("utf-8") == "mine"
    assert len(list((folder / "tensorboard").iterdir())) == 1
    header, *_, end = records_of(folder)
    assert header["config"]["task"]["target"] == "photo"
    assert (end["event"], end["step"]) == ("end", 3)


def test_evaluate_says_what_the_records_say(run, checkpoint):
    evaluation = records_of(run)[-2]
    done = afield_command("evaluate", checkpoint, "--data", "digits", "--domain", "street", "--domain", "uci", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for result in results.values():
        del result["classes"], result["calibration"]  # which records do not have
    assert results == {"street": evaluation["target"]["street"], "uci": evaluation["sources"]["uci"]}


def test_evaluate_prints_a_table_of_every_domain(run, checkpoint):
    evaluation = records_of(run)[-2]
    done = afield_command("evaluate", checkpoint, "--data", "digits")
    assert done.returncode == 0, done.stderr
    for domain, result in (evaluation["sources"] | evaluation["target"]).items():
        row = next(line for line in done.stdout.splitlines() if f" {domain} " in line)
        assert f"{result['accuracy']:.1%}" in row
        assert "500" in row


def check_predictions(rows, files, checkpoint):
    model = afield.load(checkpoint)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert [row["class"] for row in rows] == model.predict(files)
    assert {row["class"] for row in rows} <= set("0123456789")
    values = [float(row["probability"]) for row in rows]
    assert all(0 <= value <= 1 for value in values)
    np.testing.assert_allclose(values, model.predict_proba(files).max(dim=1).values, atol=1e-5)


def test_predict_writes_csv_of_files_and_nested_folders(checkpoint, photos, tmp_path):
    out = tmp_path / "new" / "predictions.csv"
    done = afield_command("predict", checkpoint, photos / "b.bmp", photos, "--out", out)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    inside = ("a.png", "b.bmp", "more/c.png", "more/still/d.PNG")
    with out.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == ["file", "class", "probability"]
        check_predictions(list(reader), [photos / "b.bmp", *(photos / name for name in inside)], checkpoint)
    assert [path.name for path in out.parent.iterdir()] == ["predictions.csv"]


def test_predict_writes_json_and_skips_what_is_no_image_when_told_to(checkpoint, photos, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes((photos / "a.png").read_bytes()[:60])
    out = tmp_path / "predictions.json"
    done = afield_command("predict", checkpoint, photos / "a.png", bad, photos / "b.bmp", "--out", out, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == f"skipped 1 unreadable: {bad}"
    rows = json.loads(out.read_text("utf-8"))
    assert all(set(row) == {"file", "class", "probability"} for row in rows)
    check_predictions(rows, [photos / "a.png", photos / "b.bmp"], checkpoint)


def test_predict_without_a_file_prints_csv(checkpoint, photos):
    done = afield_command("predict", checkpoint, photos / "a.png")
    assert done.returncode == 0, done.stderr
    check_predictions(list(csv.DictReader(io.StringIO(done.stdout))), [photos / "a.png"], checkpoint)


def test_methods_lists_every_method_as_json():
    done = afield_command("methods", "--json")
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert {entry["name"] for entry in entries} >= PAPER_METHODS
    assert all(entry["summary"] and entry["tasks"] and entry["file"] for entry in entries)
    assert next(entry for entry in entries if entry["name"] == "far")["min_sources"] == 2


def test_methods_describes_one_in_any_case_and_one_line_per_option_in_a_pipe():
    done = afield_command("methods", "Far-Without-DRE")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("far-without-dre: FAR without the dual ranking entropy\n")
    values = json.loads(afield_command("methods", "far-without-dre", "--json").stdout)
    assert values["sets"] == {"method.dre": "none"}
    options = {option["name"]: option for option in values["options"]}
    assert {name for name, option in options.items() if option["fixed"]} == {"dre"}
    assert (options["align_weight"]["type"], options["align_weight"]["minimum"]) == ("number", 0)
    assert options["gate"]["enum"] == ["both", "channel", "spatial", "conv"]
    for option in values["options"]:
        assert sum(option["description"] in line for line in done.stdout.splitlines()) == 1


PHOTOS = ["--data", "photos/", "--target", "camera4", "--backbone", "mobilenetv2_100", "--weights", "mobile.pt"]


def test_config_is_what_train_uses_and_train_reads_it(tmp_path):
    words = ["--target", "uci", "--method", "baseline", "--steps", 1, *SET]
    written = afield_command("config", *words, "--out", "new/mine.toml", cwd=tmp_path)
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    text = (tmp_path / "new/mine.toml").read_text("utf-8")
    assert afield_command("config", *words).stdout == text
    trained = afield_command("train", "--config", "new/mine.toml", "--out", "a", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert tomllib.loads((tmp_path / "a/config.toml").read_text("utf-8")) == tomllib.loads(text)


def test_a_recipe_for_photographs_needs_only_a_backbone_and_its_weights(tmp_path):
    classes = {"bus": 3, "car": 3}
    cameras = {"camera1": classes, "camera2": classes, "camera3": classes, "camera4": 3}
    write_folder(tmp_path / "photos", cameras, size=(100, 80))
    (tmp_path / "mobile.pt").touch()
    done = afield_command("config", *PHOTOS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = tomllib.loads(done.stdout)
    network = [config["network"][key] for key in ("backbone", "weights", "pretrained")]
    assert network == ["mobilenetv2_100", "mobile.pt", False]
    data = [config["data"][key] for key in ("name", "preset", "image_size", "augmentation")]
    assert data == ["photos/", "photos", 224, "photos"]
    assert config["training"]["precision"] == "auto"


def test_data_lists_and_shows_the_digits(tmp_path):
    listed = [line.split()[0] for line in afield_command("data").stdout.splitlines()]
    assert set(listed) == set(afield.list_data()) - {"toy"}
    done = afield_command("data", "show", "digits", "--out", "sheet.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        sheet.load()
        assert sheet.width > 20 * 32
        assert sheet.height > 5 * 32
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    data = load_data("digits")
    for name, domain in data.domains.items():
        row = next(line for line in done.stdout.splitlines() if f" {name} " in line)
        assert str(len(domain.train)) in row
        assert str(len(domain.test)) in row
        assert domain.origin.split()[0].rstrip(":") in ("real", "rendered")
        assert domain.origin[:20] in row


def test_data_show_writes_nothing_unless_told_to(tmp_path):
    done = afield_command("data", "show", "digits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sheet" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_compares_baseline_and_far_and_draws_them(tmp_path):
    result = run_demo(tmp_path / "demo", "street", 2, progress=False, settings={**TINY, "training.steps": 3})
    table = result.table()
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["method"] == ["baseline", "far"]
    assert columns["selector"] == ["last", "last"]
    accuracies = [100 * run.accuracy["street"] for run in result.runs["far"]]
    spread = f"{np.mean(accuracies):.1f} ± {np.std(accuracies, ddof=1):.1f} (2)"
    assert columns["target accuracy"][1] == spread
    assert "target street" in str(table.title)
    for folder in ("baseline-seed0", "baseline-seed1", "far-seed0", "far-seed1"):
        assert {path.name for path in (tmp_path / "demo" / folder).iterdir()} >= RUN_FILES
    picture(result, tmp_path / "demo" / "predictions.png")
    with Image.open(tmp_path / "demo" / "predictions.png") as image:
        image.load()
        assert min(image.size) > 200


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "train",
        "compare",
        "config",
        "evaluate",
        "predict",
        "export",
        "bench",
        "table",
        "methods",
        "data",
        "data show",
        "data download",
    ],
)
def test_help_has_an_example_that_names_the_command(command):
    done = afield_command(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: afield {command}" in done.stdout


def test_the_command_without_words_shows_what_there_is():
    done = afield_command()
    words = "demo train compare config evaluate predict export report figure bench table methods data"
    for command in words.split():
        assert f" {command} " in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_the_installed_command_is_this_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"afield": f"{main.__module__}:{main.__name__}"}


def test_names_that_a_terminal_cannot_show_are_escaped():
    for words in (
        ["table", ROOT / "results/digit5", "--plan", ROOT / "plans/digit5-paper.toml"],
        ["data", "show", "digits"],
    ):
        command = [*COMMAND, *map(str, words)]
        done = subprocess.run(command, capture_output=True, env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stderr) == (0, b"")
        done.stdout.decode("ascii")


def test_version_is_the_packages():
    done = afield_command("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"afield {afield.__version__}")
