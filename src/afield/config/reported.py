"""What papers report on the tasks of a protocol, and what others got who ran a method again."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from afield.config.catalogue import PRESETS
from afield.config.options import validated

Kind = Literal["paper", "re-runs"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class ReportedFigure(BaseModel):
    """One accuracy that someone has published, of a method under a protocol."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    protocol: str
    method: str
    """The method itself, not a preset of it."""
    kind: Kind
    """`paper`: by the method's own authors; `re-runs`: by others."""
    accuracy: float
    """In percent; of a protocol of several targets the average over them."""
    source: str
    """A key of the file's `sources`."""
    unverified: bool = False
    """Quoted from memory: nobody has looked it up in its source."""


@dataclass(frozen=True)
class _Content:
    sources: dict[str, str]
    figures: tuple[ReportedFigure, ...]


@cache
def _content() -> _Content:
    file = PRESETS / "reported.json"
    read = json.loads(file.read_text("utf-8"))
    figures = [validated(ReportedFigure, f"{file.name}.{n}", figure) for n, figure in enumerate(read["figures"])]
    return _Content(read["sources"], tuple(figures))


def reported_figures(protocol: str, method: str, kind: Kind) -> list[ReportedFigure]:
    """All figures of one kind of a method under a protocol, in the file's order."""
    wanted = protocol, method, kind
    return [figure for figure in _content().figures if (figure.protocol, figure.method, figure.kind) == wanted]


def all_figures() -> tuple[ReportedFigure, ...]:
    """All figures, in the file's order."""
    return _content().figures


def source_named(key: str) -> str:
    """The publication that a figure's source stands for."""
    return _content().sources[key]
