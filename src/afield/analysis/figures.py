"""Figures for a paper, by matplotlib: one column or the whole width of a page, text as text, safe colours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from afield.analysis.bands import bands_of
from afield.analysis.history import History
from afield.analysis.palette import HATCHES, LINES, MARKERS, colour, of_round
from afield.errors import AfieldError
from afield.files import replacing

if TYPE_CHECKING:  # curves do without torch
    from afield.analysis.complexity import Complexity
    from afield.analysis.divergence import Divergence
    from afield.analysis.embedding import Embedding
    from afield.analysis.features import Activations

COLUMN, PAGE = 3.4, 7.0
"""The widths of a column and of a page's text, in inches."""
DOTS = 300
MOST_TITLES = 6
"""With more columns than these, titles are vertical, so that they do not overlap."""
STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "lines.linewidth": 1.2, "lines.markersize": 3, "legend.frameon": False, "grid.linewidth": 0.4, "grid.alpha": 0.5,
    # Letters stay letters: TrueType in PDF, text in SVG. A dollar sign in a name stays one, too.
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "afield",
    "text.usetex": False, "text.parse_math": False,
}  # fmt: skip


def save(figure: Figure, file: Path) -> None:
    """Write a figure in the format that the file's ending names, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    kind = file.suffix.lower().removeprefix(".")
    when = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)  # equal figures are equal files
    with rc_context(STYLE), replacing(file) as temporary:
        figure.savefig(temporary, format=kind, dpi=DOTS, metadata=when)


def make(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """An empty figure of this size in inches, and its axes as an array (rows, columns)."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def curves(histories: Sequence[History]) -> Figure:
    """Accuracy on the target over the steps, mean and standard deviation over seeds; of a single run all it has."""
    if not any(history.steps for history in histories):
        raise AfieldError("these runs have no evaluation yet, so that there are no curves")
    return _one_run(histories[0]) if len(histories) == 1 else _several_runs(histories)


@rc_context(STYLE)
def _one_run(history: History) -> Figure:
    figure, axes = make(PAGE, 2.6, 1, 2)
    accuracy, losses = axes[0]
    for number, (domain, curve) in enumerate(history.accuracy.items()):
        if any(value is not None for value in curve):
            is_target = domain == history.target
            percent = [np.nan if value is None else 100 * value for value in curve]
            name = f"{domain} (target)" if is_target else domain
            _plot(accuracy, history.steps, percent, name, number, linewidth=2 if is_target else 1)
    for number, (name, curve) in enumerate(history.losses.items()):
        _plot(losses, history.steps, [np.nan if value is None else value for value in curve], name, number)
    if all(value is None or value > 0 for curve in history.losses.values() for value in curve):
        losses.set_yscale("log")
        losses.yaxis.set_major_formatter("{x:g}")  # not by mathematical text, which is off
        losses.yaxis.set_minor_formatter(NullFormatter())
    _label(accuracy, "step", "accuracy (%)")
    _label(losses, "step", "loss")
    for index, (place, selectors) in enumerate(history.marks.items()):
        for each in (accuracy, losses):
            each.axvline(history.steps[place], color="0.4", linestyle=":", linewidth=0.8)
        height = 0.06 * (index % 5)  # labels of lines beside each other would overlap
        accuracy.annotate(
            f" {selectors} ", (history.steps[place], height), xycoords=("data", "axes fraction"),
            ha="right" if history.is_late(place) else "left", va="bottom", fontsize=6, color="0.35",
        )  # fmt: skip
    for each in (accuracy, losses):
        each.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    return figure


