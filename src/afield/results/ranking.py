"""Which of several runs on one target is best, as far as that can be known without its labels, or with a few."""

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from afield.errors import AfieldError
from afield.results.run import Run
from afield.results.selection import SCORES, ranks, scores


@dataclass(frozen=True)
class Ranking:
    """Finished runs by name, and how many of a few labelled images of the target each has right, if there are any."""

    runs: dict[str, Run]
    labelled: int = 0
    """How many labelled images were used to choose."""
    right: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise AfieldError(f"a comparison needs two runs that have ended, not {len(self.runs)}")

    @property
    def places(self) -> dict[str, dict[str, float]]:
        """By selector the place of each run, 1 for the best; equally good ones share theirs."""
        ends = [run.evaluation for run in self.runs.values()]
        by_selector = {name: ranks([-score for score in scores(ends, name)]) for name in SCORES}
        return {name: dict(zip(self.runs, found, strict=True)) for name, found in by_selector.items()}

    @property
    def mean_places(self) -> dict[str, float]:
        """Of each run over the selectors."""
        return {name: fmean(of_one[name] for of_one in self.places.values()) for name in self.runs}

    @property
    def order(self) -> list[str]:
        """The best first: by the labelled images if there are any, then by mean place."""
        mean, right = self.mean_places, self.right or {}
        return sorted(self.runs, key=lambda name: (-right.get(name, 0), mean[name]))

    @property
    def firsts(self) -> list[str]:
        """The selectors that put the first run first, alone or with others."""
        return [name for name, of_one in self.places.items() if of_one[self.order[0]] == min(of_one.values())]

    @property
    def alone_first(self) -> list[str]:
        """The selectors that put the first run first, before all others."""
        return [name for name in self.firsts if self.places[name][self.order[0]] == 1]

    @property
    def agreement(self) -> float | None:
        """Kendall's W, corrected for ties: 1 where all selectors rank the runs alike, 0 where their ranks cancel out.

        None where every selector finds all runs equally good.
        """
        count, selectors = len(self.runs), len(SCORES)
        sums = [selectors * mean for mean in self.mean_places.values()]
        spread = sum((each - fmean(sums)) ** 2 for each in sums)
        alike = [n for of_one in self.places.values() for n in Counter(of_one.values()).values()]
        most = selectors**2 * (count**3 - count) - selectors * sum(n**3 - n for n in alike)
        return 12 * spread / most if most else None

    @property
    def best_places(self) -> list[str]:
        """The runs with the best mean place, in the order in which they were named: more than one if they are equal."""
        best = min(self.mean_places.values())
        return [name for name, mean in self.mean_places.items() if mean == best]

    @property
    def tie(self) -> str:
        """Which runs are as good as the first, and why it is the first nevertheless; empty if none is."""
        first, mean = self.order[0], self.mean_places
        if self.right is None:
            if len(self.best_places) == 1:
                return ""
            return f"{listed(self.best_places)} are equally good without labels; {first}, named first, is taken"
        equal = [name for name in self.order if self.right[name] == self.right[first]]
        if len(equal) == 1:
            return ""
        alike = [name for name in equal if mean[name] == mean[first]]
        if len(alike) == 1:
            return f"{listed(equal)} have equally many labelled images right; {first}, of the best mean place, is taken"
        both = "have equally many labelled images right and the same mean place"
        return f"{listed(alike)} {both}; {first}, named first, is taken"

    @property
    def verdict(self) -> str:
        """Which run is first, by what, and how sure that is."""
        first, count = self.order[0], len(SCORES)
        agreed = "every selector finds all equally good"
        if self.agreement is not None:
            meaning = "Kendall's W: 1 if all rank alike, 0 if ranks cancel out"
            agreed = f"the selectors' agreement is {self.agreement:.2f} ({meaning})"
        if self.right is None:
            shared = len(self.firsts) - len(self.alone_first)
            found = f"{len(self.firsts)} of {count} selectors put it first"
            found += f", {shared} with others as good" if shared else ""
            return f"{first} is chosen without labels: {found}; {agreed}"
        blind = listed(self.best_places, "or")
        by = f"{self.labelled} labelled image{'s' * (self.labelled != 1)} of the target, used for nothing but choosing"
        return f"{first} is chosen by {by}: {self.right[first]} right; without labels it would be {blind}; {agreed}"

    def as_values(self) -> dict[str, Any]:
        """For programs."""
        rows = [
            {
                "method": name,
                "folder": str(self.runs[name].folder),
                "mean_place": self.mean_places[name],
                "places": {selector: of_one[name] for selector, of_one in self.places.items()},
                **({"right": self.right[name]} if self.right is not None else {}),
                "accuracy": self.runs[name].accuracy,
            }
            for name in self.order
        ]
        labels = {"labelled_images": self.labelled} if self.right is not None else {}
        return {
            "chosen": self.order[0],
            "agreement": self.agreement,
            "firsts": self.firsts,
            "alone_first": self.alone_first,
            **labels,
            "rows": rows,
        }


def listed(names: list[str], word: str = "and") -> str:
    """Names in a sentence.

    >>> listed(["dann", "far", "mcd"])
    'dann, far and mcd'
    """
    return f" {word} ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
