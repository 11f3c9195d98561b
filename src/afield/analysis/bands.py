"""Curves of several runs of the same kind in one: mean and spread over seeds. Nothing here imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from afield.analysis.history import History


@dataclass(frozen=True)
class Band:
    """Target accuracy of the runs that share a name and a target, at the steps at which all of them were evaluated."""

    name: str
    target: str | None
    steps: list[int]
    mean: list[float]
    """From 0 to 1."""
    deviation: list[float]
    """The sample standard deviation; 0 of a single run."""
    runs: int


def bands_of(histories: Sequence[History]) -> list[Band]:
    """The bands of all runs whose accuracy on their target is known; empty if there is none."""
    groups: dict[tuple[str, str | None], list[dict[int, float]]] = {}
    for history in histories:
        pairs = zip(history.steps, history.target_accuracy, strict=True)
        if known := {step: value for step, value in pairs if value is not None}:
            groups.setdefault((history.name, history.target), []).append(known)
    return [_band(name, target, curves) for (name, target), curves in groups.items()]


def _band(name: str, target: str | None, curves: list[dict[int, float]]) -> Band:
    steps = [step for step in curves[0] if all(step in curve for curve in curves)]
    at = [[curve[step] for curve in curves] for step in steps]
    deviation = [stdev(values) if len(values) > 1 else 0.0 for values in at]
    return Band(name, target, steps, [fmean(values) for values in at], deviation, len(curves))
