"""Choosing one evaluation of a run: a pure function over its records.

A result is never shown without its selector. `last` and `source-val` may choose the results that are reported;
`oracle` chooses by the target's labels, and so gives an upper bound.
"""

from collections.abc import Sequence
from statistics import fmean

from afield.errors import AfieldError, unknown
from afield.results.records import Record

HEADLINE_SELECTORS = ("last", "source-val")
SELECTORS = (*HEADLINE_SELECTORS, "oracle")


def source_score(evaluation: Record) -> float:
    """Mean of the sources' accuracies on held-out images; every source has the same weight."""
    return fmean(result["accuracy"] for result in evaluation["sources"].values())


def target_score(evaluation: Record) -> float:
    """Accuracy on the target. It needs the target's labels, so no reported result may be chosen by it."""
    without = [name for name, result in evaluation["target"].items() if result["accuracy"] is None]
    if without:
        raise AfieldError(f"target '{without[0]}' has no labels, so its accuracy is unknown")
    return fmean(result["accuracy"] for result in evaluation["target"].values())


def information_score(evaluation: Record) -> float:
    """How certain and how varied the predictions on the target are, in nats: a score that needs no labels.

    It is the entropy of the mean prediction minus the mean entropy of the predictions. Certainty alone would not do: a
    network that predicts one class for every image is certain too.
    """
    return fmean(result["diversity"] - result["entropy"] for result in evaluation["unlabelled"].values())


def check_headline(selector: str) -> None:
    """Raise unless reported results may be chosen by this selector, that is without the target's labels."""
    if selector == "oracle":
        instead = " or ".join(HEADLINE_SELECTORS)
        raise AfieldError(f"a result is never chosen by 'oracle', which looks at the target's labels: take {instead}")
    if selector not in HEADLINE_SELECTORS:
        raise unknown("selector", selector, HEADLINE_SELECTORS)


def select(evaluations: Sequence[Record], selector: str) -> Record:
    """The evaluation that a selector chooses; the earliest of equally good ones."""
    if selector not in SELECTORS:
        raise unknown("selector", selector, SELECTORS)
    if not evaluations:
        raise AfieldError("there is no evaluation to choose from")
    if selector == "last":
        return evaluations[-1]
    if selector == "oracle" and not evaluations[0]["target"]:
        raise AfieldError("selector 'oracle' needs a target, and this run has none")
    return max(evaluations, key=source_score if selector == "source-val" else target_score)
