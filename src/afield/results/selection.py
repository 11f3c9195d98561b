"""Choosing one evaluation of a run: a pure function over its records.

A result is never shown without its selector. All but `oracle` may choose the results that are reported; `oracle`
chooses by the target's labels, and so gives an upper bound. docs/choosing.md has the formulas.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from statistics import fmean

from afield.config.selectors import LABEL_FREE
from afield.errors import AfieldError, unknown
from afield.results.records import Record

SELECTORS = (*LABEL_FREE, "oracle")


def source_score(evaluation: Record) -> float:
    """Mean of the sources' accuracies on held-out images; every source has the same weight."""
    accuracies = [result.get("accuracy") for result in evaluation.get("sources", {}).values()]
    if not accuracies or None in accuracies:
        raise AfieldError("an evaluation in these records lacks the accuracy of a source")
    return fmean(accuracies)


def target_score(evaluation: Record) -> float:
    """Accuracy on the target. It needs the target's labels, so no reported result may be chosen by it."""
    if not evaluation.get("target"):
        raise AfieldError("selector 'oracle' needs a target, and this run has none")
    without = [name for name, result in evaluation["target"].items() if result.get("accuracy") is None]
    if without:
        raise AfieldError(f"target '{without[0]}' has no labels, so its accuracy is unknown")
    return fmean(result["accuracy"] for result in evaluation["target"].values())


def recorded(name: str, evaluation: Record) -> float:
    """One of the numbers about the target's predictions that an evaluation records."""
    return fmean(result[name] for result in evaluation["unlabelled"].values())


def information_score(evaluation: Record) -> float:
    """How certain and how varied the predictions on the target are, in nats: a score that needs no labels.

    It is the entropy of the mean prediction minus the mean entropy of the predictions. Certainty alone would not do: a
    network that predicts one class for every image is certain too.
    """
    return recorded("diversity", evaluation) - recorded("entropy", evaluation)


# Of each, more is better.
SCORES: dict[str, Callable[[Record], float]] = {
    "source-val": source_score,
    "information": information_score,
    "entropy": lambda evaluation: -recorded("entropy", evaluation),
    "snd": lambda evaluation: recorded("snd", evaluation),
    "nuclear": lambda evaluation: recorded("nuclear", evaluation),
    "dev": lambda evaluation: -recorded("dev", evaluation),
}


def has_scores(evaluation: Record, selector: str) -> bool:
    """Whether an evaluation records what a selector chooses by."""
    needed = {"information": ("diversity", "entropy"), "ensemble": ("entropy", "diversity", "snd", "nuclear", "dev")}
    results = evaluation.get("unlabelled", {}).values()
    if selector in ("last", "source-val"):
        return True
    names = needed.get(selector, (selector,))
    return bool(results) and all(isinstance(result.get(name), float | int) for result in results for name in names)


def scores(evaluations: Sequence[Record], selector: str) -> list[float]:
    """A selector's score of each evaluation: more is better. `ensemble` is the mean of ranks among these."""
    if selector == "oracle":
        return [target_score(evaluation) for evaluation in evaluations]
    lacking = [evaluation for evaluation in evaluations if not has_scores(evaluation, selector)]
    if lacking:
        others = ", ".join(name for name in LABEL_FREE if has_scores(lacking[0], name))
        why = "older records do not have; train again" if lacking[0].get("unlabelled") else "only a uda run has"
        raise AfieldError(f"selector '{selector}' needs scores of the target's images, which {why}, or take {others}")
    if selector == "ensemble":
        members = [scores(evaluations, name) for name in SCORES]
        return [fmean(of_one) for of_one in zip(*map(ranks, members), strict=True)]
    return [SCORES[selector](evaluation) for evaluation in evaluations]


def evaluations_since_best(evaluations: Sequence[Record], selector: str) -> int:
    """How many evaluations there are after the one that a selector chooses."""
    chosen = select(evaluations, selector)
    return sum(1 for _ in takewhile(lambda evaluation: evaluation is not chosen, reversed(evaluations)))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, 1 for the smallest; equal values share the mean of their ranks.

    >>> ranks([0.3, 0.9, 0.3])
    [1.5, 3.0, 1.5]
    """
    # Not scipy's, which takes longer to import than a table takes to print.
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def select(evaluations: Sequence[Record], selector: str) -> Record:
    """The evaluation that a selector chooses; the earliest of equally good ones."""
    if selector not in SELECTORS:
        raise unknown("selector", selector, SELECTORS)
    if not evaluations:
        raise AfieldError("there is no evaluation to choose from")
    if selector == "last":
        return evaluations[-1]
    found = scores(evaluations, selector)
    return evaluations[found.index(max(found))]
