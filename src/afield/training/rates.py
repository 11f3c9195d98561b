"""Learning rate and adaptation weight where a step finds them: in a table on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from afield.config.training import TrainingOptions
from afield.training.schedules import adaptation_weight, learning_rate

STEPS_OF_RATES = 1024


class RateTable:
    """The rates of the next 1,024 steps. The host writes them all at once, so that a recorded step needs no host.

    A table of all steps would be simpler, but for 20 million steps it takes gigabytes and minutes to write.
    """

    def __init__(self, options: TrainingOptions, phases: Sequence[float], device: torch.device) -> None:
        self.options, self.phases = options, phases
        self.rows = torch.zeros(STEPS_OF_RATES, 2, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.written_from: int | None = None

    def prepare(self, step: int) -> None:
        """The host's part of a step: write the rows from this step on, unless those before are not used up."""
        if self.written_from is not None and step < self.written_from + STEPS_OF_RATES:
            return
        steps = [min(later, self.options.steps - 1) for later in range(step, step + STEPS_OF_RATES)]
        rows = [[of(self.options, later, self.phases) for of in (learning_rate, adaptation_weight)] for later in steps]
        # In place: a recorded graph reads these very tensors.
        self.rows.copy_(torch.tensor(rows))
        self.cursor.zero_()
        self.written_from = step

    def take(self) -> Tensor:
        """The device's part, after `prepare` and as often: this step's learning rate and adaptation weight."""
        rates = self.rows.index_select(0, self.cursor).squeeze(0)
        self.cursor += 1
        return rates

    def restart(self) -> None:
        """Forget what was written: the next step may be any."""
        self.written_from = None
