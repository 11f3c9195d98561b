"""Protocols, by name: what two results must share to be comparable; and the results that others published."""

import json
import tomllib
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from afield.config.catalogue import PRESETS
from afield.config.data import TaskKind
from afield.config.options import validated
from afield.errors import unknown

PublishedFigures = dict[str, float]


class Protocol(BaseModel):
    """Data, task and targets under one name. Network and training settings are those of the preset.

    A change that makes results incomparable with earlier ones needs a new version.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    heading: str = ""
    """Of its column in a table of several protocols; empty: the name."""
    version: int
    data: str
    preset: str
    """The file in `config/presets/data` with the settings of all its runs."""
    task: TaskKind
    targets: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """The labelled domains; empty: all but the target."""
    published: str | None = None
    """The benchmark in published.json whose results are shown beside ours."""


@cache
def protocols() -> dict[str, Protocol]:
    """All protocols of the package, by name."""
    files = (PRESETS / "protocols").iterdir()
    found = [validated(Protocol, file.name, tomllib.loads(file.read_text("utf-8"))) for file in files]
    return {protocol.name: protocol for protocol in sorted(found, key=lambda protocol: protocol.name)}


def find_protocol(name: str) -> Protocol:
    """The protocol of a name, or the error with the nearest spelling."""
    if name not in protocols():
        raise unknown("protocol", name, protocols())
    return protocols()[name]


@cache
def _published() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((PRESETS / "published.json").read_text("utf-8"))
    return content


def published_source() -> str:
    """The paper that the published results are from."""
    return str(_published()["source"])


def published_figures(benchmark: str) -> dict[str, PublishedFigures]:
    """A benchmark's published accuracies in percent, by method, then by target and `average`."""
    content = _published()["benchmarks"][benchmark]
    return {name: dict(zip(content["columns"], row, strict=True)) for name, row in content["methods"].items()}
