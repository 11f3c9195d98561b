"""A report: one HTML page that needs nothing but itself."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from afield import __version__
from afield.analysis.bands import bands_of
from afield.analysis.features import UNKNOWN
from afield.analysis.glossary import GLOSSARY
from afield.analysis.grids import (
    Grid,
    class_grid,
    complexity_grid,
    confused_grid,
    divergence_grid,
    result_grid,
    share,
    table_grid,
    view_grid,
    word,
)
from afield.analysis.history import History
from afield.analysis.palette import short
from afield.analysis.study import Learned, Study
from afield.config.selectors import MEANINGS
from afield.errors import AfieldError
from afield.files import write_whole
from afield.results.rows import Table
from afield.results.show import title
from afield.results.summary import percent

if TYPE_CHECKING:
    from markupsafe import Markup

COMPARED = ("last", "source-val")
"""The selectors that every run has: those of tables of several runs."""
MOST_IN_MATRIX = 40
"""With more classes than these, a confusion matrix would be unreadable: only the pairs confused most are listed."""
THUMBNAIL, PICTURE = 56, 112


@dataclass(frozen=True)
class Benchmark:
    """The runs of a file of records, with the tables that `afield table` would print."""

    name: str
    histories: list[History]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)


def write_report(studies: Sequence[Study], benchmarks: Sequence[Benchmark], out: Path) -> None:
    """Write the page of these runs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("afield.analysis", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"percent": percent, "short": short, "with_code": with_code}
    environment.globals |= {"number": count(1).__next__}
    page = environment.get_template("page.html").render(
        runs=[run_section(study, number) for number, study in enumerate(studies, start=1)],
        compared=compared(studies),
        benchmarks=[benchmark_section(benchmark) for benchmark in benchmarks],
        glossary=GLOSSARY,
        meanings=MEANINGS,
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        plotly=get_plotlyjs(),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page)


def with_code(text: str) -> "Markup":
    """Text as HTML; what stands between backticks, as in Markdown, is code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def run_section(study: Study, number: int) -> dict[str, Any]:
    """What the page shows of one run."""
    from afield.analysis.charts import accuracy_chart, gate_chart, loss_chart, view_chart

    history, learned = study.history, study.learned
    evaluated = bool(history.steps)
    return {
        "id": f"run-{number}",
        "history": history,
        "missing": study.missing,
        "learned": learned,
        "result": result_grid(history),
        "accuracy": accuracy_chart(history) if evaluated else None,
        "losses": loss_chart(history) if evaluated and history.losses else None,
        "gates": gate_chart(history) if history.gates else None,
        "views": view_chart(history) if history.views else None,
        "view_grid": view_grid(history),
        "config": config_text(history),
        **(learned_parts(learned, number) if learned else {}),
    }


def config_text(history: History) -> str:
    """All settings of a run, as a config's file has them."""
    try:
        return tomli_w.dumps(history.config)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:  # what TOML does not have
        raise AfieldError(f"the config in the records of '{history.name}' is damaged") from error


