"""Signs of life: the loop gives one whenever it has got on, and whoever runs it may listen."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_BEATS = 1.0
_listeners: list[Callable[[], None]] = []


def beat() -> None:
    """Say that training goes on: a step has been taken, or an evaluation or a checkpoint made."""
    for listener in _listeners:
        listener()


@contextmanager
def heard_by(listener: Callable[[], None]) -> Iterator[None]:
    """While the context lasts, `listener` is called when this process gets on with training, about once a second."""
    last = 0.0

    def now_and_then() -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= SECONDS_BETWEEN_BEATS:
            last = now
            listener()

    _listeners.append(now_and_then)
    try:
        yield
    finally:
        _listeners.remove(now_and_then)
