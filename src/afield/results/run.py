"""The result of a finished run, read from the records in its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afield.config.selectors import check_selector
from afield.errors import AfieldError
from afield.results.curves import curves_of
from afield.results.folder import RunFolder
from afield.results.records import Record, end_of, evaluations, read_records
from afield.results.selection import select, source_score

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, and the evaluation that a selector chose."""

    folder: Path
    selector: str
    evaluation: Record
    """The evaluation the selector chose."""
    records: list[Record]

    def __repr__(self) -> str:
        accuracy = {name: value if value is None else round(value, 4) for name, value in self.accuracy.items()}
        return f"Run({str(self.folder)!r}, selector={self.selector!r}, step={self.step}, accuracy={accuracy})"

    @property
    def accuracy(self) -> dict[str, float | None]:
        """Accuracy (0 to 1) by domain, on the target's test images and on the sources' held-out ones.

        These are the validation images of a source that has some. None for a target without labels.
        """
        results = {**self.evaluation["sources"], **self.evaluation["target"]}
        return {name: result["accuracy"] for name, result in results.items()}

    @property
    def source_accuracy(self) -> float:
        """Mean over the sources."""
        return source_score(self.evaluation)

    @property
    def step(self) -> int:
        """The step the selector chose."""
        return int(self.evaluation["step"])

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of that step: of a selector that `training.keep` names."""
        return RunFolder(self.folder).checkpoint(self.selector)

    @property
    def seconds(self) -> float:
        """How long the whole run took to train."""
        end = end_of(self.records)
        return float(end["seconds"]) if end else 0.0

    def history(self) -> "DataFrame":
        """All evaluations as a table of pandas: a row per step, a column per curve, named as loggers name them."""
        try:
            from pandas import DataFrame, Index
        except ImportError as error:
            raise AfieldError("a run's history needs pandas: pip install pandas") from error
        done = evaluations(self.records)
        steps = Index([int(each["step"]) for each in done], name="step")
        return DataFrame([curves_of(each) for each in done], index=steps)

    def select(self, selector: str) -> "Run":
        """The same run with another selector."""
        return read_run(self.folder, selector)


def read_run(folder: Path, selector: str = "last") -> Run:
    """The result of the finished run in a folder."""
    check_selector(selector)
    records = read_records(RunFolder(folder).records)
    if not end_of(records):
        raise AfieldError(f"the run in {folder} has not ended; resume continues it")
    try:
        run = Run(folder, selector, select(evaluations(records), selector), records)
        _ = run.accuracy, run.source_accuracy, run.step, run.seconds
    except KeyError as error:
        raise AfieldError(f"the records in {folder} lack {error}, which a result needs") from error
    return run
