"""Plotly charts of what a network does with images: confusion, t-SNE, feature divergence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from afield.analysis.charts import Chart, label_axes, text
from afield.analysis.divergence import Divergence
from afield.analysis.embedding import Embedding
from afield.analysis.features import UNKNOWN
from afield.analysis.palette import SYMBOLS, colour, of_round

MOST_COLOURS = 24
"""Classes beyond this number share one colour."""


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
    label_axes(figure, "predicted class", "true class")
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
    label_axes(figure, "feature", "mean divergence, nats")
    figure.update_xaxes(type="category", showgrid=False)
    return Chart(figure, "feature divergence between domains", height=330, narrow_height=330)
