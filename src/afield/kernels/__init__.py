"""Kernels in Triton, one file for each kind of operation, and whether they can be used.

A file of kernels can be imported only where Triton is installed. Who calls them has the same in plain PyTorch.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_in_networks = False


@functools.cache
def kernels_run(device: torch.device) -> bool:
    """Whether Triton can build for this device: it also needs a C compiler and Python's headers."""
    try:
        from afield.kernels import probe
    except ImportError:  # macOS, Windows and PyTorch's wheels for CPUs come without Triton
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        with torch.cuda.device(device):
            probe.fill[(1,)](torch.empty(1, device=device), enable_fp_fusion=True)
    except Exception as error:
        warnings.warn(f"fused kernels are off, as Triton cannot build them here: {error}", stacklevel=2)
        return False
    return True


@contextmanager
def kernels_in_networks(wanted: bool) -> Iterator[None]:
    """Whether layers use kernels inside: in steps that are recorded, and in those that come before recording.

    In an eager step of a large network the host takes longer to start them than the GPU to run them: PyTorch's own
    layers are twice as fast there.
    """
    global _in_networks  # not of a thread alone: a backward pass has threads of its own
    before, _in_networks = _in_networks, wanted
    try:
        yield
    finally:
        _in_networks = before


def layers_use_kernels(device: torch.device) -> bool:
    """Whether a layer is to use kernels now, on this device."""
    return _in_networks and kernels_run(device)
