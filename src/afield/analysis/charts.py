"""Plotly charts of a run's numbers. The page's script gives them colours and sizes that suit the reader's screen."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from afield.analysis.bands import Band
from afield.analysis.divergence import Divergence
from afield.analysis.embedding import Embedding
from afield.analysis.features import UNKNOWN
from afield.analysis.history import Curve, History
from afield.analysis.palette import DASHES, SYMBOLS, colour, of_round

MOST_COLOURS = 24
"""Of more classes than these the rest are of one colour."""


@dataclass(frozen=True)
class Chart:
    """A chart, and the choices of which of its traces are seen."""

    figure: go.Figure
    label: str
    """What it shows, for those who cannot see it."""
    height: int = 360
    narrow: dict[str, Any] = field(default_factory=dict)
    """What of its layout is different on a narrow screen."""
    narrow_height: int = 360
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
    return escape(name)


def accuracy_chart(history: History) -> Chart:
    """Accuracy of each domain over the steps."""
    figure = go.Figure()
    for number, (domain, curve) in enumerate(history.accuracy.items()):
        if any(value is not None for value in curve):
            is_target = domain == history.target
            name = f"{text(domain)} (target)" if is_target else text(domain)
            figure.add_trace(_line(history.steps, _percent(curve), name, number, width=3.5 if is_target else 1.8))
    _mark_choices(figure, history)
    _axes(figure, "step", "accuracy, %")
    return Chart(figure, "accuracy of each domain over the steps of training")


def loss_chart(history: History) -> Chart:
    """Every loss over the steps."""
    figure = go.Figure()
    for number, (name, curve) in enumerate(history.losses.items()):
        figure.add_trace(_line(history.steps, curve, text(name), number))
    _mark_choices(figure, history)
    values = [value for curve in history.losses.values() for value in curve if value is not None]
    positive = bool(values) and min(values) > 0
    _axes(figure, "step", "loss (logarithmic)" if positive else "loss")
    if positive:
        figure.update_yaxes(type="log", dtick=1)
    return Chart(figure, "losses over the steps of training")


def gate_chart(history: History) -> Chart:
    """What the gates let through, over the steps."""
    figure = go.Figure()
    for number, (domain, gates) in enumerate(history.gates.items()):
        for kind, (gate, curve) in enumerate(gates.items()):
            trace = _line(history.steps, curve, f"{text(domain)}: {text(gate)}", number)
            trace.line.dash = DASHES[kind % len(DASHES)]
            figure.add_trace(trace)
    _axes(figure, "step", "share let through")
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
    _axes(figure, "step", "accuracy, %")
    order = [first, *(domain for domain in history.views if domain != first)]
    switch = {domain: [owner == domain for owner in owners] for domain in order}
    return Chart(figure, "accuracy from each feature over the steps", switch=switch, choice="domain")


def confusion_chart(confusions: dict[str, NDArray[np.int64]], classes: Sequence[str]) -> Chart:
    """What is taken for what, of one domain at a time: shares of each true class."""
    names = [text(name) for name in classes]
    figure = go.Figure()
    for number, (_, counts) in enumerate(confusions.items()):
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        figure.add_trace(
            go.Heatmap(
                z=shares.round(1), x=names, y=names, customdata=counts, visible=number == 0, zmin=0, zmax=100,
                colorscale="Cividis", colorbar={"title": {"text": "%"}, "thickness": 12}, xgap=1, ygap=1,
                hovertemplate="%{y} taken for %{x}: %{customdata} images, %{z} %<extra></extra>",
            )
        )  # fmt: skip
    _axes(figure, "predicted class", "true class")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(type="category")
    tall = max(340, min(900, 120 + 24 * len(classes)))
    shown = list(confusions)
    switch = {domain: [other == domain for other in shown] for domain in shown}
    return Chart(figure, "confusion matrix", height=tall, narrow_height=tall, switch=switch, choice="domain")


def embedding_chart(embedding: Embedding, target: str | None, pictures: str) -> Chart:
    """t-SNE of every map beside each other, coloured by domain or by class."""
    features, names = embedding.features, list(embedding.points)
    figure, owners = go.Figure(), []
    groups = {"domain": _by_domain(embedding, target), "class": _by_class(embedding)}
    for choice, of_choice in groups.items():
        for number, (name, rows) in enumerate(of_choice.items()):
            for panel, points in enumerate(embedding.points.values()):
                said = [_said(embedding, row) for row in rows]
                axis = "" if panel == 0 else str(panel + 1)
                figure.add_trace(
                    go.Scatter(
                        x=points[rows, 0].round(2), y=points[rows, 1].round(2), mode="markers", name=name, text=said,
                        xaxis=f"x{axis}", yaxis=f"y{axis}", legendgroup=name, showlegend=panel == 0,
                        visible=choice == "domain", customdata=rows, hoverinfo="none",
                        marker={"size": 6, "color": colour(number), "symbol": of_round(number, SYMBOLS),
                                "opacity": 0.85},
                    )
                )  # fmt: skip
                owners.append(choice)
    count = len(names)
    layout: dict[str, Any] = {}
    narrow: dict[str, Any] = {}
    for panel, name in enumerate(names):
        axis, gap = "" if panel == 0 else str(panel + 1), 0.03
        part, tall = (1 + gap) / count, (1 + 2.5 * gap) / count
        plain = {"showticklabels": False, "zeroline": False, "showgrid": False, "ticks": "", "showline": True}
        across = [panel * part, panel * part + part - gap]
        top = 1 - panel * tall
        layout |= {
            f"xaxis{axis}": {**plain, "domain": across, "anchor": f"y{axis}", "mirror": True},
            f"yaxis{axis}": {**plain, "domain": [0, 1], "anchor": f"x{axis}", "mirror": True},
        }
        narrow |= {f"xaxis{axis}.domain": [0, 1], f"yaxis{axis}.domain": [max(0, top - tall + 2.5 * gap), top]}
        title = {"text": text(name), "showarrow": False, "yanchor": "bottom", "xanchor": "left", "xref": "paper"}
        figure.add_annotation(**title, x=across[0], y=1, yref="paper")
        narrow |= {f"annotations[{panel}].x": 0, f"annotations[{panel}].y": top}
    figure.update_layout(**layout, hovermode="closest", margin={"l": 4, "r": 4})
    switch = {choice: [owner == choice for owner in owners] for choice in groups}
    label = f"t-SNE of {', '.join(names)}, {len(embedding.rows)} images of {len(features.domains)} domains"
    return Chart(
        figure, label, 430, narrow, 90 + 330 * count, switch=switch, choice="colour", pictures=pictures
    )  # fmt: skip


def _by_domain(embedding: Embedding, target: str | None) -> dict[str, NDArray[np.int64]]:
    names = [f"{text(name)} (target)" if name == target else text(name) for name in embedding.features.domains]
    return {name: np.flatnonzero(embedding.domain == number) for number, name in enumerate(names)}


def _by_class(embedding: Embedding) -> dict[str, NDArray[np.int64]]:
    counts = np.bincount(embedding.label[embedding.label != UNKNOWN], minlength=len(embedding.features.classes))
    shown = sorted(np.argsort(-counts, kind="stable")[:MOST_COLOURS].tolist())
    groups = {text(embedding.features.classes[number]): np.flatnonzero(embedding.label == number) for number in shown}
    rest = np.flatnonzero((embedding.label != UNKNOWN) & ~np.isin(embedding.label, shown))
    unknown = np.flatnonzero(embedding.label == UNKNOWN)
    groups |= ({"other classes": rest} if len(rest) else {}) | ({"class unknown": unknown} if len(unknown) else {})
    return {name: rows for name, rows in groups.items() if len(rows)}


def _said(embedding: Embedding, row: int) -> str:
    features, label = embedding.features, embedding.label[row]
    true = "class unknown" if label == UNKNOWN else f"class {text(features.classes[label])}"
    predicted = text(features.classes[embedding.predicted[row]])
    return f"{text(features.domains[embedding.domain[row]])}<br>{true}<br>predicted {predicted}"


def divergence_chart(divergences: dict[str, Divergence], target: str | None) -> Chart:
    """The mean divergence of each map: of one run over all pairs of domains and over those with the target; else of
    several runs.
    """
    figure = go.Figure()
    bars: list[tuple[str, Divergence, str | None]] = [
        (name, divergence, None) for name, divergence in divergences.items()
    ]
    if len(bars) == 1 and target:
        divergence = bars[0][1]
        bars = [("all pairs of domains", divergence, None), ("pairs with the target", divergence, target)]
    for number, (name, divergence, domain) in enumerate(bars):
        maps = list(divergence.between)
        values = [divergence.mean(each, domain) for each in maps]
        written = [f"{value:.3g}" for value in values]
        figure.add_trace(
            go.Bar(x=maps, y=values, name=text(name), marker_color=colour(number), text=written, textposition="auto")
        )
    _axes(figure, "feature", "mean divergence, nats")
    figure.update_xaxes(type="category", showgrid=False)
    return Chart(figure, "feature divergence between domains", height=330, narrow_height=330)


def compared_chart(histories: Sequence[History]) -> Chart:
    """The target's accuracy of several runs over their steps; of a run without, the mean over its sources."""
    figure = go.Figure()
    for number, history in enumerate(histories):
        known = any(value is not None for value in history.target_accuracy)
        curve = history.target_accuracy if known else history.source_accuracy
        name = text(history.name) if known else f"{text(history.name)} (sources)"
        figure.add_trace(_line(history.steps, _percent(curve), name, number, width=2.5))
    _axes(figure, "step", "target accuracy, %")
    return Chart(figure, "target accuracy of the runs over their steps", narrow_height=420)


