"""Bad input on the command line: exit code 2, one line on standard error, and nothing written."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import afield
from afield.app.cli import main
from afield.config import cards
from afield.methods import Method, register_method
from afield.methods import registry as method_registry
from support.command import COMMAND

TINY = {"network.width": 8, "training.batch_size": 4}
TRAIN = ["train", "--data", "digits", "--task", "uda", "--target", "street", "--method", "far", "--steps", "2"]
OUT = ["--out", "runs/new"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("run") / "x"
    afield.train("digits", "uda", "street", "far", 2, 0, folder, settings=TINY, progress=False)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch, run):
    """The working folder of a test: a finished run, an image, and some things that are neither."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/x")
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), "red").save("photos/red.png")
    Path("photos/broken.jpg").write_bytes(b"\xff\xd8\xff and no more")
    Path("empty/inside").mkdir(parents=True)
    Path("empty/inside/notes.txt").write_text("no image", "utf-8")
    Path("plain").write_text("hello", "utf-8")
    Path("broken.toml").write_text("a = = 1", "utf-8")
    Path("other.toml").write_text("[trainig]\nsteps = 1", "utf-8")
    Path("flat.toml").write_text("data = 'digits'", "utf-8")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refuse(home, call):
    """Call the command line and return its one line, having checked that there is no more and nothing changed."""

    def line(*words):
        before = contents(home)
        code, out, err = call(*words)
        assert (code, out) == (2, ""), err
        lines = err.splitlines()
        assert len(lines) == 1, err
        assert contents(home) == before
        assert lines[0].startswith("afield: ")
        return lines[0].removeprefix("afield: ")

    return line


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["trian", "train"]),
        (["data", "shwo", "digits"], ["shwo", "show"]),
        ([*TRAIN, *OUT, "--metod", "far"], ["--metod", "'--method'"]),
        (["train", *OUT, "--zzz"], ["--zzz"]),
        (TRAIN, ["--out"]),
        ([*TRAIN, *OUT, "--method", "farr"], ["method 'farr'", "'far'"]),
        ([*TRAIN, *OUT, "--method", "FARR"], ["method 'FARR'", "'far'"]),
        ([*TRAIN, *OUT, "--method", "zzz"], ["method 'zzz'", "baseline", "far-paper"]),
        ([*TRAIN, *OUT, "--data", "digit"], ["data set 'digit'", "'digits'"]),
        ([*TRAIN, *OUT, "--target", "stret"], ["'stret'", "'street'"]),
        ([*TRAIN, *OUT, "--target", "zz"], ["'zz'", "fonts, mnist, photo, street, uci"]),
        ([*TRAIN, *OUT, "--target", ""], ["street"]),
        ([*TRAIN, *OUT, "--sources", "mnst,uci"], ["'mnst'", "'mnist'"]),
        ([*TRAIN, *OUT, "--sources", "mnist,street"], ["'street'", "among the sources"]),
        ([*TRAIN, *OUT, "--sources", "mnist,mnist"], ["twice", "mnist"]),
        ([*TRAIN, *OUT, "--sources", "mnist", "--sources", "uci,mnist"], ["twice", "mnist"]),
        ([*TRAIN, *OUT, "--sources", "mnist", "--sources", "street"], ["'street'", "among the sources"]),
        ([*TRAIN, *OUT, "--sources", "mnist,,uci"], ["--sources", "mnist,,uci"]),
        ([*TRAIN, *OUT, "--sources", "mnist"], ["'far'", "at least 2", "not 1"]),
        ([*TRAIN, *OUT, "--task", "ud"], ["task.kind", "'uda' or 'dg'"]),
        (["train", *OUT, "--task", "uda"], ["target", "mnist, photo, uci, fonts, street"]),
        ([*TRAIN, *OUT, "--steps", "many"], ["--steps"]),
        ([*TRAIN, *OUT, "--steps", "0"], ["training.steps", "0"]),
        ([*TRAIN, *OUT, "--selector", "oracle"], ["last", "source-val", "oracle"]),
        ([*TRAIN, *OUT, "--set", "method.alignweight=1"], ["'method.alignweight'", "'method.align_weight'"]),
        ([*TRAIN, *OUT, "--set", "metod.align_weight=1"], ["section 'metod'", "'method'"]),
        ([*TRAIN, *OUT, "--set", "method.align_weight=high"], ["method.align_weight", "number", "high"]),
        ([*TRAIN, *OUT, "--set", "method.align_weight=-1"], ["method.align_weight", "-1"]),
        ([*TRAIN, *OUT, "--set", "method.align_weight=inf"], ["method.align_weight"]),
        ([*TRAIN, *OUT, "--set", "training.checkpoint_every=2.5"], ["training.checkpoint_every", "integer", "2.5"]),
        ([*TRAIN, *OUT, "--set", "training.warmup_steps=9"], ["warmup_steps", "steps (2)"]),
        ([*TRAIN, *OUT, "--set", "training.steps"], ["section.key=value", "training.steps"]),
        ([*TRAIN, *OUT, "--set", "steps=3"], ["section.key=value", "steps=3"]),
        ([*TRAIN, *OUT, "--set", "network.backbone=resnet1"], ["'resnet1'", "did you mean 'resnet"]),
        ([*TRAIN, *OUT, "--set", "network.pretrained=true"], ["'network'", "pretrained"]),
        ([*TRAIN, *OUT, "--lr", "0"], ["training.lr", "greater than 0", "not 0"]),
        ([*TRAIN, *OUT, "--lr", "nan"], ["training.lr"]),
        ([*TRAIN, *OUT, "--lr", "x"], ["--lr", "number"]),
        ([*TRAIN, *OUT, "--batch-size", "1"], ["training.batch_size", "2", "not 1"]),
        ([*TRAIN, *OUT, "--batch-size", "2.5"], ["--batch-size", "integer"]),
        ([*TRAIN, *OUT, "--device", "tpu"], ["training.device", "'auto', 'cpu' or 'cuda'", "tpu"]),
        ([*TRAIN, *OUT, "--weights", "missing.pt"], ["network.weights", "missing.pt", "no such file"]),
        ([*TRAIN, *OUT, "--weights", "photos"], ["network.weights", "photos", "folder"]),
        ([*TRAIN, *OUT, "--backbone", "restnet18"], ["backbone 'restnet18'", "'resnet18'"]),
        ([*TRAIN, *OUT, "--backbone", "digit", "--pretrained"], ["pretrained needs a timm backbone"]),
        ([*TRAIN, *OUT, "--backbone", "resnet18", "--pretrained", "--weights", "plain"], ["pretrained and weights"]),
        ([*TRAIN, *OUT, "--config", "nowhere.toml"], ["nowhere.toml", "No such file"]),
        ([*TRAIN, *OUT, "--config", "photos"], ["photos"]),
        ([*TRAIN, *OUT, "--config", "photos/red.png"], ["photos/red.png"]),
        ([*TRAIN, *OUT, "--config", "broken.toml"], ["broken.toml", "TOML", "line 1"]),
        ([*TRAIN, *OUT, "--config", "other.toml"], ["section 'trainig'", "'training'"]),
        ([*TRAIN, *OUT, "--config", "flat.toml"], ["'data'", "table"]),
        ([*TRAIN, *OUT, "--resume"], ["no run to resume", "runs/new"]),
        ([*TRAIN, "--out", "runs/x", "--resume", "--overwrite"], ["resume", "overwrite"]),
        ([*TRAIN, "--out", "runs/x"], ["runs/x", "already holds a run", "resume", "overwrite"]),
        ([*TRAIN, "--out", "runs/x", "--overwrite", "--target", "stret"], ["'street'"]),
        (["train", "--out", "runs/x", "--resume", "--steps", "9"], ["training.steps = 9", "2"]),
        (["train", "--out", "runs/x", "--resume", "--lr", "0.5"], ["training.lr = 0.5", "0.05"]),
        (["train", "--out", "runs/x", "--resume", "--batch-size", "9"], ["training.batch_size = 9", "4"]),
        (["train", "--out", "runs/x", "--resume", "--device", "cpu"], ["training.device = cpu", "auto"]),
        (["train", "--out", "runs/x", "--resume", "--backbone", "resnet18"], ["network.backbone = resnet18", "digit"]),
        (["train", "--out", "runs/x", "--resume", "--weights", "plain"], ["network.weights = plain"]),
        ([*TRAIN, "--out", "plain"], ["plain", "file"]),
        ([*TRAIN, "--out", "plain/x"], ["plain"]),
        (["evaluate", "runs/x/last.ckpt", "--data", "digts"], ["'digts'", "'digits'"]),
        (["evaluate", "runs/x/last.ckpt", "--data", "digits", "--domain", "stret"], ["'stret'", "'street'"]),
        (["evaluate", "runs/nowhere.ckpt", "--data", "digits"], ["no checkpoint", "runs/nowhere.ckpt"]),
        (["predict", "runs/x/last.ckpt", "nowhere.png"], ["nowhere.png"]),
        (["predict", "runs/x/last.ckpt", "empty"], ["no images", "empty"]),
        (["predict", "runs/x/last.ckpt", "photos/red.png", "photos/broken.jpg"], ["photos/broken.jpg"]),
        (["predict", "runs/x/last.ckpt", "photos", "--out", "new/p.csv"], ["photos/broken.jpg"]),
        (["predict", "runs/x/last.ckpt", "plain", "--skip-bad", "--out", "p.csv"], ["no image could be read", "plain"]),
        (["predict", "runs/x/last.ckpt", "photos/red.png", "--out", "p.txt"], [".csv or .json", "p.txt"]),
        (["predict", "runs/x/last.ckpt", "photos/red.png", "--out", "p"], [".csv or .json"]),
        (["predict", "runs/x/last.ckpt"], ["images"]),
        (["methods", "fra"], ["method 'fra'", "'far'"]),
        (["methods", "fra", "--json"], ["method 'fra'", "'far'"]),
        (["methods", ""], ["method ''"]),
        (["config", "--method", "fra"], ["method 'fra'", "'far'"]),
        (["config", "--data", "digit"], ["data set 'digit'", "'digits'"]),
        (["config", "--data", "nowhere/"], ["nowhere/"]),
        (["config", "--lr", "0"], ["training.lr", "not 0"]),
        (["config", "--weights", "missing.pt", "--out", "mine.toml"], ["network.weights", "missing.pt"]),
        (["config", "--set", "steps=3"], ["section.key=value", "steps=3"]),
        (["config", "--config", "other.toml"], ["section 'trainig'", "'training'"]),
        (["config", "--sources", "a,,b"], ["--sources", "a,,b"]),
        (["config", "--out", "photos"], ["photos"]),
        (["config", "--out", "plain/mine.toml"], ["plain"]),
        (["data", "show", "digit"], ["'digit'", "'digits'"]),
        (["data", "show", "digits", "--out", "sheet.jpg"], [".png", "sheet.jpg"]),
        (["data", "show", "digits", "--out", "nowhere/sheet.png"], ["nowhere/sheet.png"]),
        (["demo", "--target", "stret", *OUT], ["'stret'", "'street'"]),
        (["demo", "--seeds", "0", *OUT], ["--seeds"]),
        (["demo", "--out", "plain"], ["plain", "file"]),
    ],
    ids=lambda value: " ".join(value[len(TRAIN) :] if value[: len(TRAIN)] == TRAIN else value) or "no --out",
)
def test_bad_input_is_one_line_that_says_what_and_what_instead(refuse, words, parts):
    line = refuse(*words)
    for part in parts:
        assert part in line


