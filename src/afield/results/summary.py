"""Several runs as one figure: mean, standard deviation and how many."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of `n` values; None where there are too few to say."""

    mean: float | None
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """The summary of some values, or of none."""
        mean = fmean(values) if values else None
        return cls(mean, stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        """`84.2 ± 0.5 (10)`; one value has no deviation, and none is a dash."""
        if self.mean is None:
            return "-"
        spread = "" if self.std is None else f" ± {self.std:.1f}"
        return f"{self.mean:.1f}{spread} ({self.n})"
