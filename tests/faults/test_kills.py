"""Twenty kills at random moments, one after the other: the run goes on each time, and ends as one never killed.

And what a killed process leaves behind: its decoders end with it, and say nothing.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.killed_often import train_often
from support.resuming import assert_equal_runs

HELPER = Path(__file__).parents[1] / "support/killed_often.py"
IMAGES = 60
MOMENTS = ["step", "evaluating", "saving"] * 5
SEED = int(os.environ.get("AFIELD_KILLS", "0")) or random.randrange(10**6)


def killed(out, data, moments):
    words = [sys.executable, str(HELPER), str(out), str(data), str(SEED), *moments]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr} (again by AFIELD_KILLS={SEED})"


def test_fifteen_kills_while_stepping_evaluating_and_saving_change_nothing(toy, tmp_path):
    killed(tmp_path / "killed", "toy", MOMENTS)
    assert not (tmp_path / "killed/records.jsonl").read_text("utf-8").count('"end"')
    unbroken = train_often(tmp_path / "unbroken", "toy")
    assert_equal_runs(train_often(tmp_path / "killed", "toy", resume=True), unbroken)


@pytest.fixture
def images(tmp_path):
    """Three domains of image files, the last to adapt to."""
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        place = tmp_path / "images" / f"d{number % 3}" / "ab"[number // 3 % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(place / f"{number}.png")
    return tmp_path / "images"


def packs(cache):
    """The pixels of each pack; after so many steps all of them have been read."""
    return {file.name: file.read_bytes() for file in cache.glob("packed/*.pack")}


def test_five_kills_while_the_cache_is_packed_change_nothing(images, tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    killed(tmp_path / "killed", images, ["packed", "packing", "syncing", "packed", "syncing"])
    said = [np.unpackbits(np.fromfile(file, np.uint8)).sum() for file in (tmp_path / "cache/packed").glob("*.done")]
    assert 0 < sum(said) < IMAGES, "some images are packed and some are not"
    resumed = train_often(tmp_path / "killed", str(images), resume=True)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr("afield.data.open._opened", {})  # or both runs would read the same packs
    assert_equal_runs(resumed, train_often(tmp_path / "unbroken", str(images)))
    assert packs(tmp_path / "cache") == packs(tmp_path / "other")


KILLED = """
import io, os, select, signal
from PIL import Image
from afield.data.decoder import LENGTH, receive, send
from afield.data.decoding import DecoderPool

connection = DecoderPool(1)._idle.get()
stream = io.BytesIO()
Image.new("RGB", (8, 8)).save(stream, "PNG")
images = [stream.getvalue()] * 16
{moment}
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A process that has a decoder, and is killed at some moment of its talk with it."""


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("send(connection, ('probe', images)); select.select([connection], [], [])", id="an answer unread"),
        # Larger than what a socket holds: the decoder is still sending it.
        pytest.param("send(connection, ('decode', images, 512, 'squash')); receive(connection)", id="half an answer"),
        pytest.param("connection.sendall(LENGTH.pack(1000) + b'x')", id="half a request"),
    ],
)
def test_the_decoders_of_a_killed_process_end_and_say_nothing(moment):
    # The decoder has the same stderr, so that this waits for the end of both.
    done = subprocess.run([sys.executable, "-c", KILLED.format(moment=moment)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
