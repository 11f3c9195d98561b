"""Training on a CPU keeps freed memory for later steps, and gives it back in the end."""

import json
import os
import platform
import subprocess
import sys

import pytest

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to keep")

# Page faults of making and freeing a tensor of 64 MiB, and what the process has: before, while training, afterwards.
CODE = """
import json, os, resource, torch
from pathlib import Path
from afield.config.training import TrainingOptions
from afield.training.backend import backend_settings

def made_and_freed():
    for _ in range(20):
        torch.ones(2**24)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made_and_freed()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

seen = [(faults(), megabytes())]
with backend_settings(TrainingOptions(device="cpu")):
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
def test_pages_are_cleared_once_while_training_and_given_back_afterwards():
    (before, small), (during, large), (_, after) = seen()
    assert before > 1000
    assert during < before / 100
    assert large > small + 50
    assert after < small + 20


@GLIBC
def test_an_allocator_that_the_user_has_set_stays_as_it_is():
    (before, _), (during, _), _ = seen(MALLOC_MMAP_THRESHOLD_="131072")
    assert during > before / 2
