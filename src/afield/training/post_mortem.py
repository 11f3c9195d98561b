"""A training that has diverged: what is needed to find out why, saved beside the good weights."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from afield.data.batches import Batch, BatchStream
from afield.errors import AfieldError
from afield.methods import Losses
from afield.training.checkpoint import Checkpoint, generator_states, save_checkpoint


class DivergedError(AfieldError):
    """A loss, a weight or an evaluation is not a finite number any more."""

    def __init__(self, reason: str, advice: str) -> None:
        self.reason = reason
        """What has happened, without the paths: for a benchmark, whose run's folder does not stay."""
        super().__init__(f"{reason}; {advice}")


class Standing:
    """Where the stream and the generators stood when all was well: before the step, or the few, that went wrong."""

    def __init__(self, stream: BatchStream, device: torch.device) -> None:
        self.stream = stream
        self.state: dict[str, Any] = {"stream": stream.state_dict(), "generators": generator_states(device)}

    def batches(self, count: int) -> list[Batch]:
        """The batches of the last step, of which each has so many, drawn again. The stream then stands where it did."""
        reached, found = self.stream.step, []
        self.stream.load_state_dict(self.state["stream"])
        while self.stream.step < reached:
            self.stream.prepare(count)
            found = [self.stream.draw() for _ in range(count)]
        return found


def save_post_mortem(path: Path, checkpoint: Checkpoint, before: Standing, losses: Losses, accumulate: int) -> None:
    """Write the weights as they are now, the step's batches and losses, and the generators' states before it.

    It is a checkpoint like all others. A disk that is full must not hide the divergence itself.
    """
    batches = [{"images": batch.images, "labels": batch.labels} for batch in before.batches(accumulate)]
    state = {"model": checkpoint.state["model"], "before": before.state, "batches": batches, "losses": losses}
    with suppress(OSError, AfieldError):
        save_checkpoint(path, replace(checkpoint, state=state))
