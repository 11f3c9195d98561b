"""Numbers as people read them: mean and standard deviation over runs, and percentages."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of `n` values; None where there are too few."""

    mean: float | None
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """The summary of any number of values."""
        mean = fmean(values) if values else None
        return cls(mean, stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        """`84.2 ± 0.5 (10)`; one value is shown without a deviation, no value as a dash."""
        if self.mean is None:
            return "-"
        spread = "" if self.std is None else f" ± {self.std:.1f}"
        return f"{self.mean:.1f}{spread} ({self.n})"


def percent(accuracy: float | None) -> str:
    """An accuracy (0 to 1) as `84.2%`; a dash where it is unknown, as for a target without labels."""
    return "-" if accuracy is None else f"{accuracy:.1%}"