def test_a_folder_in_the_way_of_predictions_is_left_as_it_was(refuse):
    Path("taken.csv").mkdir()
    assert "taken.csv" in refuse("predict", "runs/x/last.ckpt", "photos/red.png", "--out", "taken.csv")


def test_a_gpu_that_is_not_there_is_named(refuse, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "training.device" in refuse(*TRAIN, *OUT, "--set", "training.device=cuda")


def test_a_method_that_needs_a_target_refuses_a_dg_task(refuse, monkeypatch):
    monkeypatch.setattr(method_registry, "_methods", dict(method_registry._methods))
    monkeypatch.setattr(cards, "_registered", dict(cards._registered))

    @register_method("needy", summary="wants a target", reference="none")
    class Needy(Method):
        needs_target = True

    line = refuse(*TRAIN, *OUT, "--method", "needy", "--task", "dg")
    assert "'needy' needs target images" in line


def write_checkpoint(path, change):
    """The run's checkpoint with its description changed."""
    with safe_open("runs/x/last.ckpt", framework="pt") as file:
        content = json.loads(file.metadata()["afield"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"afield": json.dumps(change(content))})


class Trap:
    """Unpickling this makes a file."""

    def __reduce__(self):
        return open, ("sprung", "w")


def damage(kind):
    """Put something that is no good checkpoint at bad.ckpt."""
    path, whole = Path("bad.ckpt"), Path("runs/x/last.ckpt").read_bytes()
    if kind.startswith("cut to"):
        path.write_bytes(whole[: round(len(whole) * int(kind.split()[2]) / 100)])
    elif kind.startswith("pickle"):
        path.write_bytes(pickle.dumps(Trap(), protocol=int(kind.split()[1])))
    elif kind == "torch archive":
        torch.save({"model": Trap()}, path)
    elif kind == "other tensors":
        save_file({"a": torch.zeros(1)}, path)
    elif kind == "text":
        path.write_text("hello, I am no checkpoint", "utf-8")
    elif kind == "other version":
        write_checkpoint(path, lambda content: {**content, "format": 99})
    elif kind == "a list":
        write_checkpoint(path, lambda content: [content])
    elif kind == "unknown method":
        config = {"method": {"name": "method-of-tomorrow"}}
        write_checkpoint(path, lambda content: {**content, "config": {**content["config"], **config}})
    elif kind == "other network":
        network = {"network": {"width": 16}}
        write_checkpoint(path, lambda content: {**content, "config": {**content["config"], **network}})


KINDS = [
    *(f"cut to {share} %" for share in (0, 1, 50, 99)), *(f"pickle {protocol}" for protocol in (0, 2, 5)),
    "torch archive", "other tensors", "text", "other version", "a list", "unknown method", "other network",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_good_checkpoint_is_refused_and_runs_no_code(refuse, kind):
    damage(kind)
    assert "bad.ckpt" in refuse("predict", "bad.ckpt", "photos/red.png", "--out", "p.csv")
    assert "bad.ckpt" in refuse("evaluate", "bad.ckpt", "--data", "digits")
    assert not Path("sprung").exists()


@pytest.mark.parametrize("kind", ["cut to 50 %", "pickle 5", "other version"])
def test_a_run_whose_checkpoint_is_damaged_does_not_resume(refuse, kind):
    damage(kind)
    shutil.copy("bad.ckpt", "runs/x/last.ckpt")
    assert "runs/x/last.ckpt" in refuse("train", "--out", "runs/x", "--resume")
    assert not Path("sprung").exists()


def test_a_run_whose_config_no_longer_fits_its_checkpoint_does_not_resume(refuse):
    config = Path("runs/x/config.toml")
    config.write_text(config.read_text("utf-8").replace("width = 8", "width = 16"), "utf-8")
    assert "runs/x" in refuse("train", "--out", "runs/x", "--resume")


def test_a_run_whose_records_are_gone_does_not_resume(refuse):
    Path("runs/x/records.jsonl").write_text("", "utf-8")
    assert "runs/x" in refuse("train", "--out", "runs/x", "--resume")


def test_a_good_checkpoint_is_opened_however_long_its_description_is(home):
    # The length stands in the file's first bytes, which may then look like those of a pickle.
    for length in range(0, 256, 8):
        padding = {"padding": "x" * length}
        write_checkpoint("good.ckpt", lambda content, more=padding: {**content, "state": {**content["state"], **more}})
        assert afield.load("good.ckpt").classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([*TRAIN, *OUT, "--method", "farr"], "did you mean 'far'?"),
        ([*TRAIN, *OUT, "--sources", "mnist"], "at least 2"),
        (["predict", "runs/x/last.ckpt", "photos", "--out", "p.csv"], "photos/broken.jpg"),
        ([*TRAIN, *OUT, "--lr", "x"], "'--lr'"),
        (["methods", "fra"], "did you mean 'far'?"),
        (["config", "--method", "fra"], "did you mean 'far'?"),
    ],
    ids=["unknown method", "too few sources", "broken image", "--lr x", "methods fra", "config --method fra"],
)
def test_the_real_command_refuses_alike(home, words, part):
    before = contents(home)
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert part in done.stderr
    assert contents(home) == before


@pytest.fixture
def broken_by(monkeypatch):
    """Make `afield data` raise an exception."""

    def break_it(error):
        def fail():
            raise error

        monkeypatch.setattr("afield.data.registry.list_data", fail)
        monkeypatch.setattr(sys, "argv", ["afield", "data"])

    return break_it


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("a bug"), OSError("a bug")], ids=repr)
def test_a_bug_is_not_swallowed(broken_by, error):
    broken_by(error)
    with pytest.raises(type(error), match="a bug"):
        main()


def test_an_interrupt_is_one_line_too(broken_by, capsys):
    broken_by(KeyboardInterrupt())
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err.strip().startswith("afield: interrupted")


def test_a_bug_in_the_real_process_shows_its_traceback_and_exits_with_1():
    code = "import afield.app.cli, afield.data.registry; del afield.data.registry.list_data; afield.app.cli.main()"
    done = subprocess.run([sys.executable, "-c", code, "data"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" in done.stderr
    assert "ImportError" in done.stderr
