"""Callbacks: what a user, or a logger, does while a run trains."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from afield.errors import AfieldError
from afield.methods import Losses
from afield.results.records import Record


@dataclass(frozen=True)
class RunStart:
    """What a callback learns about the run that begins, or goes on."""

    folder: Path
    """Where it writes."""
    config: dict[str, dict[str, Any]]
    """All settings by section, such as `config["training"]["lr"]`."""
    step: int
    """Steps taken already: 0 unless the run was resumed."""
    steps: int
    """Steps to take in all."""
    shown: bool
    """Whether the user wants to see progress."""


class Callback:
    """Something to do while a run trains. Override what you need, and pass an instance to `train(callbacks=[...])`.

    With several processes (`training.devices`) only the first one calls, and what it calls are copies. A callback that
    raises ends the run: the message says which one and why, and `resume` goes on from a checkpoint of that step.
    """

    def on_start(self, run: RunStart) -> None:
        """Before the first step, and again when the run is resumed."""

    def on_losses(self, step: int, losses: dict[str, float]) -> None:
        """After every tenth step and the last one: the losses of that step."""

    def on_evaluation(self, evaluation: Record) -> None:
        """After each evaluation: its line in `records.jsonl`, with `step`, `sources`, `target` and `losses`."""

    def on_end(self, error: BaseException | None) -> None:
        """Once for each `on_start`, at the end; `error` is what has stopped the run before it, such as Ctrl-C."""


def check_callbacks(given: Sequence[Callback]) -> None:
    """Raise if something is no callback."""
    listed = given if isinstance(given, list | tuple) else [None]
    if not all(isinstance(one, Callback) for one in listed):
        raise AfieldError(f"callbacks is a list of instances of afield.Callback or its subclasses, not {given!r:.60}")


class Listeners:
    """The callbacks of a run. What one of them raises is kept in `failure`, for the loop to end all processes."""

    def __init__(self, callbacks: Sequence[Callback], heard: bool) -> None:
        self.callbacks, self.heard = callbacks, heard
        self.failure: AfieldError | None = None
        self.want_losses = any(type(one).on_losses is not Callback.on_losses for one in callbacks)
        self._started: list[Callback] = []

    def started(self, run: RunStart) -> None:
        """The run begins, or goes on."""
        for one in self.callbacks if self.heard else ():
            self._started.append(one)
            if not self._tell(one, "on_start", run):
                return

    def stepped(self, step: int, losses: Losses) -> None:
        """Steps were taken; all losses are copied from the device at once."""
        if self._started and self.want_losses:
            values = torch.stack([value.detach().float() for value in losses.values()]).tolist()
            for one in self._started:
                if not self._tell(one, "on_losses", step, dict(zip(losses, values, strict=True))):
                    return

    def evaluated(self, evaluation: Record) -> None:
        """An evaluation was recorded."""
        for one in self._started:
            # A copy for each: the loop chooses by its own, whatever they do with theirs.
            if not self._tell(one, "on_evaluation", deepcopy(evaluation)):
                return

    def ended(self, error: BaseException | None) -> None:
        """The run is over. All are told, even if one of them raises."""
        while self._started:
            self._tell(self._started.pop(0), "on_end", error)

    def _tell(self, one: Callback, event: str, *what: Any) -> bool:
        """Whether it went well."""
        try:
            getattr(one, event)(*what)
        except Exception as error:  # a user's code may raise anything
            if self.failure is None:
                self.failure = _explained(one, event, error)
            return False
        return True


def _explained(one: Callback, event: str, error: Exception) -> AfieldError:
    if isinstance(error, AfieldError):
        return error
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    explained = AfieldError(f"callback {type(one).__name__} has ended the run in {event}: {reason}")
    explained.__cause__ = error
    return explained
