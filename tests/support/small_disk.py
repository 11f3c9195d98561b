"""Checks on a disk of their own, a small one, which only this process sees: `unshare -rm python small_disk.py FOLDER`.

It prints, as JSON, what went wrong by the name of each check.
"""

import errno
import json
import os
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest

from afield import load
from afield.app import cli
from afield.bench.run import run_bench
from afield.results.run import read_run
from afield.training.loop import Loop
from conftest import register_data, run_toy, toy_data
from support.benching import recorded, register_toy_protocol, write_plan
from support.resuming import assert_equal_runs, every

SIZE = 4 * 2**20
DISK, PLACE = Path("disk"), Path("disk/x")


def fill():
    """Leave no byte of the disk."""
    with (DISK / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def empty():
    (DISK / "filler").unlink()


@contextmanager
def filled_at(step):
    """The disk is full from this step on."""
    plain = Loop._train_step

    def train_step(self):
        if self.step == step:
            fill()
        plain(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_train_step", train_step)
        yield


@contextmanager
def refused(name):
    with pytest.raises(OSError, match="No space left") as caught:
        yield
    assert caught.value.errno == errno.ENOSPC
    assert Path(caught.value.filename).name == name, caught.value.filename


def command(*words):
    """The command line's exit code and its lines on standard error, from a fork of this process."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(writer, 2)
        sys.argv = ["afield", *map(str, words)]
        try:
            cli.main()
        except SystemExit as stopped:
            os._exit(stopped.code)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read().splitlines()
    return os.waitstatus_to_exitcode(os.wait()[1]), said


def a_disk_full_from_the_start():
    fill()
    with refused("records.jsonl"):
        run_toy(PLACE, "baseline")
    assert not PLACE.exists()
    empty()
    run_toy(PLACE, "baseline")


def a_disk_that_fills_up_before_a_checkpoint():
    unbroken = run_toy("unbroken", "baseline", settings=every(100, 4))
    with filled_at(6), refused("last.ckpt"):
        run_toy(PLACE, "baseline", settings=every(100, 4))
    empty()
    assert_equal_runs(run_toy(PLACE, "baseline", settings=every(100, 4), resume=True), unbroken)


def a_disk_that_fills_up_before_a_record():
    settings = every(1, 100) | {"training.keep": ["last"]}  # so that records alone are written
    unbroken = run_toy("unbroken-2", "baseline", settings=settings)
    with filled_at(4), refused("records.jsonl"):
        run_toy(PLACE, "baseline", settings=settings)
    assert (PLACE / "records.jsonl").read_bytes().endswith(b"\n"), "no half of a line stays"
    empty()
    resumed = run_toy(PLACE, "baseline", settings=settings, resume=True)
    assert resumed.records[:-1] == unbroken.records[:-1]


def a_full_disk_costs_a_benchmark_no_checkpoint():
    write_plan("plan.toml", methods=["baseline"], targets=["night"], seeds=[0])
    run_bench("plan.toml", "unbroken-3", 1, progress=False)
    with filled_at(6), refused("failures.jsonl"):
        run_bench("plan.toml", DISK / "out", 1, progress=False)
    (run,) = (DISK / "out/runs").iterdir()
    assert (run / "last.ckpt").exists()
    empty()
    assert run_bench("plan.toml", DISK / "out", 1, progress=False).recorded == 1
    assert recorded(DISK / "out") == recorded("unbroken-3")


def a_full_disk_is_one_line_and_nothing_half_written():
    run_toy(PLACE, "baseline", 2)
    fill()
    words = {
        "s.png": ["data", "show", "toy", "--out", DISK / "s.png"],
        "c.toml": ["config", "--method", "far", "--out", DISK / "c.toml"],
        "page.html": ["report", PLACE, "--out", DISK / "page.html"],
        "last.ckpt": ["train", "--out", PLACE, "--data", "toy", "--target", "night", "--steps", "2", "--overwrite"],
    }
    for name, given in words.items():
        code, said = command(*given)
        assert (code, len(said)) == (2, 1), said
        assert f"{name}: No space left on device" in said[0], said
    assert {path.name for path in DISK.iterdir()} <= {"filler", "x"}


def a_full_disk_behind_the_screen_is_one_line():
    for words in (["methods"], ["methods", "--json"], ["config", "--method", "far"], ["data", "show", "toy"]):
        with Path("/dev/full").open("w") as full, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            patch.setattr("afield.app.screen.out.file", full)
            code, said = command(*words)
        assert (code, said) == (2, ["afield: cannot write: No space left on device"]), (words, said)


def a_read_only_folder_is_one_line_and_is_left_alone():
    run_toy(PLACE, "baseline", 2)
    subprocess.run(["mount", "-o", "remount,ro", str(DISK)], check=True)
    before = {path: path.read_bytes() for path in DISK.rglob("*") if path.is_file()}
    train = ["train", "--data", "toy", "--target", "night", "--steps", "2"]
    for words in (
        [*train, "--out", DISK / "new"],
        [*train, "--out", PLACE, "--overwrite"],
        ["data", "show", "toy", "--out", DISK / "s.png"],
        ["config", "--method", "far", "--out", DISK / "c.toml"],
        ["bench", "plan.toml", "--out", DISK / "out"],
    ):
        code, said = command(*words)
        assert (code, len(said)) == (2, 1), (words, said)
        assert "Read-only file system" in said[0], said
    assert {path: path.read_bytes() for path in DISK.rglob("*") if path.is_file()} == before
    assert read_run(PLACE).step == 2, "what has ended can still be read"
    assert load(PLACE).classes == toy_data().classes


CHECKS = (
    a_disk_full_from_the_start, a_disk_that_fills_up_before_a_checkpoint, a_disk_that_fills_up_before_a_record,
    a_full_disk_costs_a_benchmark_no_checkpoint, a_full_disk_is_one_line_and_nothing_half_written,
    a_full_disk_behind_the_screen_is_one_line, a_read_only_folder_is_one_line_and_is_left_alone,
)  # fmt: skip


def main(folder):
    os.chdir(folder)
    DISK.mkdir()
    register_data("toy")(toy_data)
    faults = {}
    with pytest.MonkeyPatch.context() as patch:
        register_toy_protocol(toy_data(), patch)
        for check in CHECKS:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(DISK)], check=True)
            try:
                check()
            except BaseException:
                faults[check.__name__] = traceback.format_exc()
            subprocess.run(["umount", "-l", str(DISK)], check=True)
    print(json.dumps(faults))


if __name__ == "__main__":
    main(sys.argv[1])
