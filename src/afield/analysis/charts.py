"""Plotly charts of curves, and what all charts share. The page's script gives them the reader's colours and width."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import plotly.graph_objects as go

from afield.analysis.bands import Band
from afield.analysis.history import Curve, History
from afield.analysis.palette import DASHES, colour, of_round

HEIGHT = 360
TOP, LABEL, MOST_LEVELS = 40, 13, 4
"""Above a chart, in pixels: the space for its buttons and one label, and for each further label; at most so many."""


@dataclass(frozen=True)
class Chart:
    """A chart, and the choices of which of its traces are seen."""

    figure: go.Figure
    label: str
    """A description of what it shows, for readers who cannot see it."""
    height: int = HEIGHT
    narrow: dict[str, Any] = field(default_factory=dict)
    """What of its layout is different on a narrow screen."""
    narrow_height: int = HEIGHT
    switch: dict[str, list[bool]] = field(default_factory=dict)
    """By the name of a choice, which traces it shows."""
    choice: str = ""
    """What is chosen, such as the domain."""
    pictures: str = ""
    """The name of the list of pictures that `customdata` points into."""

    @property
    def json(self) -> str:
        """What the script draws; no sign in it can end the element that holds it."""
        drawn = json.loads(self.figure.to_json())
        given = {"data": drawn["data"], "layout": drawn["layout"], "narrow": self.narrow, "pictures": self.pictures}
        return json.dumps(given).replace("<", "\\u003c")


def text(name: str) -> str:
    """A name as Plotly shows it: it would take some signs for markup."""
    return escape(name, quote=False)  # Plotly would show the code of a quote, and has no attribute to end


def accuracy_chart(history: History) -> Chart:
    """Accuracy of each domain over the steps."""
    figure = go.Figure()
    for number, (domain, curve) in enumerate(history.accuracy.items()):
        if any(value is not None for value in curve):
            is_target = domain == history.target
            name = f"{text(domain)} (target)" if is_target else text(domain)
            figure.add_trace(_line(history.steps, _percent(curve), name, number, width=3.5 if is_target else 1.8))
    tall = HEIGHT + _mark_choices(figure, history)
    label_axes(figure, "step", "accuracy, %")
    return Chart(figure, "accuracy of each domain over the steps of training", tall, narrow_height=tall)


def loss_chart(history: History) -> Chart:
    """Every loss over the steps."""
    figure = go.Figure()
    for number, (name, curve) in enumerate(history.losses.items()):
        figure.add_trace(_line(history.steps, curve, text(name), number))
    tall = HEIGHT + _mark_choices(figure, history)
    values = [value for curve in history.losses.values() for value in curve if value is not None]
    positive = bool(values) and min(values) > 0
    label_axes(figure, "step", "loss (logarithmic)" if positive else "loss")
    if positive:
        figure.update_yaxes(type="log", dtick=1)
    return Chart(figure, "losses over the steps of training", tall, narrow_height=tall)


def gate_chart(history: History) -> Chart:
    """What the gates let through, over the steps."""
    figure = go.Figure()
    for number, (domain, gates) in enumerate(history.gates.items()):
        for kind, (gate, curve) in enumerate(gates.items()):
            trace = _line(history.steps, curve, f"{text(domain)}: {text(gate)}", number)
            trace.line.dash = DASHES[kind % len(DASHES)]
            figure.add_trace(trace)
    label_axes(figure, "step", "size in relation to F or R")
    figure.update_yaxes(rangemode="tozero")
    return Chart(figure, "what the gates let through over the steps of training", narrow_height=440)


def view_chart(history: History) -> Chart:
    """Accuracy from each feature over the steps, of one domain at a time."""
    figure, owners = go.Figure(), []
    first = history.target if history.target in history.views else next(iter(history.views))
    for domain, views in history.views.items():
        for number, (view, curve) in enumerate(views.items()):
            trace = _line(history.steps, _percent(curve), text(view), number)
            trace.visible = domain == first
            figure.add_trace(trace)
            owners.append(domain)
    label_axes(figure, "step", "accuracy, %")
    order = [first, *(domain for domain in history.views if domain != first)]
    switch = {domain: [owner == domain for owner in owners] for domain in order}
    return Chart(figure, "accuracy from each feature over the steps", switch=switch, choice="domain")


def compared_chart(histories: Sequence[History]) -> Chart:
    """The target's accuracy of several runs over their steps; of a run without, the mean over its sources."""
    figure = go.Figure()
    for number, history in enumerate(histories):
        known = any(value is not None for value in history.target_accuracy)
        curve = history.target_accuracy if known else history.source_accuracy
        name = text(history.name) if known else f"{text(history.name)} (sources)"
        figure.add_trace(_line(history.steps, _percent(curve), name, number, width=2.5))
    label_axes(figure, "step", "target accuracy, %")
    return Chart(figure, "target accuracy of the runs over their steps", narrow_height=420)


def _line(steps: Sequence[int], curve: Curve, name: str, number: int, width: float = 2) -> go.Scatter:
    mode = "lines+markers" if len(steps) < 40 else "lines"
    line = {"color": colour(number), "width": width, "dash": of_round(number, DASHES)}
    return go.Scatter(x=list(steps), y=curve, name=name, mode=mode, line=line, connectgaps=True)


def _percent(curve: Curve) -> Curve:
    return [None if value is None else round(100 * value, 3) for value in curve]


def _mark_choices(figure: go.Figure, history: History) -> int:
    """A line where each selector chooses; selectors that choose the same evaluation share it.

    Labels of lines beside each other have different heights, or they would overlap; the last is the lowest, as the
    chart's buttons are above it. Returns the pixels that this takes.
    """
    for index, (place, selectors) in enumerate(reversed(history.marks.items())):
        figure.add_vline(
            x=history.steps[place], line={"dash": "dot", "width": 1.5}, annotation_text=selectors,
            annotation_position="top left" if history.is_late(place) else "top right", annotation_yanchor="bottom",
            annotation_yshift=LABEL * (index % MOST_LEVELS),
        )  # fmt: skip
    stacked = LABEL * (min(len(history.marks), MOST_LEVELS) - 1)
    figure.update_layout(margin={"t": TOP + stacked})
    return stacked


def label_axes(figure: go.Figure, x: str, y: str) -> None:
    """Title the axes."""
    figure.update_xaxes(title_text=x)
    figure.update_yaxes(title_text=y)


def band_chart(bands: Sequence[Band]) -> Chart:
    """The target's accuracy over the steps, mean over the runs of each name, of one target at a time."""
    targets = list(dict.fromkeys(band.target or "-" for band in bands))
    names = list(dict.fromkeys(band.name for band in bands))
    figure, owners = go.Figure(), []
    for band in bands:
        curve: Curve = list(band.mean)
        name = f"{text(band.name)} ({band.runs})"
        trace = _line(band.steps, _percent(curve), name, names.index(band.name))
        spread = [100 * value for value in band.deviation]
        trace.error_y = {"type": "data", "array": spread, "visible": band.runs > 1, "thickness": 1, "width": 3}
        trace.visible = (band.target or "-") == targets[0]
        figure.add_trace(trace)
        owners.append(band.target or "-")
    label_axes(figure, "step", "target accuracy, %")
    switch = {target: [owner == target for owner in owners] for target in targets}
    tall = 360 + 10 * len(names)
    return Chart(
        figure, "target accuracy over the steps", tall, narrow_height=tall + 60, switch=switch, choice="target"
    )
