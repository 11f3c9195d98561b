"""What several test files share: a cache out of the user's home, and two small data sets.

`toy` trains in moments; `digit5_folder` has small files of Digit-Five.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Before anything asks for it; worker and child processes inherit it, so that the digits are built once.
if not os.environ.get("AFIELD_CACHE"):
    os.environ["AFIELD_CACHE"] = str(Path(tempfile.gettempdir()) / "afield-test-cache")

import numpy as np
import pytest
import torch
from hypothesis import settings as hypothesis_settings

import afield
from afield.app.cli import main
from afield.config import cards, outside
from afield.data import registry as data_registry
from afield.data.domain import Domain, DomainSet, Split
from afield.data.registry import register_data
from afield.methods import registry as method_registry
from support.digit5_files import fill
from support.outside import forget

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it puts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis_settings.register_profile("afield", deadline=None)  # how long an example takes depends on the machine
hypothesis_settings.load_profile("afield")

CLASSES = ("across", "down", "square")
GROUNDS = {"day": (220, 220, 200), "dusk": (150, 70, 60), "fog": (130, 135, 140), "night": (15, 15, 40)}
SMALL = {
    "network.width": 8,
    "training.batch_size": 4,
    "training.evaluate_every": 5,
    "training.checkpoint_every": 4,
    "training.device": "cpu",
}


def toy_data() -> DomainSet:
    """Bars and squares on a ground whose colour is the domain's; domains differ in size and noise."""
    rng = np.random.default_rng(0)
    domains = {}
    for number, (name, ground) in enumerate(GROUNDS.items()):
        train, test = (_draw(count, ground, 5 * number, rng) for count in (24 + 3 * number, 15 + number))
        domains[name] = Domain(name, train, test, "rendered")
    return DomainSet("toy", CLASSES, domains, preset="toy")


def _draw(count: int, ground: tuple[int, int, int], noise: int, rng: np.random.Generator) -> Split:
    labels = rng.permutation(np.arange(count) % len(CLASSES))
    images = np.tile(np.array(ground, float), (count, 16, 16, 1))
    for image, label in zip(images, labels, strict=True):
        height, width = ((3, 12), (12, 3), (7, 7))[label]
        top, left = rng.integers(0, 17 - height), rng.integers(0, 17 - width)
        image[top : top + height, left : left + width] = rng.integers(0, 256, 3)
    images += rng.normal(0, noise, images.shape)
    return Split.of_array(images.clip(0, 255).astype(np.uint8), labels.astype(np.int64))


def run_toy(out, method="far", steps=12, *, task="uda", target="night", settings=None, **others):
    """Train on `toy`, which must be registered, with a small network and silently."""
    names = {"data": "toy", "task": task, "target": target, "method": method, "steps": steps, "seed": 0}
    return afield.train(**names, out=out, settings=SMALL | (settings or {}), progress=False, **others)


@pytest.fixture(scope="module")
def toy():
    """The toy data set, loadable by name while a file's tests run."""
    register_data("toy")(toy_data)
    yield toy_data()
    del data_registry._builders["toy"]


@pytest.fixture(scope="module")
def train_toy(toy):
    """The function that trains on it."""
    return run_toy


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The folder of a test's own where afield remembers what it has looked at."""
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def own_methods(monkeypatch):
    """What a test registers and imports is gone after it."""
    monkeypatch.setattr(method_registry, "_methods", dict(method_registry._methods))
    monkeypatch.setattr(cards, "_registered", dict(cards._registered))
    monkeypatch.setattr(outside, "_executed", {})
    forget()  # what tests before it have left
    yield
    forget()


@pytest.fixture
def call(monkeypatch, capfd):
    """Call the command line in this process, where what a test registers is known: exit code, output, errors."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["afield", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capfd.readouterr()
        return stopped.value.code, said.out, said.err

    return command


@pytest.fixture
def register(own_methods):
    """Makes a class known as a method while one test runs."""
    return lambda name, method: method_registry.register_method(name, summary="a test", reference="none")(method)


@pytest.fixture
def digit5_folder(tmp_path, monkeypatch):
    """A folder of Digit-Five with all domains but `syn`."""
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return fill(tmp_path / "data" / "digit5")


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, where playwright and one are installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # which Chromium has not for root
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=arguments)
        yield opened
        opened.close()
