"""Evaluations as TensorBoard curves, in the run's folder."""

import time

from torch.utils.tensorboard import SummaryWriter

from afield.results.curves import curves_of
from afield.results.folder import RunFolder
from afield.results.records import Record
from afield.training.callbacks import Callback, RunStart


class TensorBoardLogger(Callback):
    """Writes each evaluation's numbers; a resumed run hides what was written after its checkpoint."""

    def on_start(self, run: RunStart) -> None:
        """Begin a file."""
        folder = RunFolder(run.folder).tensorboard
        # TensorBoard reads files in the order of their names, which begin with the second they were made in; two of one
        # second may come in the wrong order, and the earlier one then hides the later.
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.05)
        self.writer = SummaryWriter(str(folder), purge_step=run.step + 1)

    def on_evaluation(self, evaluation: Record) -> None:
        """Add one evaluation."""
        for name, value in curves_of(evaluation).items():
            self.writer.add_scalar(name, value, evaluation["step"])
        self.writer.flush()

    def on_end(self, error: BaseException | None) -> None:
        """Close the file, if there is one."""
        if hasattr(self, "writer"):
            self.writer.close()
