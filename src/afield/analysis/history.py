"""What a run's records say, as curves over its steps. Nothing here imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from afield.config.selectors import LABEL_FREE
from afield.errors import AfieldError
from afield.results.records import Record, end_of, evaluations
from afield.results.selection import has_scores, select, source_score

MOST_NAMES = 3
"""If more selectors than these choose the same evaluation, a chart has no room for all of their names."""
Curve = list[float | None]
"""One value per evaluation; None where there is none."""
State = Literal["ended", "going", "cut"]


@dataclass(frozen=True)
class History:
    """One run: what it was asked to do, how far it came, and every evaluation on the way."""

    name: str
    config: dict[str, dict[str, Any]]
    header: Record
    state: State
    """It has ended, is still going, or was cut."""
    steps: list[int]
    """Of the evaluations."""
    losses: dict[str, Curve]
    """Means since the evaluation before, by the loss's name."""
    accuracy: dict[str, Curve]
    """On held-out images (0 to 1), by domain: the sources, then the target. Of a domain without labels all None."""
    source_accuracy: Curve
    """The mean over the sources."""
    views: dict[str, dict[str, Curve]]
    """Accuracies from other features than those of inference, by domain and feature; empty if the method has none."""
    gates: dict[str, dict[str, Curve]]
    """What the gates let through, by domain and gate; empty if the method has none."""
    chosen: dict[str, int]
    """By selector, the number of the evaluation it chooses."""
    seconds: float | None
    """How long training took, of a run that has ended."""

    @property
    def method(self) -> str:
        """Its name."""
        return str(self.config["method"]["name"])

    @property
    def target(self) -> str | None:
        """The domain to adapt to, or to be measured on."""
        target = self.config["task"].get("target")
        return None if target is None else str(target)

    @property
    def sources(self) -> list[str]:
        """The labelled domains, as far as an evaluation has named them."""
        return [name for name in self.accuracy if name != self.target]

    @property
    def planned_steps(self) -> int:
        """How many steps it was to have."""
        return int(self.config["training"]["steps"])

    @property
    def target_accuracy(self) -> Curve:
        """On the target; all None where it has no labels, or there is no target."""
        nothing: Curve = [None] * len(self.steps)
        return self.accuracy.get(self.target, nothing) if self.target else nothing

    @property
    def marks(self) -> dict[int, str]:
        """The evaluations that selectors choose, in order, each with the names of those that choose it."""
        by_place: dict[int, list[str]] = {}
        for selector, place in self.chosen.items():
            by_place.setdefault(place, []).append(selector)
        if len(by_place) == 1 and len(self.chosen) > MOST_NAMES:
            return dict.fromkeys(by_place, "all selectors")
        return {place: ", ".join(by_place[place]) for place in sorted(by_place)}

    def is_late(self, place: int) -> bool:
        """Whether an evaluation is in the second half of a chart's width, so that a label has more room on its left."""
        return 2 * self.steps[place] >= self.steps[0] + self.steps[-1]

    @property
    def condition(self) -> str:
        """The run's state in words."""
        if self.state == "ended":
            early = self.steps and self.steps[-1] < self.planned_steps  # by training.patience
            return (
                f"stopped early, after {self.steps[-1]} of {self.planned_steps} steps"
                if early
                else f"ended after {self.planned_steps} steps"
            )
        reached = (
            f"evaluated up to step {self.steps[-1]} of {self.planned_steps}" if self.steps else "no evaluation yet"
        )
        return f"{'still training' if self.state == 'going' else 'was cut before its end'}; {reached}"


def history_of(records: Sequence[Record], name: str, *, going: bool = False, where: Path | None = None) -> History:
    """The history in the records of one run; `going`: a process is training it now."""
    try:
        return _history_of(records, name, going)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise AfieldError(f"the records in {where or name} are not those of a run: {error!r}") from error


def _history_of(records: Sequence[Record], name: str, going: bool) -> History:
    header, done = records[0], evaluations(records)
    if header["event"] != "run":
        raise ValueError("they do not begin with a run")
    results = [{**each["sources"], **each["target"]} for each in done]
    domains = list(dict.fromkeys(domain for each in results for domain in each))
    end = end_of(records)
    known = dict.fromkeys((*LABEL_FREE, *header["config"]["training"].get("keep", ())))
    selectors = [name for name in known if done and all(has_scores(each, name) for each in done)]
    made = History(
        name=str(header.get("label", name)),
        config=header["config"],
        header=header,
        state="ended" if end else "going" if going else "cut",
        steps=[int(each["step"]) for each in done],
        losses=_curves([each["losses"] for each in done]),
        accuracy={domain: [each.get(domain, {}).get("accuracy") for each in results] for domain in domains},
        source_accuracy=[source_score(each) for each in done],
        views=_by_domain(results, domains, "views"),
        gates=_by_domain(results, domains, "gates"),
        chosen={selector: done.index(select(done, selector)) for selector in selectors},
        seconds=float(end["seconds"]) if end else None,
    )
    # What a page shows of it, and a damaged one may lack.
    _ = made.method, made.target, made.planned_steps, made.config["data"]["name"], made.config["task"]["kind"]
    _ = header["seed"], header["protocol"]
    return made


def _curves(rows: Sequence[dict[str, float]]) -> dict[str, Curve]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _by_domain(results: Sequence[dict[str, Any]], domains: Sequence[str], key: str) -> dict[str, dict[str, Curve]]:
    found = {domain: _curves([each.get(domain, {}).get(key, {}) for each in results]) for domain in domains}
    return {domain: curves for domain, curves in found.items() if curves}
