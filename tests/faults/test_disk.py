"""A disk that is full or read-only, a real one: one line, nothing half-written, and a run that goes on later."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.small_disk import CHECKS

ALONE = ["unshare", "--map-root-user", "--mount"]


def can_mount():
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not can_mount(), reason="this system does not let a user mount a disk of his own")


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """What went wrong by the name of each check, all done in one process."""
    script = Path(__file__).parents[1] / "support/small_disk.py"
    folder = tmp_path_factory.mktemp("disk")
    done = subprocess.run([*ALONE, sys.executable, str(script), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_a_small_disk(faults, name):
    assert name not in faults, faults[name]
