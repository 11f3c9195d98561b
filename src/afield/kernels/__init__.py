"""Kernels in Triton, one file for each kind of operation, and whether they can be used.

A file of kernels can be imported only where Triton is installed. Who calls them has the same in plain PyTorch.
"""

import functools
import warnings

import torch


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
