"""Ctrl-C and SIGTERM: a checkpoint of the last step, one line, an exit code that shells know, a run that goes on."""

import os
import signal
import sys
from pathlib import Path

import pytest

from afield.app.cli import main
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop
from afield.training.stopping import HeldSignals
from conftest import SMALL
from support.children import alive
from support.resuming import assert_equal_runs
from support.two_processes import STEPS, ranks_of, start_two, wait_until_further

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def unbroken(train_toy, tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("unbroken") / "run")


def signal_at(patch, step, number, times=1):
    """Send this process a signal in the middle of a step."""
    plain = Loop._train_step

    def signalled(self):
        if self.step == step:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return plain(self)

    patch.setattr(Loop, "_train_step", signalled)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("step", [5, 7, 11])
def test_a_stopped_run_has_saved_its_last_step_and_goes_on_bit_for_bit(
    train_toy, unbroken, tmp_path, monkeypatch, capsys, number, step
):
    # After step 6 nothing is due, after step 8 a checkpoint is, and after step 12 there is nothing left to stop.
    words = ["train", "--data", "toy", "--target", "night", "--steps", "12", "--out", str(tmp_path / "x")]
    words += [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    monkeypatch.setattr(sys, "argv", ["afield", *words])
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        signal_at(patch, step, number)
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == CODES[number]
    said = capsys.readouterr().err.splitlines()
    how = "interrupted" if number == signal.SIGINT else "terminated"
    assert said[-1] == f"afield: {how}; --resume continues a run that has begun"
    assert not [line for line in said if "Traceback" in line]
    assert load_checkpoint(tmp_path / "x/last.ckpt").step == step + 1
    assert_equal_runs(train_toy(tmp_path / "x", resume=True), unbroken)
    assert signal.getsignal(signal.SIGTERM) is before, "what was there before is there again"


def test_from_python_ctrl_c_is_a_keyboard_interrupt_and_a_second_one_does_not_wait(train_toy, tmp_path):
    for times, saved in ((1, 8), (2, 5)):
        with pytest.MonkeyPatch.context() as patch:
            signal_at(patch, 7, signal.SIGINT, times)
            with pytest.raises(KeyboardInterrupt):
                train_toy(tmp_path / str(times))
        assert load_checkpoint(tmp_path / str(times) / "last.ckpt").step == saved


def test_a_signal_that_has_a_handler_of_its_own_reaches_it_after_the_checkpoint(train_toy, unbroken, tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(load_checkpoint(tmp_path / "run/last.ckpt").step))
    try:
        with pytest.MonkeyPatch.context() as patch:
            signal_at(patch, 6, signal.SIGTERM)
            run = train_toy(tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [7]
    assert_equal_runs(run, unbroken)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldSignals() as signals:
            signal.raise_signal(signal.SIGINT)
            assert signals.came is None
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(KeyboardInterrupt), HeldSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.came == signal.SIGINT


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes by way of /proc")
def test_a_run_in_two_processes_stops_as_one_and_goes_on(tmp_path):
    run, reached = tmp_path / "run", 0
    # As a scheduler tells a command to stop, and as a terminal sends Ctrl-C: to the command and all its processes.
    for number, send, how in ((signal.SIGTERM, os.kill, "terminated"), (signal.SIGINT, os.killpg, "interrupted")):
        process = start_two(run, resume=bool(reached))
        wait_until_further(run, reached)
        ranks = ranks_of(process)
        send(process.pid, number)
        _, said = process.communicate()
        assert process.returncode == CODES[number]
        assert said.splitlines()[-1] == f"afield: {how}; --resume continues a run that has begun"
        assert "Traceback" not in said
        assert not any(map(alive, ranks))
        saved = load_checkpoint(run / "last.ckpt")
        assert reached < saved.step == saved.state["stream"]["step"] < STEPS
        reached = saved.step
