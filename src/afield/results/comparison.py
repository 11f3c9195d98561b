"""Two rows of a table against each other: what one gains over the other, and whether chance would explain it."""

from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from afield.results.rows import Row, Table

LEAST_SEEDS = 3
"""The t-test needs at least so many seeds: two that happen to agree would make any gain look certain."""
LEAST_PAIRS = 6
"""Of fewer pairs Wilcoxon's test never gives p < 0.05: five that all have one sign have 2 / 2^5 = 0.06."""
DIGITS = 9
"""Gains are rounded to so many decimals before a test: equal ones may differ in their last bits."""
CAVEAT = (
    "The p-values are two-sided and not corrected for the number of comparisons. The t-test asks whether new seeds "
    "would repeat the gain of the average. The Wilcoxon test takes all pairs for independent; those on one target are "
    "alike, so its p-value is rather too small. Neither says anything about other targets."
)


@dataclass(frozen=True)
class Verdict:
    """The result of one test."""

    method: str
    n: int
    of: str
    """What n counts: seeds, or pairs of runs."""
    p: float | None
    """Two-sided; None if there is none."""
    why_not: str = ""

    def __str__(self) -> str:
        """In one line, with the reason where there is no p-value."""
        shown = self.why_not if self.p is None else f"p {'< 0.0001' if self.p < 1e-4 else f'= {self.p:.4f}'}"
        return f"{self.method}, n = {self.n} {self.of}: {shown}"


@dataclass(frozen=True)
class Comparison:
    """What the first row gains over the second, in percent of accuracy."""

    first: str
    second: str
    by_seed: dict[int, float]
    """The gain of the average, by seed; only of seeds that have all its targets in both rows.

    Over the targets; in a table of several protocols, over the columns that both rows have.
    """
    by_pair: dict[tuple[str, str, int], float]
    """The gain of each run over the other row's run with the same protocol, target and seed."""

    def __str__(self) -> str:
        """The mean gain of the average with its standard error over seeds; of too few seeds that over runs."""
        result = self._over_seeds() if self.has_seeds else self._over_pairs()
        return f"`{self.first}` over `{self.second}`: {result}"

    @property
    def has_seeds(self) -> bool:
        """Whether the average has a spread over seeds."""
        return len(self.by_seed) > 1

    def _over_seeds(self) -> str:
        gains = list(self.by_seed.values())
        error, ahead = stdev(gains) / len(gains) ** 0.5, sum(gain > 0 for gain in gains)
        return f"{fmean(gains):+.1f} ± {error:.1f} (standard error), ahead in {ahead} of {len(gains)}"

    def _over_pairs(self) -> str:
        gains, why = list(self.by_pair.values()), "too few seeds with all targets in both"
        if not gains:
            return why
        pairs, ahead = "pair" if len(gains) == 1 else "pairs", sum(gain > 0 for gain in gains)
        return f"{fmean(gains):+.1f} over {len(gains)} {pairs} of runs, ahead in {ahead} ({why})"

    def tested(self) -> tuple[Verdict, Verdict]:
        """Whether the gain could be chance: over seeds, and over pairs of runs."""
        return t_test(list(self.by_seed.values())), signed_rank_test(list(self.by_pair.values()))


def compare(table: Table, first: str, second: str) -> Comparison:
    """Pair the runs of two rows of a table."""
    pairs = shared_parts(table.row(first), table.row(second))
    averaged = {name: (ours, theirs) for name, (ours, theirs) in pairs.items() if ours.averages and theirs.averages}
    seeds = [set(row.averages) for both in averaged.values() for row in both]
    by_seed = {
        seed: fmean(ours.averages[seed] - theirs.averages[seed] for ours, theirs in averaged.values())
        for seed in sorted(set.intersection(*seeds) if seeds else ())
    }
    by_pair = {
        (name, *run): accuracy - theirs.accuracies[run]
        for name, (ours, theirs) in pairs.items()
        for run, accuracy in ours.accuracies.items()
        if run in theirs.accuracies
    }
    return Comparison(first, second, by_seed, by_pair)


def shared_parts(first: Row, second: Row) -> dict[str, tuple[Row, Row]]:
    """The two rows under each protocol that both have runs of; in a table of one protocol its name does not matter."""
    if not (first.parts or second.parts):
        return {"": (first, second)}
    return {name: (part, second.parts[name]) for name, part in first.parts.items() if name in second.parts}


def t_test(gains: list[float]) -> Verdict:
    """Student's paired t-test: t = mean / (standard deviation / sqrt(n)), with n - 1 degrees of freedom."""
    method, n, rounded = "paired t-test", len(gains), [round(gain, DIGITS) for gain in gains]
    if n < LEAST_SEEDS:
        return Verdict(method, n, "seeds", None, f"too few to say anything (at least {LEAST_SEEDS})")
    if len(set(rounded)) == 1:
        return Verdict(method, n, "seeds", None, "no answer, as the gain is the same with every seed")
    from scipy.stats import ttest_1samp  # takes a moment, and a table without a test needs none of it

    return Verdict(method, n, "seeds", float(ttest_1samp(rounded, 0.0).pvalue))


def signed_rank_test(gains: list[float]) -> Verdict:
    """Wilcoxon's signed-rank test over the pairs that differ: exact where there are few of them."""
    rounded = [gain for gain in (round(gain, DIGITS) for gain in gains) if gain]
    method, n, of = "Wilcoxon signed-rank test", len(rounded), "pairs of runs that differ"
    if n < LEAST_PAIRS:
        return Verdict(method, n, of, None, f"too few to say anything (at least {LEAST_PAIRS})")
    from scipy.stats import wilcoxon

    return Verdict(method, n, of, float(wilcoxon(rounded).pvalue))


def remarks_on(table: Table, comparisons: list[Comparison], test: bool) -> list[str]:
    """The paragraphs on comparisons, to stand below a table."""
    if not comparisons:
        return []
    of_columns = any(row.parts for row in table.rows)
    how = "On the average of the columns that both rows have, seed by seed" if of_columns else "Seed by seed"
    how = "On the average, seed by seed" if table.averaged else how
    if any(one.by_pair for one in comparisons) and not any(one.has_seeds for one in comparisons):
        how = "Run by run"
    said = [f"{how}: {'; '.join(map(str, comparisons))}."]
    if test:
        said += [f"`{one.first}` against `{one.second}`: {'; '.join(map(str, one.tested()))}." for one in comparisons]
        if any(verdict.p is not None for one in comparisons for verdict in one.tested()):
            said.append(CAVEAT)
    return said


def comparison_values(comparison: Comparison, test: bool) -> dict[str, Any]:
    """For JSON: gains in percent, and the tests' results."""
    pairs = [
        {**({"protocol": protocol} if protocol else {}), "target": target, "seed": seed, "gain": gain}
        for (protocol, target, seed), gain in comparison.by_pair.items()
    ]
    seeds = [{"seed": seed, "gain": gain} for seed, gain in comparison.by_seed.items()]
    values: dict[str, Any] = {"first": comparison.first, "second": comparison.second, "seeds": seeds, "pairs": pairs}
    if test:
        values["tests"] = [
            {"method": verdict.method, "n": verdict.n, "of": verdict.of, "p": verdict.p}
            for verdict in comparison.tested()
        ]
    return values
