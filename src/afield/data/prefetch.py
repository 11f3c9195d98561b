"""Reading ahead: while a step trains, the batches of the next ones are read."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

B = TypeVar("B")
THREADS = 3
"""Batches read at a time: each waits for its slowest file, and meanwhile the others keep the decoders busy."""


class Prefetcher(Generic[B]):
    """`fill(number, buffer)` for one number after the other, in threads, ahead of whoever takes the buffers.

    Buffers are reused: one that `take` has given is filled anew only after `give_back`.
    """

    def __init__(self, fill: Callable[[int, B], None], buffers: list[B], first: int = 0) -> None:
        self._fill = fill
        self._free: SimpleQueue[B] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)
        self._threads = ThreadPoolExecutor(min(THREADS, len(buffers)), thread_name_prefix="afield-prefetch")
        self._next = first
        self._under_way: deque[Future[B]] = deque()
        for _ in buffers:
            self._submit()

    def take(self) -> B:
        """The buffer of the next number, as soon as it is filled. An error in filling it is raised here."""
        return self._under_way.popleft().result()

    def give_back(self, buffer: B) -> None:
        """Let a buffer be filled for a number further on."""
        self._free.put(buffer)
        self._submit()

    def close(self) -> None:
        """Stop reading ahead."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self) -> None:
        number, self._next = self._next, self._next + 1
        self._under_way.append(self._threads.submit(self._filled, number))

    def _filled(self, number: int) -> B:
        buffer = self._free.get()
        self._fill(number, buffer)
        return buffer
