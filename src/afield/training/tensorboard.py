"""Evaluations as TensorBoard curves."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.utils.tensorboard import SummaryWriter

from afield.results.records import Record


class Board:
    """Writes each evaluation's numbers; a resumed run hides what was written after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        # TensorBoard reads files in the order of their names, which begin with the second they were made in; two of one
        # second may come in the wrong order, and the earlier one then hides the later.
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.05)
        self.folder = folder
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def write(self, evaluation: Record) -> None:
        """Add one evaluation."""
        curves = {f"loss/{name}": value for name, value in evaluation["losses"].items()}
        curves |= {"schedule/lr": evaluation["lr"], "schedule/adaptation": evaluation["adaptation_weight"]}
        for group in ("sources", "target"):
            for domain, result in evaluation[group].items():
                curves[f"{group}/{domain}"] = result["accuracy"]
                curves |= {f"{group}-from/{domain}/{k}": v for k, v in result.get("views", {}).items()}
                curves |= {f"gates/{domain}/{k}": v for k, v in result.get("gates", {}).items()}
        for domain, said in evaluation.get("unlabelled", {}).items():
            curves |= {f"unlabelled/{domain}/{k}": v for k, v in said.items() if isinstance(v, float)}
        try:
            for name, value in curves.items():
                if value is not None:  # the accuracy of a target without labels
                    self.writer.add_scalar(name, value, evaluation["step"])
            self.writer.flush()
        except OSError as error:  # of a full disk, which names no file
            raise OSError(error.errno, error.strerror, str(self.folder)) from error