def learned_parts(learned: Learned, number: int) -> dict[str, Any]:
    """What the page shows of a run's network."""
    from afield.analysis.feature_charts import confusion_chart, divergence_chart, embedding_chart
    from afield.analysis.pictures import as_uri, heated

    first = sorted(learned.predictions, key=lambda each: each.domain != learned.target)  # the target first
    confusions = {each.domain: matrix for each in first if (matrix := each.confusion) is not None}
    small = len(learned.classes) <= MOST_IN_MATRIX
    embedding, pictures = learned.embedding, f"pictures-{number}"
    thumbnails = [as_uri(embedding.features.pixels[row], THUMBNAIL) for row in embedding.rows] if embedding else []
    shown = learned.activations
    largest = {name: float(maps.max()) for name, maps in shown.maps.items()}
    maps = [
        {
            "domain": domain, "label": label, "predicted": predicted, "image": as_uri(pixels, PICTURE),
            "maps": {
                name: as_uri(heated(pixels, of_map[place], max(largest.values()), PICTURE), PICTURE)
                for name, of_map in shown.maps.items()
            },
        }
        for place, (domain, label, predicted, pixels) in enumerate(
            zip(shown.domains, shown.labels, shown.predicted, shown.pixels, strict=True)
        )
    ]  # fmt: skip
    return {
        "unlabelled": [each.domain for each in learned.predictions if each.labels is None],
        "class_grid": class_grid(learned),
        "confusion": confusion_chart(confusions, learned.classes) if confusions and small else None,
        "confused": confused_grid(learned),
        "embedding": embedding_chart(embedding, learned.target, pictures) if embedding else None,
        "pictures": pictures,
        "thumbnails": json.dumps(thumbnails),
        "class_known": bool(embedding and (embedding.label != UNKNOWN).any()),
        "maps": maps,
        "divergence": divergence_chart({"": learned.divergence}, learned.target) if learned.divergence else None,
        "divergence_grid": divergence_grid(learned),
        "unsure": [(as_uri(each.pixels, PICTURE), each) for each in learned.unsure],
        "complexity_grid": complexity_grid(learned),
    }


def compared(studies: Sequence[Study]) -> dict[str, Any] | None:
    """What the page shows of several runs beside each other; None of a single one."""
    from afield.analysis.charts import compared_chart
    from afield.analysis.feature_charts import divergence_chart

    if len(studies) < 2:
        return None
    rows = []
    for study in studies:
        history, learned = study.history, study.learned
        at = [history.chosen[name] for name in COMPARED if name in history.chosen]
        costs = learned.complexity if learned else None
        rows.append(
            [
                word(history.name), word(history.method), word(history.target or "-"),
                *(share(history.target_accuracy[place]) for place in at or ()),
                *([share(None)] * (0 if at else 2)),
                share(history.source_accuracy[at[0]] if at else None),
                (f"{history.seconds:.0f}", history.seconds) if history.seconds is not None else word("-"),
                (f"{costs.parameters:,}", float(costs.parameters)) if costs else word("-"),
                (short(costs.multiply_adds), float(costs.multiply_adds)) if costs else word("-"),
                (f"{costs.milliseconds:.2f}", costs.milliseconds) if costs else word("-"),
                word(history.condition),
            ]
        )  # fmt: skip
    columns = [
        "run", "method", "target", "target, last", "target, source-val", "sources, last", "training, s", "parameters",
        "multiply-adds", "ms per image", "state",
    ]  # fmt: skip
    divergences = {
        study.history.name: study.learned.divergence for study in studies if study.learned and study.learned.divergence
    }
    histories = [study.history for study in studies]
    return {
        "grid": Grid(columns, rows),
        "accuracy": compared_chart(histories) if any(history.steps for history in histories) else None,
        "divergence": divergence_chart(divergences, None) if len(divergences) > 1 else None,
    }


def benchmark_section(benchmark: Benchmark) -> dict[str, Any]:
    """What the page shows of a benchmark's records."""
    from afield.analysis.charts import band_chart

    rows = [
        [
            word(history.name), word(history.target or "-"), (str(seed := history.header["seed"]), float(seed)),
            *(share(history.target_accuracy[history.chosen[name]]) for name in COMPARED),
            share(history.source_accuracy[history.chosen["last"]]),
            (f"{history.seconds or 0:.0f}", history.seconds),
        ]
        for history in benchmark.histories
        if history.chosen
    ]  # fmt: skip
    columns = ["run", "target", "seed", "target, last", "target, source-val", "sources, last", "training, s"]
    bands = bands_of(benchmark.histories)
    return {
        "name": benchmark.name,
        "tables": [(title(table), table_grid(table)) for table in benchmark.tables],
        "notes": benchmark.notes,
        "runs": Grid(columns, rows),
        "chart": band_chart(bands) if bands else None,
    }
