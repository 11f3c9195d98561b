"""Running out of memory, which a user can mend, as an error of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from afield.config.layers import Config
from afield.errors import AfieldError

# What torch says where it raises a plain RuntimeError: of host memory, of its libraries' own memory on a GPU, and of
# sizes that no machine has.
SIGNS = ("can't allocate memory", "ALLOC_FAILED", "out of memory", "Storage size calculation overflowed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on the device or the host, or was raised after such a one.

    Where memory runs out while a step is recorded, torch ends the recording, which raises another error.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


@contextmanager
def memory_explained(config: Config) -> Iterator[None]:
    """Running out of memory inside is an error that says what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        streamed = "" if config.data.placement == "streamed" else ", or set data.placement=streamed"
        raise AfieldError(
            f"out of memory: lower training.batch_size ({config.training.batch_size}), of which training.accumulate "
            f"averages several, or data.image_size ({config.data.image_size}), choose a smaller network{streamed}"
        ) from error
