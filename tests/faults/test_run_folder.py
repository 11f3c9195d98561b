"""A run's folder: one training at a time, nothing of others deleted, nothing half-written left behind."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
import torch

import afield
from afield import AfieldError
from afield.bench import worker
from afield.bench.folder import open_folder
from afield.bench.worker import Failed
from afield.data.cache import load_or_build
from afield.files import BusyFolderError, locked, replacing, write_whole
from afield.results.folder import RunFolder
from afield.results.records import append_record, read_records, read_runs, rewrite_records
from afield.training.checkpoint import Checkpoint, save_checkpoint
from afield.training.loop import Loop
from afield.training.memory import is_out_of_memory
from support.command import COMMAND

TINY = {"network.width": 8, "training.batch_size": 4, "training.device": "cpu"}
TRAIN = ["train", "--data", "digits", "--target", "street", "--method", "baseline"]
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


def afield_command(*words, **options):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, **options)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def long_run(home):
    """A training in a process of its own that takes minutes, and has begun."""
    process = subprocess.Popen(
        [*COMMAND, *TRAIN, "--steps", "100000", "--out", "runs/x", *SETTINGS],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not Path("runs/x/last.ckpt").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait()


def test_two_trainings_in_one_folder_do_not_mix_their_records(long_run):
    before = Path("runs/x/records.jsonl").read_bytes()
    second = afield_command(*TRAIN, "--out", "runs/x", "--overwrite")
    assert second.returncode == 2
    assert second.stderr.splitlines() == ["afield: another `afield train` is at work in runs/x"]
    for flags in ({}, {"resume": True}):
        with pytest.raises(AfieldError, match="another `afield train` is at work in runs/x"):
            afield.train(out="runs/x", **flags)
    assert Path("runs/x/records.jsonl").read_bytes().startswith(before)
    assert [record["event"] for record in read_records(Path("runs/x/records.jsonl"))].count("run") == 1
    long_run.send_signal(signal.SIGKILL)
    long_run.wait()
    with locked(Path("runs/x"), "afield train"):
        pass  # a killed process holds no lock


def test_a_training_that_comes_while_another_is_loading_is_refused_too(train_toy, home, monkeypatch):
    """The first look at the folder is early, and another may have come since."""
    monkeypatch.setattr("afield.app.train.check_unlocked", lambda folder, who: None)
    with locked(Path("runs/x"), "afield train"), pytest.raises(BusyFolderError, match="at work in runs/x"):
        train_toy("runs/x", "baseline", 2)
    assert not Path("runs").exists()


def test_a_run_that_came_while_another_was_loading_is_not_replaced(train_toy, home, monkeypatch):
    train_toy("runs/x", "baseline", 2)
    before = Path("runs/x/records.jsonl").read_bytes()
    looks = iter([lambda *given: None])
    plain = RunFolder.check
    monkeypatch.setattr(RunFolder, "check", lambda *given: next(looks, plain)(*given))
    with pytest.raises(AfieldError, match="already holds a run"):
        train_toy("runs/x", "baseline", 2)
    assert Path("runs/x/records.jsonl").read_bytes() == before


def test_a_refused_run_leaves_no_folder_behind(train_toy, home):
    for settings in ({"network.backbone": "resnet0"}, {"training.warmup_steps": 99}):
        with pytest.raises(AfieldError):
            train_toy("runs/deep/x", "baseline", 2, settings=settings)
    assert list(home.iterdir()) == []
    Path("runs/x").mkdir(parents=True)
    with pytest.raises(AfieldError):
        train_toy("runs/x", "baseline", 2, settings={"network.backbone": "resnet0"})
    assert Path("runs/x").is_dir(), "a folder that was there stays"


def test_a_forked_process_does_not_hold_its_parents_lock(home):
    reader, writer = os.pipe()
    with locked(Path("x"), "afield train"):
        Path("x/file").touch()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
    try:
        with locked(Path("x"), "afield train"):
            pass
    finally:
        os.write(writer, b".")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_a_benchmark_leaves_a_run_alone_that_another_process_is_at_work_on(home, monkeypatch):
    def refuse(job, folder):
        raise BusyFolderError(f"another `afield train` is at work in {folder}")

    monkeypatch.setattr(worker, "train_job", refuse)
    Path("runs/x").mkdir(parents=True)
    assert worker.attempt(None, Path("runs/x")) == Failed("another `afield train` is at work in runs/x")
    assert Path("runs/x").is_dir()


def test_a_benchmark_keeps_a_finished_run_that_a_newer_version_wrote(home):
    config = {"method": {"name": "far"}, "data": {"name": "digits", "image_size": 32}, "training": {"seed": 0}}
    config["task"] = {"target": "street"}
    header = {"event": "run", "label": "far", "protocol": {"name": "p", "version": 1}, "config": config}
    ended = [header, {"event": "end", "step": 3, "seconds": 1.0}, {"event": "exported", "to": "onnx"}]
    killed = [header, {"event": "evaluation", "step": 1}]
    Path("out").mkdir()
    records = Path("out/records.jsonl")
    rewrite_records(records, [*ended, *killed])
    assert read_runs(records) == [ended]
    with open_folder(Path("out")):
        pass
    assert read_records(records) == ended


def test_a_run_that_a_newer_version_finished_has_ended(train_toy, home):
    run = train_toy("x", "baseline", 2)
    append_record(Path("x/records.jsonl"), {"event": "exported", "to": "onnx"})
    assert run.select("last").seconds == run.seconds
    assert train_toy("x", "baseline", 2, resume=True).step == 2


def test_overwriting_deletes_only_what_a_run_wrote(train_toy, home):
    train_toy("x", "baseline", 2)
    (old,) = Path("x/tensorboard").iterdir()
    others = ["x/notes.txt", "x/tensorboard/notes.txt", "x/sub/last.ckpt", "x/mine.toml"]
    Path("x/sub").mkdir()
    for other in others:
        Path(other).write_text("mine", "utf-8")
    train_toy("x", "baseline", 3, overwrite=True)
    assert [Path(other).read_text("utf-8") for other in others] == ["mine"] * 4
    assert not old.exists()
    RunFolder(Path("x")).clear()
    assert {str(path) for path in Path("x").rglob("*") if path.is_file()} == set(others)


@pytest.mark.parametrize("name", ["config.toml", "records.jsonl", "last.ckpt", "source-val.ckpt"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_only_look_like_a_runs_are_not_deleted(train_toy, home, name, overwrite):
    Path("x").mkdir()
    (Path("x") / name).write_text('{"my": "own"}\n', "utf-8")
    with pytest.raises(AfieldError, match=f"x holds a {name} that is not from a run"):
        train_toy("x", "baseline", 2, overwrite=overwrite)
    assert [path.name for path in Path("x").iterdir()] == [name]
    assert (Path("x") / name).read_text("utf-8") == '{"my": "own"}\n'


def test_a_benchmarks_records_are_not_overwritten_by_a_run(train_toy, home):
    Path("x").mkdir()
    rewrite_records(Path("x/records.jsonl"), [{"event": "run", "label": "far"}, {"event": "end"}])
    before = Path("x/records.jsonl").read_bytes()
    with pytest.raises(AfieldError, match="records of a benchmark"):
        train_toy("x", "baseline", 2, overwrite=True)
    assert Path("x/records.jsonl").read_bytes() == before


@pytest.mark.parametrize("lost", ["records.jsonl", "config.toml"])
def test_a_damaged_run_can_be_overwritten(train_toy, home, lost):
    train_toy("x", "baseline", 2)
    (Path("x") / lost).unlink()
    with pytest.raises(AfieldError, match="already holds a run"):
        train_toy("x", "baseline", 2)
    assert train_toy("x", "baseline", 3, overwrite=True).step == 3


@pytest.mark.parametrize("out", ["/", "~", ".", "sub/..", "here"])
def test_the_root_the_home_and_the_current_folder_are_no_run_folders(train_toy, home, monkeypatch, out):
    monkeypatch.setenv("HOME", str(home / "house"))
    for name in ("house", "sub"):
        Path(name).mkdir()
    place = {"~": Path.home(), "here": home}.get(out, out)
    before = sorted(home.rglob("*"))
    with pytest.raises(AfieldError, match="folder of its own"):
        train_toy(place, "baseline", 2, overwrite=True)
    assert sorted(home.rglob("*")) == before


def test_a_config_file_inside_the_run_folder_survives(train_toy, home):
    train_toy("x", "baseline", 2)
    written = Path("x/config.toml").read_text("utf-8")
    assert train_toy("x", "baseline", 2, config="x/config.toml", overwrite=True).step == 2
    assert Path("x/config.toml").read_text("utf-8") == written
    Path("x/mine.toml").write_text(written, "utf-8")
    train_toy("x", "baseline", 3, config="x/mine.toml", overwrite=True)
    assert Path("x/mine.toml").read_text("utf-8") == written


def mode_of(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_all_that_is_written_has_the_mode_that_the_umask_says(home, monkeypatch, umask, mode):
    monkeypatch.setenv("AFIELD_CACHE", str(home / "cache"))
    before = os.umask(umask)
    try:
        save_checkpoint(Path("some.ckpt"), Checkpoint({}, (), (), {}, 1, {"model": {"a": torch.zeros(3)}}))
        write_whole(Path("text"), "text")
        load_or_build("key", lambda: {"a": torch.zeros(3).numpy()})
    finally:
        os.umask(before)
    assert {name: mode_of(name) for name in ("some.ckpt", "text", "cache/key.npz")} == {
        "some.ckpt": mode, "text": mode, "cache/key.npz": mode,
    }  # fmt: skip
    assert not list(home.rglob("*.tmp"))


def test_a_write_that_fails_leaves_the_old_file_and_names_it(home):
    write_whole(Path("text"), "old")
    with pytest.raises(OSError, match="No space") as caught, replacing(Path("text")) as temporary:
        temporary.write_text("ne", "utf-8")
        raise OSError(28, "No space left on device")
    assert caught.value.filename == "text"
    assert Path("text").read_text("utf-8") == "old"
    assert [path.name for path in home.iterdir()] == ["text"]


OUT_OF_MEMORY = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
]


def test_memory_that_runs_out_while_a_step_is_recorded_is_told_from_other_errors():
    try:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("operation failed due to a previous error during capture"))


def fail_at(monkeypatch, step, error):
    plain = Loop._train_step

    def failing(self):
        if self.step == step:
            raise error
        plain(self)

    monkeypatch.setattr(Loop, "_train_step", failing)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_is_one_line_that_says_what_to_lower(train_toy, home, monkeypatch, error):
    fail_at(monkeypatch, 0, error)
    with pytest.raises(AfieldError) as caught:
        train_toy("runs/x", "baseline", 3)
    message = str(caught.value)
    assert "\n" not in message
    for key in ("training.batch_size (4)", "data.image_size (16)", "smaller network", "data.placement=streamed"):
        assert key in message
    assert list(home.iterdir()) == [], "a run that has not begun leaves nothing"


def test_out_of_memory_before_the_first_step_leaves_other_files_alone(train_toy, home, monkeypatch):
    Path("x").mkdir()
    Path("x/notes.txt").write_text("mine", "utf-8")
    fail_at(monkeypatch, 0, MemoryError())
    with pytest.raises(AfieldError, match="out of memory"):
        train_toy("x", "baseline", 3)
    assert [path.name for path in Path("x").iterdir()] == ["notes.txt"]


def test_out_of_memory_later_on_keeps_what_was_trained(train_toy, home, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, 6, MemoryError())
        with pytest.raises(AfieldError, match="out of memory"):
            train_toy("x", "baseline", 8)
    assert train_toy("x", "baseline", 8, resume=True).step == 8


def test_another_runtime_error_is_not_called_out_of_memory(train_toy, home, monkeypatch):
    fail_at(monkeypatch, 0, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        train_toy("x", "baseline", 3)


def test_a_network_larger_than_any_memory_is_one_line_on_the_command_line(home):
    done = afield_command(*TRAIN, "--steps", "2", "--out", "runs/x", "--set", "network.width=100000000")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "out of memory" in done.stderr
    assert not Path("runs").exists()
