"""Ctrl-C and SIGTERM while a run trains: they wait for the end of the step, so that a checkpoint of it can be saved."""

import signal
import threading
from multiprocessing import parent_process
from types import FrameType, TracebackType
from typing import Any, Self

from afield.config.torchrun import torchrun

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HeldSignals:
    """While the context lasts, the first signal is noted (`came`), and `deliver` lets it do what it would have done.

    A second one acts at once, because whoever asks twice does not want to wait. In a process that another has started
    for its work it does nothing: it may well be the same one, once from the terminal or a scheduler and once from the
    other process, which may also repeat it. A signal that is ignored stays ignored. Outside the main thread, where
    Python has no signals, nothing happens.
    """

    insistent = True
    """Whether a second signal acts at once; a child process of Python's own is known without it."""

    def __init__(self) -> None:
        self.came: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()
        self._act()

    def deliver(self) -> None:
        """Act on the signal now. If the process survives it, by a handler of its own, the next signal is held again."""
        self._let_go()
        self._act()
        self._hold()

    def _act(self) -> None:
        came, self.came = self.came, None
        if came is None:
            return
        handler = signal.getsignal(came)
        if callable(handler):
            handler(came, None)  # not by a signal: a process of another's, such as a worker of Ray, may block it
        else:
            signal.raise_signal(came)

    def _hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                self._before[number] = signal.signal(number, self._note)

    def _let_go(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came is None:
            self.came = number
        elif self.insistent and parent_process() is None and torchrun() is None:
            self.came = number
            self.deliver()
