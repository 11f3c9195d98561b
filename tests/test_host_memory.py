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

# Page faults of making and freeing an array of 64 MiB, and what the process has: before, inside, afterwards.
CODE = """
import json, os, resource
from pathlib import Path
import numpy as np
from afield.training.host_memory import memory_kept

def made_and_freed():
    for _ in range(20):
        np.ones(2**24, np.float32)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made_and_freed()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

seen = [(faults(), megabytes())]
with memory_kept("cpu"):
    made_and_freed()
    seen.append((faults(), megabytes()))
seen.append((0, megabytes()))
print(json.dumps(seen))
"""


def seen(**variables):
    ours = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | variables
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@GLIBC
def test_pages_are_cleared_once_and_given_back_afterwards():
    (before, small), (inside, large), (_, after) = seen()
    assert before > 1000
    assert inside < before / 100
    assert large > small + 50
    assert after < small + 20


@GLIBC
def test_an_allocator_that_the_user_has_set_stays_as_it_is():
    (before, _), (inside, _), _ = seen(MALLOC_MMAP_THRESHOLD_="131072")
    assert inside > before / 2


def test_training_on_a_cpu_keeps_it(train_toy, tmp_path, monkeypatch):
    devices = []
    monkeypatch.setattr(backend, "memory_kept", lambda device: devices.append(device) or nullcontext())
    train_toy(tmp_path / "run", "baseline", 1)
    assert devices == ["cpu"]
