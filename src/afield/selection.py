"""Choosing one evaluation of a run: a pure function over its records.

A figure is never shown without its selector. `last` and `source-val` are fit for headlines; `oracle` looks at the
target's labels to choose and says what could at best have been reached.
"""

from collections.abc import Sequence
from statistics import fmean

from afield.errors import AfieldError, unknown
from afield.records import Record

HEADLINE_SELECTORS = ("last", "source-val")
SELECTORS = (*HEADLINE_SELECTORS, "oracle")


def source_score(evaluation: Record) -> float:
    """Mean accuracy over the sources' held-out images, each source counting the same."""
    return fmean(result["accuracy"] for result in evaluation["sources"].values())


def target_score(evaluation: Record) -> float:
    """Accuracy on the target. For choosing, this is looking at the answers."""
    return fmean(result["accuracy"] for result in evaluation["oracle"].values())


def select(evaluations: Sequence[Record], selector: str) -> Record:
    """The evaluation a selector chooses; of equals, the earliest."""
    if selector not in SELECTORS:
        raise unknown("selector", selector, SELECTORS)
    if not evaluations:
        raise AfieldError("there is no evaluation to choose from")
    if selector == "last":
        return evaluations[-1]
    if selector == "oracle" and not evaluations[0]["oracle"]:
        raise AfieldError("selector 'oracle' needs a target, and this run has none")
    return max(evaluations, key=source_score if selector == "source-val" else target_score)
