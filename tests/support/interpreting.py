"""Tests of kernels where there is no GPU: in another process, by Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pass_in_interpreter(file):
    """All tests of a file pass there."""
    if torch.cuda.is_available():
        pytest.skip("the GPU runs these tests")  # and some versions of the interpreter fail with newer ones of NumPy
    command = [sys.executable, "-m", "pytest", file, "-n", "0", "-p", "no:cacheprovider"]
    child = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stdout
