"""The names of the selectors, which decide which evaluation of a run counts; `results/selection.py` applies them."""

from typing import Literal

from afield.errors import AfieldError, unknown

ScoredSelector = Literal["source-val", "information", "entropy", "snd", "nuclear", "dev", "ensemble"]
"""Selectors that choose the evaluation with the best score, where no score needs a label of the target."""
Selector = Literal["last", "source-val", "information", "entropy", "snd", "nuclear", "dev", "ensemble"]

MEANINGS: dict[str, str] = {
    "last": "the end of training",
    "source-val": "the evaluation with the best accuracy on held-out source images",
    "information": "the evaluation with the surest and most varied predictions on the target's training images",
    "entropy": "the evaluation with the surest predictions on the target's training images",
    "snd": "the evaluation with the densest soft neighbourhoods among the target's training images",
    "nuclear": "the evaluation with the greatest nuclear norm of the predictions on the target's training images",
    "dev": "the evaluation with the least held-out source loss, weighted by resemblance to the target's images",
    "ensemble": "the evaluation with the best mean rank by source-val and all scores on the target's training images",
}
LABEL_FREE = tuple(MEANINGS)
"""Selectors that may choose what is reported."""
NEED_TARGET = LABEL_FREE[2:]
"""Those that look at the target's training images, which only a UDA task has."""


def check_images(selector: str, kind: str) -> None:
    """Raise unless a task of this kind has the images that a selector looks at."""
    if kind != "uda" and selector in NEED_TARGET:
        raise AfieldError(f"selector '{selector}' looks at the target's training images, and a {kind} task has none")


def check_selector(selector: str) -> None:
    """Raise unless reported results may be chosen by this selector, that is without the target's labels."""
    if selector == "oracle":
        instead = ", ".join(LABEL_FREE)
        raise AfieldError(f"a result is never chosen by 'oracle', which looks at the target's labels: take {instead}")
    if selector not in LABEL_FREE:
        raise unknown("selector", selector, LABEL_FREE)
