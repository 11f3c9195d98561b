"""The host's memory while a network runs on a CPU: memory that a step frees is kept for the next step.

By default glibc takes a block from the system for each large tensor and gives it back when the tensor is freed. The
system clears every page of it anew, which can take half of a step on photographs (docs/speed.md).
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's names
NEVER, LARGEST = -1, 2**30
# Where glibc itself ends up in a process that has freed blocks of 32 MiB.
USUAL_TRIM, USUAL_LARGEST = 2**26, 2**25
CHOSEN_BY_USER = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextmanager
def memory_kept(device: str) -> Iterator[None]:
    """Inside, freed memory is kept for later tensors; afterwards it goes back to the system.

    Nothing changes if the network's device (its type) is no CPU, without glibc, or where environment variables set the
    allocator.
    """
    chosen = any(name.startswith(CHOSEN_BY_USER) for name in os.environ)
    if device != "cpu" or chosen or platform.libc_ver()[0] != "glibc":
        yield
        return
    glibc = ctypes.CDLL(None)
    if not glibc.mallopt(M_MMAP_THRESHOLD, LARGEST):  # before 2.35 its limit is what it calls usual
        glibc.mallopt(M_MMAP_THRESHOLD, USUAL_LARGEST)
    glibc.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        glibc.mallopt(M_MMAP_THRESHOLD, USUAL_LARGEST)
        glibc.mallopt(M_TRIM_THRESHOLD, USUAL_TRIM)
        glibc.malloc_trim(0)
