"""Commands that need no torch do not import it, nor other slow libraries: they must answer at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.images import write_folder

ROOT = Path(__file__).parents[1]
SLOW = (
    "torch", "lightning_fabric", "timm", "torchvision", "matplotlib", "sklearn", "skimage", "scipy", "h5py", "pyarrow",
)  # fmt: skip
# Calls the command line with the words that follow, then says which of the libraries are loaded.
CODE = f"""
import json, sys
from afield.app.cli import main
try:
    main()
except SystemExit as stopped:
    code = stopped.code
print(json.dumps([code or 0, [name for name in {SLOW} if name in sys.modules]]), file=sys.stderr)
"""


def call(*words):
    """The exit code of a command, and the slow libraries it imported."""
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, cwd=ROOT)
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["train", "--help"],
        ["methods"],
        ["methods", "--json"],
        ["methods", "far"],
        ["methods", "FAR-paper", "--json"],
        ["config"],
        ["config", "--method", "dann", "--data", "digit5", "--target", "mm", "--backbone", "resnet18", "--pretrained"],
        ["data"],
        ["table", "results/digit5", "--plan", "plans/digit5-paper.toml"],
        ["table", "results/digit5", "--protocol", "digit5/paper", "--markdown"],
        ["bench", "plans/digit5-paper.toml", "--out", "results/digit5", "--dry-run"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_no_slow_library_imports_none(words):
    assert call(*words) == [0, []]


@pytest.mark.parametrize("words", ["train --method f", "train --data d", "table runs --protocol d"])
def test_completion_imports_no_slow_library(words):
    asked = {
        "_AFIELD_COMPLETE": "complete_bash",
        "COMP_WORDS": f"afield {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=os.environ | asked)
    assert done.stdout.split(), "it offers something"
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]


def test_data_show_imports_no_torch(tmp_path):
    from afield.data.registry import load_data

    load_data("digits")  # building it needs the libraries that its images come from
    assert call("data", "show", "digits") == [0, []]
    code, loaded = call("data", "show", "digits", "--out", str(tmp_path / "sheet.png"))
    assert (code, set(loaded) - {"matplotlib"}) == (0, set()), "matplotlib has the sheet's font"


def test_a_figure_of_curves_imports_no_torch(tmp_path):
    code, loaded = call("figure", "curves", "results/demo", "--out", str(tmp_path / "curves.pdf"))
    assert (code, set(loaded)) == (0, {"matplotlib"})


def test_a_config_for_ones_own_images_imports_no_torch(tmp_path):
    write_folder(tmp_path / "photos", {"camera1": {"bus": 2, "car": 2}, "camera2": {"bus": 2, "car": 2}})
    assert call("config", "--data", str(tmp_path / "photos"), "--target", "camera2") == [0, []]


@pytest.mark.parametrize(
    "words",
    [
        ["table", "nowhere"],
        ["data", "show", "digit"],
        ["trian"],
        ["train", "--stesp", "3"],
        ["methods", "fra"],
        ["export", "runs/x", "--format", "torch", "--out", "model.onnx"],
        ["config", "--lr", "0"],
        ["report", "nowhere", "--out", "page.html"],
        ["figure", "maps", "results/demo", "--out", "maps.pdf"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_refused_without_torch(words):
    assert call(*words) == [2, []]


@pytest.mark.parametrize(
    "package", ["config", "results", "data.registry", "data.contact_sheet", "app.show", "app.asked"]
)
def test_what_these_commands_use_imports_no_torch(package):
    code = (
        "import importlib, pkgutil, sys\n"
        f"module = importlib.import_module('afield.{package}')\n"
        "for found in pkgutil.iter_modules(getattr(module, '__path__', [])):\n"
        f"    importlib.import_module('afield.{package}.' + found.name)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_methods_on_the_digit_network_load_without_what_only_others_need():
    code = f"""
import sys
import afield.app.evaluate, afield.app.predict, afield.app.train
afield.create_method("far", backbone="digit", num_classes=10, num_sources=2)
print([name for name in {("timm", "torchvision", "sklearn", "pandas")} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
