"""What strangers and accidents do to a command: one line and exit code 2, no hang, no memory filled."""

import gzip
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.io import savemat

from afield import AfieldError
from afield.app import images as app_images
from afield.app.predict import csv_pieces, write_predictions
from afield.bench import worker
from afield.bench.folder import BenchFolder
from afield.bench.progress import BenchProgress
from afield.config.training import TrainingOptions
from afield.data.cache import load_or_build
from afield.data.digit5 import formats
from afield.networks import check_backbone
from afield.results.long_form import as_csv
from afield.results.records import read_records, rewrite_records
from afield.results.run import read_run
from afield.results.table import make_table
from afield.training.checkpoint import KEY, load_checkpoint, save_checkpoint
from afield.training.rates import STEPS_OF_RATES, RateTable
from support.benching import TINY_DIGITS, write_plan

COLOURED = "far [no ramp]\x1b[31m[/x]"
TRAIN = ["train", "--data", "toy", "--target", "night", "--out", "new"]


@pytest.fixture(scope="module")
def run(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("run") / "run", "baseline", 2)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuse(toy, home, call):
    """Call the command line, which must refuse in one line of printable text; return that."""

    def line(*words):
        code, out, err = call(*words)
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
        assert err[:-1].isprintable()
        assert not Path("new").exists()
        return err

    return line


@pytest.fixture
def pipe(home):
    os.mkfifo("pipe")
    for ending in ("toml", "jsonl", "csv", "png", "py", "ckpt"):
        Path(f"pipe.{ending}").symlink_to("pipe")