@rc_context(STYLE)
def _several_runs(histories: Sequence[History]) -> Figure:
    bands = bands_of(histories)
    if not bands:
        raise AfieldError("no target of these runs has labels, so that there is no accuracy to draw")
    targets = list(dict.fromkeys(band.target for band in bands))
    names = list(dict.fromkeys(band.name for band in bands))
    columns = min(3, len(targets))
    rows = -(-len(targets) // columns)
    wide = COLUMN if len(targets) == 1 else PAGE
    figure, axes = make(wide, 2.1 * rows + 0.17 * -(-len(names) // (2 if wide == COLUMN else 4)), rows, columns)
    for place, panel in enumerate(axes.flat):
        if place >= len(targets):
            panel.set_axis_off()
            continue
        for band in bands:
            if band.target == targets[place]:
                number = names.index(band.name)
                mean, spread = 100 * np.array(band.mean), 100 * np.array(band.deviation)
                _plot(panel, band.steps, mean, band.name, number)
                panel.fill_between(band.steps, mean - spread, mean + spread, color=colour(number), alpha=0.2, lw=0)
        panel.set_title(f"target {targets[place]}")
        _label(panel, "step", "accuracy (%)" if place % columns == 0 else "")
    drawn = {text: line for panel in axes.flat for line, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(
        [drawn[name] for name in names], names, loc="outside lower center", ncols=2 if wide == COLUMN else 4
    )  # fmt: skip
    return figure


@rc_context(STYLE)
def divergence(divergences: "Mapping[str, Divergence]") -> Figure:
    """Bars of the mean over all pairs of domains by feature and run; the points are the pairs."""
    maps = list(dict.fromkeys(name for each in divergences.values() for name in each.between))
    figure, axes = make(COLUMN if len(divergences) < 4 else PAGE, 2.3)
    panel, wide, drawn = axes[0, 0], 0.8 / len(divergences), {}
    for place, name in enumerate(maps):
        there = [run for run, each in divergences.items() if name in each.between]
        for turn, run in enumerate(there):
            middle = place + (turn - (len(there) - 1) / 2) * wide
            pairs = divergences[run].values(name)
            number = list(divergences).index(run)
            hatch = of_round(number, HATCHES)
            drawn[run] = panel.bar(middle, np.mean(pairs), 0.92 * wide, color=colour(number), hatch=hatch)
            panel.plot(np.full(len(pairs), middle), pairs, "o", color="black", markersize=1.8, alpha=0.5, mew=0)
    panel.set_xticks(range(len(maps)), maps)
    _label(panel, "feature", "feature divergence (nats)")
    panel.grid(visible=False, axis="x")
    if len(divergences) > 1:
        figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=3)
    return figure


@rc_context(STYLE)
def maps(activations: "Mapping[str, Activations]") -> Figure:
    """An image of each domain in a row of its own, beside it the activation maps of each run."""
    from afield.analysis.pictures import heated

    first = next(iter(activations.values()))
    columns = [(run, name) for run, each in activations.items() for name in each.maps]
    # One scale per run: maps of another size are larger or smaller throughout.
    largest = {run: max(float(values.max()) for values in each.maps.values()) for run, each in activations.items()}
    side, many = min(0.85, PAGE / (len(columns) + 1)), len(columns) > MOST_TITLES
    figure, axes = make(
        side * (len(columns) + 1) + 0.25,
        side * len(first.domains) + (1.2 if many else 0.4),
        len(first.domains),
        len(columns) + 1,
    )
    for row, domain in enumerate(first.domains):
        axes[row, 0].imshow(first.pixels[row])
        axes[row, 0].set_ylabel(domain)
        for column, (run, name) in enumerate(columns, start=1):
            each = activations[run]
            if row < len(each.domains):
                axes[row, column].imshow(heated(each.pixels[row], each.maps[name][row], largest[run], 128))
    for panel in axes.flat:
        panel.set(xticks=[], yticks=[])
        for spine in panel.spines.values():
            spine.set_visible(False)
    axes[0, 0].set_title("image")
    for column, (run, name) in enumerate(columns, start=1):
        title = name if len(activations) == 1 else f"{run}: {name}" if many else f"{run}\n{name}"
        axes[0, column].set_title(title, rotation=90 if many else 0)
    return figure


@rc_context(STYLE)
def tsne(embeddings: "Mapping[str, Embedding]", coloured_by: str) -> Figure:
    """A row per run, a panel per feature; colours are domains or classes."""
    columns = list(dict.fromkeys(name for each in embeddings.values() for name in each.points))
    side = min(2.3, PAGE / len(columns))
    figure, axes = make(max(COLUMN, side * len(columns)), side * len(embeddings) + 0.5, len(embeddings), len(columns))
    drawn: dict[str, Any] = {}
    for row, (run, each) in enumerate(embeddings.items()):
        names = each.features.domains if coloured_by == "domain" else each.features.classes
        numbers = each.domain if coloured_by == "domain" else each.label
        for column, name in enumerate(columns):
            panel = axes[row, column]
            panel.set(xticks=[], yticks=[])
            if name not in each.points:
                panel.set_axis_off()
                continue
            points = each.points[name]
            unknown = numbers < 0
            panel.scatter(*points[unknown].T, s=4, color="0.8", linewidths=0)
            for number in np.unique(numbers[~unknown]).tolist():
                of_number = points[numbers == number]
                drawn[names[number]] = panel.scatter(
                    *of_number.T, s=5, color=colour(number), marker=of_round(number, MARKERS), linewidths=0, alpha=0.85
                )
            for spine in panel.spines.values():
                spine.set(visible=True, color="0.7")
            panel.set_title(name if len(embeddings) == 1 else f"{run}: {name}")
    if drawn:
        figure.legend(
            drawn.values(), drawn.keys(), loc="outside lower center", ncols=6, markerscale=2, handletextpad=0.2
        )
    return figure


@rc_context(STYLE)
def complexity(costs: "Mapping[str, Complexity]") -> Figure:
    """Parameters, multiply-adds and time per image, a bar per run."""
    figure, axes = make(PAGE, 0.75 + 0.26 * len(costs), 1, 3, sharey=True)
    each = list(costs.values())
    panels = {
        "parameters (millions)": [one.parameters / 1e6 for one in each],
        "multiply-adds per image (millions)": [one.multiply_adds / 1e6 for one in each],
        f"time per image (ms)\n{each[0].device}": [one.milliseconds for one in each],
    }
    for panel, (label, values) in zip(axes[0], panels.items(), strict=True):
        bars = panel.barh(range(len(costs)), values, 0.65, color=[colour(number) for number in range(len(costs))])
        panel.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
        panel.margins(x=0.2)
        panel.set_xlabel(label)
        panel.grid(axis="x")
        panel.set_axisbelow(True)
    axes[0, 0].set_yticks(range(len(costs)), list(costs))
    axes[0, 0].invert_yaxis()
    return figure


def _plot(panel: Axes, x: Sequence[int], y: Any, name: str, number: int, **options: Any) -> None:
    style = {"color": colour(number), "linestyle": of_round(number, LINES), "marker": "o" if len(x) < 30 else None}
    panel.plot(x, y, label=name, **{**style, **options})


def _label(panel: Axes, x: str, y: str) -> None:
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(visible=True)
    panel.set_axisbelow(True)
