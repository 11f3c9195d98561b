"""Evaluations as curves in Weights & Biases."""

import os

import wandb

from afield.results.curves import curves_of
from afield.results.folder import RunFolder
from afield.results.records import Record
from afield.training.callbacks import Callback, RunStart


class WandbLogger(Callback):
    """A run of W&B, of the folder's name; W&B's own variables (WANDB_PROJECT, WANDB_MODE and so on) say where.

    A resumed run goes on in the same one. Steps that were logged before a kill are not logged again, because W&B takes
    no step twice.
    """

    def on_start(self, run: RunStart) -> None:
        """Begin a run of W&B, or go on in the one that this folder has begun."""
        folder = RunFolder(run.folder)
        # The user may have a run of W&B open: that one is not ours. What is printed is not W&B's to keep either.
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "afield"),
            name=run.folder.resolve().name,
            dir=os.environ.get("WANDB_DIR", run.folder),
            config=run.config,
            id=folder.logger_ids.get("wandb"),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=not run.shown),
        )
        folder.remember_logger("wandb", self.run.id)

    def on_evaluation(self, evaluation: Record) -> None:
        """Add one evaluation."""
        self.run.log(curves_of(evaluation), step=evaluation["step"])

    def on_end(self, error: BaseException | None) -> None:
        """Send what is left; a run that was stopped is marked as failed until it is resumed."""
        if hasattr(self, "run"):
            self.run.finish(exit_code=0 if error is None else 1)