@pytest.mark.parametrize(
    "words",
    [
        [*TRAIN, "--config", "pipe.toml"], [*TRAIN, "--config", "/dev/zero"], [*TRAIN, "--method", "./pipe.py"],
        ["bench", "pipe.toml", "--out", "new"], ["table", "pipe.jsonl"], ["table", "/dev/zero"],
        ["data", "show", "pipe.csv"], ["compare", "toy", "--target", "night", "--out", "new", "--labelled", "pipe.csv"],
        ["predict", "RUN", "pipe.png"], ["predict", "RUN", "/dev/zero"], ["predict", "pipe.ckpt", "pipe.png"],
        ["evaluate", "pipe.ckpt"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_pipe_or_a_device_as_input_is_refused_at_once(refuse, run, pipe, words):
    assert "pipe" in refuse(*(str(run.folder) if word == "RUN" else word for word in words))


def test_a_manifest_that_names_a_pipe_is_refused(refuse, pipe):
    Path("some.csv").write_text("path,domain,label\npipe.png,a,x\npipe,b,y\n", "utf-8")
    assert "pipe" in refuse("data", "show", "some.csv")


@pytest.mark.parametrize(
    "text",
    [
        f"[training]\nsteps = {'9' * 6000}", f"training = {'[' * 2000}{']' * 2000}", f"{'a.' * 2000}b = 1",
        "# a comment\n" * 100_000, "[training]\nlr = nan", f"[training]\nseed = {2**70}",
    ],
    ids=["digits", "lists", "tables", "long", "nan", "large"],
)  # fmt: skip
def test_absurd_toml_is_refused(refuse, text):
    Path("some.toml").write_text(text, "utf-8")
    refuse(*TRAIN, "--config", "some.toml")
    refuse("bench", "some.toml", "--out", "new")


@pytest.mark.parametrize(
    "setting",
    [f"training.steps={'9' * 5000}", f"network.hidden={'[' * 2000}{']' * 2000}", "training.batch_size=100000000"],
    ids=lambda setting: setting[:20],
)
def test_absurd_settings_are_refused(refuse, setting):
    refuse(*TRAIN, "--set", setting)


def test_a_backbone_with_weights_that_timm_does_not_have_is_refused(refuse):
    assert "'resnet18.bogus'" in refuse(*TRAIN, "--backbone", "resnet18.bogus")
    check_backbone("resnet18.a1_in1k")


def test_the_rates_of_many_million_steps_take_no_memory():
    table = RateTable(TrainingOptions(steps=20_000_000), (), torch.device("cpu"))
    for step in (0, 19_999_999):
        table.prepare(step)
    assert len(table.rows) == STEPS_OF_RATES


@pytest.mark.parametrize(
    "change",
    [
        {"config": []}, {"config": {"method": 3}}, {"config": {"training": {"seed": "x"}}}, {"protocol": "x"},
        {"protocol": {"test_images": [1]}}, {"label": 5}, {"event": 5},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_records_of_another_shape_are_refused_by_their_line(refuse, run, change):
    records = read_records(run.folder / "records.jsonl")
    rewrite_records(Path("records.jsonl"), [records[0] | change, *records[1:]])
    assert "line 1 of records.jsonl is not a record" in refuse("table", "records.jsonl")


@pytest.mark.parametrize(
    "change", [{"sources": 5}, {"sources": {"day": 3}}, {"target": [1]}, {"step": "x"}, {"lr": []}]
)
def test_evaluations_of_another_shape_are_refused_by_their_line(home, run, change):
    records = read_records(run.folder / "records.jsonl")
    rewrite_records(Path("records.jsonl"), [records[0], records[1] | change, *records[2:]])
    for call in (lambda: make_table([Path("records.jsonl")]), lambda: read_run(Path())):
        with pytest.raises(AfieldError, match=r"line 2 of records\.jsonl is not a record: "):
            call()


@pytest.mark.parametrize(
    "text", ["[" * 3000, '{"event": "run", "seed": ' + "9" * 5000 + "}", '{"event": "end", "seconds": NaN}', "null"]
)
def test_lines_that_are_no_json_of_ours_are_refused(home, text):
    Path("records.jsonl").write_text(text + "\n", "utf-8")
    with pytest.raises(AfieldError, match=r"line 1 of records\.jsonl is not a record"):
        read_records(Path("records.jsonl"))


def test_a_checkpoint_of_a_step_beyond_the_end_does_not_count_as_ended(run, train_toy, home):
    checkpoint = load_checkpoint(run.checkpoint)
    checkpoint.state["stream"]["step"] = 99
    Path("x").mkdir()
    for name in ("config.toml", "records.jsonl"):
        Path("x", name).write_bytes((run.folder / name).read_bytes())
    save_checkpoint(Path("x/last.ckpt"), type(checkpoint)(**{**vars(checkpoint), "step": 99}))
    with pytest.raises(AfieldError, match="damaged"):
        train_toy("x", "baseline", 2, resume=True)


@pytest.mark.parametrize("generators", [None, 3, True, ["cuda"]])
def test_a_checkpoint_whose_generators_are_no_table_is_refused(run, train_toy, home, generators):
    checkpoint = load_checkpoint(run.checkpoint)
    checkpoint.state["generators"] = generators
    Path("x").mkdir()
    for name in ("config.toml", "records.jsonl"):
        Path("x", name).write_bytes((run.folder / name).read_bytes())
    save_checkpoint(Path("x/last.ckpt"), checkpoint)
    with pytest.raises(AfieldError, match="damaged: generators"):
        train_toy("x", "baseline", 2, resume=True)


def test_a_checkpoint_whose_state_is_nested_very_deep_is_refused(run, home):
    with safe_open(run.checkpoint, framework="pt") as file:
        content = json.loads(file.metadata()[KEY])
    content["state"]["seconds"] = "DEEP"
    for depth in (600, 100_000):
        text = json.dumps(content).replace('"DEEP"', "[" * depth + "]" * depth)
        save_file({"a": torch.zeros(1)}, "some.ckpt", {KEY: text})
        with pytest.raises(AfieldError, match=r"some\.ckpt"):
            load_checkpoint(Path("some.ckpt"))


def test_names_of_strangers_reach_no_terminal_as_commands(run, home, call):
    records = read_records(run.folder / "records.jsonl")
    rewrite_records(Path("records.jsonl"), [records[0] | {"label": COLOURED}, *records[1:]])
    for words in ([], ["--markdown"], ["--csv"], ["--latex"], ["--json"]):
        code, out, _ = call("table", "records.jsonl", *words)
        assert code == 0
        assert "\x1b" not in out
        assert "[no ramp]" in out, "what looks like markup is not taken for it"
        assert "[/x]" in out


def test_a_plans_labels_reach_no_terminal_as_commands(home, call):
    row = {"label": COLOURED, "method": "baseline", "settings": {"training.lr": 1e30}}  # it diverges
    where = {"protocol": "digits/embedded", "targets": ["uci"], "seeds": [0]}
    write_plan("plan.toml", TINY_DIGITS, methods=[], rows=[row], **where)
    for words, code in ((["--dry-run"], 0), ([], 1)):
        found, out, err = call("bench", "plan.toml", "--out", "out", *words)
        assert found == code, err
        shown = out + err
        assert "\x1b" not in shown
        assert "far [no ramp]\\x1b[31m[/x] under digits/embedded" in shown


def test_what_a_benchmark_shows_while_it_trains_has_no_control_characters(tmp_path, monkeypatch):
    job = SimpleNamespace(config=SimpleNamespace(training=SimpleNamespace(steps=9)))
    shown = BenchProgress(BenchFolder(tmp_path), [job], [job], shown=False)
    last = {"step": 3, "sources": {"a": {"accuracy": 0.5}}, "target": {"\x1b[2J": {"accuracy": 0.5}}}
    monkeypatch.setattr(shown, "_last_evaluation", lambda _: last)
    shown.begun(job)
    _, line = shown._render().renderables
    assert line.plain.isprintable()
    assert "target \\x1b[2J 50.0%" in line.plain


def test_the_names_of_images_that_are_skipped_have_no_control_characters(run, home, call):
    Image.new("RGB", (16, 16)).save("a.png")
    Path("b\x1b[2J.png").write_bytes(b"no image")
    code, _, err = call("predict", str(run.folder), "a.png", "b\x1b[2J.png", "--skip-bad", "--out", "p.csv")
    assert code == 0
    assert "skipped 1 unreadable: b\\x1b[2J.png" in err
    assert "\x1b" not in err


def test_predictions_on_a_terminal_have_no_control_characters(monkeypatch, tmp_path):
    leader, follower = pty.openpty()
    predictions = [{"file": "a\x1b[2J.png", "class": "\x1b]0;title\x07bus", "probability": 0.5}]
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        write_predictions(predictions, None)
    shown = os.read(leader, 1000)
    os.close(leader)
    assert b"\x1b" not in shown
    assert b"bus" in shown
    write_predictions(predictions, tmp_path / "p.csv")
    assert "\x1b]0;title\x07bus" in (tmp_path / "p.csv").read_text("utf-8"), "a file has the names as they are"


def test_cells_that_a_spreadsheet_would_run_begin_with_an_apostrophe(run, home):
    names = ["=1+1", "+x", "-x", "@x", "-1", "bus"]
    predictions = [{"file": name, "class": name, "probability": 0.5} for name in names]
    found = [line.split(",")[0] for line in "".join(csv_pieces(predictions)).splitlines()[1:]]
    assert found == ["'=1+1", "'+x", "'-x", "'@x", "-1", "bus"]
    records = read_records(run.folder / "records.jsonl")
    rewrite_records(Path("records.jsonl"), [records[0] | {"label": "=cmd"}, *records[1:]])
    assert "'=cmd" in as_csv(make_table([Path("records.jsonl")]))


def test_a_failed_run_of_a_benchmark_promises_no_checkpoint_that_is_gone(train_toy, home, monkeypatch):
    run_it = lambda *_: train_toy("runs/x", "baseline", 8, settings={"training.lr": 1e30})  # noqa: E731
    monkeypatch.setattr(worker, "train_job", run_it)
    failed = worker.attempt(None, Path("runs/x"))
    assert failed.reason.startswith("training diverged: NaN or infinity by step")
    assert ".ckpt" not in failed.reason
    assert Path("runs/x/diverged.ckpt").exists(), "the benchmark's folder keeps it"


def test_a_folder_inside_that_may_not_be_read_is_named(home, monkeypatch):
    Path("photos/closed").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save("photos/a.png")
    plain = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(AfieldError, match="cannot read folder photos/closed: Permission denied"):
        app_images.find_images([Path("photos")])


def bombs(folder):
    """Small files that unpack to millions of bytes, with the readers of their formats."""
    many = np.zeros((200_000, 256), np.uint8)
    np.savez_compressed(folder / "a.npz", x_train=many, y_train=many[:, 0])
    with gzip.open(folder / "a.gz", "wb") as file:
        file.write(b"\0\0\x08\x01" + bytes(50_000_000))
    with h5py.File(folder / "a.h5", "w") as file:
        for name in ("data", "target"):
            file.create_dataset(f"train/{name}", (10**9, 256), "f8", chunks=(1, 256))
    savemat(folder / "a.mat", {"X": many, "y": many[:, 0]}, do_compression=True)
    (folder / "a.t").write_text("1 999999999:1\n", "ascii")
    return {
        "a.npz": formats.read_npz, "a.gz": formats.read_idx, "a.h5": formats.read_h5, "a.mat": formats.read_mat,
        "a.t": formats.read_libsvm,
    }  # fmt: skip


def test_files_of_digits_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_BYTES", 10_000_000)
    for name, read in bombs(tmp_path).items():
        assert (tmp_path / name).stat().st_size < 300_000, name
        with pytest.raises(AfieldError, match=rf"{name} cannot be used: it unpacks to [\d,]+ bytes"):
            read("train", [tmp_path / name] * 2)


def test_what_a_killed_cache_build_left_goes_a_day_later(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path))
    for name, age in (("old", 2 * 86_400), ("new", 60)):
        left = tmp_path / f"key.npz.{name}.tmp"
        left.mkdir()
        (left / "key.npz").write_bytes(b"half")
        os.utime(left, (time.time() - age,) * 2)
    load_or_build("key", lambda: {"a": np.zeros(3)})
    assert {path.name for path in tmp_path.iterdir()} == {"key.npz", "key.npz.new.tmp"}, "which may be another's"


def test_a_terminal_that_says_it_has_no_width_shows_a_table(run):
    code = "import sys; sys.argv = ['afield', 'table', sys.argv[1]]; from afield.app.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True, env=os.environ | {"COLUMNS": "0"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "baseline" in done.stdout
