"""A network on a CPU keeps freed memory for its next batch, and gives it back in the end."""

import json
import os
import platform
import subprocess
import sys
from contextlib import nullcontext

import pytest

from afield.training import backend

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to keep")

# Page faults of making and freeing an array of SIZE numbers, and what the process has: before, inside, afterwards.
CODE = """
import ctypes, json, os, resource
from pathlib import Path
import numpy as np
from afield.training.host_memory import memory_kept

def made_and_freed():
    for _ in range(20):
        np.ones(SIZE, np.float32)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made_and_freed()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

class OldGlibc(ctypes.CDLL):  # which takes no greater size than this
    def mallopt(self, what, value):
        return 0 if (what, value > 2**25) == (-3, True) else self["mallopt"](what, value)

if REFUSING:
    ctypes.CDLL = OldGlibc
seen = [(0 if REFUSING else faults(), megabytes())]  # which teaches glibc itself the size
with memory_kept("cpu"):
    made_and_freed()
    seen.append((faults(), megabytes()))
seen.append((0, megabytes()))
print(json.dumps(seen))
"""


def seen(size=2**24, refusing=False, **variables):
    ours = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | variables
    done = subprocess.run(
        [sys.executable, "-c", f"SIZE, REFUSING = {size}, {refusing}\n{CODE}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@GLIBC
def test_pages_are_cleared_once_and_given_back_afterwards():
    (before, small), (inside, large), (_, after) = seen()
    assert before > 500  # 20 arrays of 32 pages of 2 MiB, where the system has such pages to give
    assert inside < before / 10
    assert large > small + 50
    assert after < small + 20


@GLIBC
def test_with_a_glibc_that_allows_less_blocks_of_that_size_are_kept():
    _, (inside, _), _ = seen(size=2**22, refusing=True)  # 16 MiB
    assert inside < 100


@GLIBC
def test_an_allocator_that_the_user_has_set_stays_as_it_is():
    (before, _), (inside, _), _ = seen(MALLOC_MMAP_THRESHOLD_="131072")
    assert inside > before / 2


def test_training_on_a_cpu_keeps_it(train_toy, tmp_path, monkeypatch):
    devices = []
    monkeypatch.setattr(backend, "memory_kept", lambda device: devices.append(device) or nullcontext())
    train_toy(tmp_path / "run", "baseline", 1)
    assert devices == ["cpu"]