def _line(steps: Sequence[int], curve: Curve, name: str, number: int, width: float = 2) -> go.Scatter:
    mode = "lines+markers" if len(steps) < 40 else "lines"
    line = {"color": colour(number), "width": width, "dash": of_round(number, DASHES)}
    return go.Scatter(x=list(steps), y=curve, name=name, mode=mode, line=line, connectgaps=True)


def _percent(curve: Curve) -> Curve:
    return [None if value is None else round(100 * value, 3) for value in curve]


def _mark_choices(figure: go.Figure, history: History) -> None:
    """A line where each selector chooses; selectors that choose the same evaluation share it."""
    at: dict[int, list[str]] = {}
    for selector, place in history.chosen.items():
        at.setdefault(history.steps[place], []).append(selector)
    for step, selectors in at.items():
        last = step == history.steps[-1]
        figure.add_vline(
            x=step, line={"dash": "dot", "width": 1.5}, annotation_text=", ".join(selectors),
            annotation_position="top left" if last else "top right", annotation_yanchor="bottom",
        )  # fmt: skip


def _axes(figure: go.Figure, x: str, y: str) -> None:
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
    _axes(figure, "step", "target accuracy, %")
    switch = {target: [owner == target for owner in owners] for target in targets}
    tall = 360 + 10 * len(names)
    return Chart(
        figure, "target accuracy over the steps", tall, narrow_height=tall + 60, switch=switch, choice="target"
    )
