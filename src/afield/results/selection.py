"""Choosing one evaluation of a run: a pure function over its records.

A figure is never shown without its selector. `last` and `source-val` are fit for headlines; `oracle` looks at the
target's labels and says what could at best have been reached.
"""

from collections.abc import Sequence
from statistics import fmean

from afield.errors import AfieldError, unknown
from afield.results.records import Record

HEADLINE_SELECTORS = ("last", "source-val")
SELECTORS = (*HEADLINE_SELECTORS, "oracle")


def source_score(evaluation: Record) -> float:
    """Mean accuracy over the sources' held-out images, each source counting the same."""
    return fmean(result["accuracy"] for result in evaluation["sources"].values())


def target_score(evaluation: Record) -> float:
    """Accuracy on the target. For choosing, this is looking at the answers."""
    return fmean(result["accuracy"] for result in evaluation["target"].values())


def information_score(evaluation: Record) -> float:
    """How sure and how varied the predictions on the target are, in nats: the information they give about its classes.

    The entropy of the mean prediction less the mean entropy. Sure predictions alone would do for a network that says
    the same of every image. It needs no label: what choosing settings for a target may go by.
    """
    return fmean(result["diversity"] - result["entropy"] for result in evaluation["unlabelled"].values())


def check_headline(selector: str) -> None:
    """Raise unless a result may be chosen by this selector: no looking at the target."""
    if selector == "oracle":
        instead = " or ".join(HEADLINE_SELECTORS)
        raise AfieldError(f"a result is never chosen by 'oracle', which looks at the target's labels: take {instead}")
    if selector not in HEADLINE_SELECTORS:
        raise unknown("selector", selector, HEADLINE_SELECTORS)


def select(evaluations: Sequence[Record], selector: str) -> Record:
    """The evaluation a selector chooses; of equals, the earliest."""
    if selector not in SELECTORS:
        raise unknown("selector", selector, SELECTORS)
    if not evaluations:
        raise AfieldError("there is no evaluation to choose from")
    if selector == "last":
        return evaluations[-1]
    if selector == "oracle" and not evaluations[0]["target"]:
        raise AfieldError("selector 'oracle' needs a target, and this run has none")
    return max(evaluations, key=source_score if selector == "source-val" else target_score)
